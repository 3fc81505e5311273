//! Watches the deadline in a lease file: tells when the job must be killed, and wakes a `poll` at that moment.
//!
//! The timer runs on the boot clock, so it fires directly after a suspend. Where the system has it, a notification wakes
//! the poll with each write, so that the end of a term is seen at once.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use incumbent_core::lease_file::Unreadable;
use incumbent_core::{BootInstant, FencingToken};

use crate::lease_file::LeaseFileReader;

/// How soon to look again after meeting the writer half-way.
const REREAD: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct DeadlineWatch {
    reader: LeaseFileReader,
    token: FencingToken,
    lead: Duration,
    /// The last good deadline less the lead: what holds while the file cannot be read for a moment.
    due: BootInstant,
    over: bool,
    alarm: alarm::Alarm,
}

impl DeadlineWatch {
    /// Watches the lease file of the term with `token`; the job is to be killed `lead` before the deadline.
    pub(crate) fn new(path: &Path, token: FencingToken, lead: Duration) -> io::Result<DeadlineWatch> {
        Ok(DeadlineWatch {
            reader: LeaseFileReader::open(path)?,
            token,
            lead,
            due: BootInstant::ZERO,
            over: false,
            alarm: alarm::Alarm::new(path)?,
        })
    }

    /// Whether the job must be killed at `now`; if not, sets the alarm for the moment when that has to be asked again.
    /// Once true it stays true.
    pub(crate) fn is_over(&mut self, now: BootInstant) -> bool {
        if self.over {
            return true;
        }
        // Before the file is read, so that a write after it wakes the next poll.
        self.alarm.clear();
        let mut next = None;
        match self.reader.read() {
            // A term that is over has no deadline: its due moment is zero, which has passed.
            Ok(word) if word.token() == self.token => {
                self.due = word.deadline().unwrap_or(BootInstant::ZERO) - self.lead;
            }
            // The deadline read before still holds: it was in force, whatever is being written now.
            Err(Unreadable::Mismatch) => next = Some(now + REREAD),
            _ => self.due = BootInstant::ZERO,
        }
        self.over = now >= self.due;
        if !self.over {
            self.over = self.alarm.set(next.map_or(self.due, |next| next.min(self.due))).is_err();
        }
        self.over
    }

    /// What to poll for reading.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.alarm.fds()
    }

    /// How long a poll may last, where no timer of the system's wakes it.
    pub(crate) fn timeout(&self, now: BootInstant) -> Option<Duration> {
        self.alarm.timeout(now)
    }
}

/// A timer on the boot clock and a notification of writes.
#[cfg(target_os = "linux")]
mod alarm {
    use super::*;
    use rustix::fs::inotify;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use std::os::fd::{AsFd, OwnedFd};

    #[derive(Debug)]
    pub(super) struct Alarm {
        timer: OwnedFd,
        /// None where the user's number of watches is used up: then the end is seen with the timer.
        writes: Option<OwnedFd>,
    }

    impl Alarm {
        pub(super) fn new(path: &Path) -> io::Result<Alarm> {
            let timer =
                timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
            let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
            let writes = inotify::init(flags)
                .ok()
                .filter(|writes| inotify::add_watch(writes, path, inotify::WatchFlags::MODIFY).is_ok());
            Ok(Alarm { timer, writes })
        }

        /// Takes back the notifications that woke the poll.
        pub(super) fn clear(&self) {
            if let Some(writes) = &self.writes {
                while rustix::io::read(writes, &mut [0_u8; 1024]).is_ok_and(|len| len > 0) {}
            }
        }

        /// Wakes the poll at `at`, and no more at the moment set before.
        pub(super) fn set(&mut self, at: BootInstant) -> io::Result<()> {
            let nanos = at.as_nanos().min(i64::MAX as u64);
            let at =
                Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
            let interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            let value = Itimerspec { it_interval: interval, it_value: at };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &value)?;
            Ok(())
        }

        pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
            [Some(self.timer.as_fd()), self.writes.as_ref().map(AsFd::as_fd)].into_iter().flatten()
        }

        pub(super) fn timeout(&self, _now: BootInstant) -> Option<Duration> {
            None
        }
    }
}

/// Bounded polls, where there is no timer that counts through sleep.
#[cfg(not(target_os = "linux"))]
mod alarm {
    use super::*;

    const POLL: Duration = Duration::from_millis(100);

    #[derive(Debug)]
    pub(super) struct Alarm {
        at: BootInstant,
    }

    impl Alarm {
        pub(super) fn new(_path: &Path) -> io::Result<Alarm> {
            Ok(Alarm { at: BootInstant::ZERO })
        }

        pub(super) fn clear(&self) {}

        pub(super) fn set(&mut self, at: BootInstant) -> io::Result<()> {
            self.at = at;
            Ok(())
        }

        pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
            [].into_iter()
        }

        pub(super) fn timeout(&self, now: BootInstant) -> Option<Duration> {
            Some(self.at.since(now).min(POLL))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::lease_file::LeaseFileWriter;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::unix::fs::FileExt;

    const TOKEN: FencingToken = FencingToken(4);

    fn lease(dir: &Path, good_for: Duration) -> LeaseFileWriter {
        LeaseFileWriter::create(dir, &"e".parse().unwrap(), TOKEN, clock::now() + good_for).unwrap()
    }

    fn wait(watch: &DeadlineWatch) -> bool {
        let mut fds: Vec<_> = watch.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let limit = watch.timeout(clock::now()).unwrap_or(Duration::from_secs(20));
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        poll(&mut fds, Some(&limit)).unwrap() > 0
    }

    #[test]
    fn wakes_at_the_lead_before_the_deadline_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let lease = lease(dir.path(), Duration::from_millis(300));
        let due = clock::now() + Duration::from_millis(199);
        let mut watch = DeadlineWatch::new(lease.path(), TOKEN, Duration::from_millis(100)).unwrap();
        while !watch.is_over(clock::now()) {
            wait(&watch);
        }
        assert!(clock::now() >= due);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_end_of_a_term_wakes_it_at_once_and_is_final() {
        let dir = tempfile::tempdir().unwrap();
        let mut lease = lease(dir.path(), Duration::from_secs(3600));
        let mut watch = DeadlineWatch::new(lease.path(), TOKEN, Duration::ZERO).unwrap();
        assert!(!watch.is_over(clock::now()));
        lease.end().unwrap();
        assert!(wait(&watch), "the write did not wake the poll");
        assert!(watch.is_over(clock::now()));
    }

    #[test]
    fn a_renewal_moves_the_moment() {
        let dir = tempfile::tempdir().unwrap();
        let mut lease = lease(dir.path(), Duration::from_secs(5));
        let mut watch = DeadlineWatch::new(lease.path(), TOKEN, Duration::ZERO).unwrap();
        let now = clock::now();
        assert!(!watch.is_over(now));
        lease.set_deadline(now + Duration::from_secs(20)).unwrap();
        assert!(!watch.is_over(now + Duration::from_secs(10)));
        assert!(watch.is_over(now + Duration::from_secs(20)));
    }

    #[test]
    fn a_torn_word_leaves_the_last_deadline_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let lease = lease(dir.path(), Duration::from_secs(5));
        let mut watch = DeadlineWatch::new(lease.path(), TOKEN, Duration::ZERO).unwrap();
        let now = clock::now();
        assert!(!watch.is_over(now));
        let file = std::fs::File::options().write(true).open(lease.path()).unwrap();
        file.write_all_at(&[0xff; 8], 16).unwrap();
        assert!(!watch.is_over(now + Duration::from_secs(4)));
        assert!(watch.is_over(now + Duration::from_secs(6)), "the torn word is later, but it proves nothing");
    }

    #[test]
    fn a_truncated_file_or_another_terms_token_is_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let lease = lease(dir.path(), Duration::from_secs(3600));
        let mut other = DeadlineWatch::new(lease.path(), FencingToken(5), Duration::ZERO).unwrap();
        assert!(other.is_over(clock::now()));
        let mut watch = DeadlineWatch::new(lease.path(), TOKEN, Duration::ZERO).unwrap();
        assert!(!watch.is_over(clock::now()));
        std::fs::File::options().write(true).open(lease.path()).unwrap().set_len(16).unwrap();
        assert!(watch.is_over(clock::now()));
    }
}
