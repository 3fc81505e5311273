//! How a guardian kills the tree, and proves that nothing of it is left.

use std::fs;
use std::time::Duration;

use incumbent_core::BootInstant;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions, kill_process_group, wait};
use std::os::fd::AsFd;

use super::life::Guardian;
use super::wait_for;
use crate::cgroup::Cgroup;
use crate::message::{ExitStatus, GuardianEvent, KillCause};
use crate::{clock, leftover, tree};

/// How long processes get to die before they are looked for again, at first and at most.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How long the kernel gets to empty a cgroup before its processes are looked for.
const CGROUP_PAUSE: Duration = Duration::from_millis(10);
/// How often what still lives is reported; also how the parent knows that this process is not frozen.
const REPORT_EVERY: Duration = Duration::from_millis(500);

pub(super) struct Killing {
    pub(super) next_sweep: BootInstant,
    pause: Duration,
    next_report: BootInstant,
}

impl Killing {
    fn begin(now: BootInstant) -> Killing {
        Killing { next_sweep: now, pause: FIRST_PAUSE, next_report: now + REPORT_EVERY }
    }
}

impl Guardian {
    /// Begins to kill the tree.
    pub(super) fn kill(&mut self, cause: Option<KillCause>) {
        self.pending = None;
        if !self.main_reaped {
            let _ = kill_process_group(self.main, Signal::STOP);
        }
        let mut killing = Killing::begin(clock::now());
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
            killing.next_sweep = killing.next_sweep + CGROUP_PAUSE;
        }
        self.killing = Some(killing);
        if let Some(cause) = cause {
            self.tell(GuardianEvent::Killing { cause });
        }
    }

    /// Reaps what has ended. True if there is no child left, dead or alive.
    pub(super) fn reap(&mut self) -> bool {
        let mut ended = false;
        let no_child = loop {
            let (pid, status) = match wait(WaitOptions::NOHANG) {
                Ok(Some(reaped)) => reaped,
                Ok(None) => break false,
                Err(Errno::INTR) => continue,
                Err(error) => break error == Errno::CHILD,
            };
            if pid == self.main {
                ended = true;
                self.main_reaped = true;
                // What the launcher said last comes before its end.
                self.hear_launcher();
                let signal = status.terminating_signal().map(ExitStatus::Signal);
                if let Some(status) = signal.or(status.exit_status().map(ExitStatus::Code))
                    && self.started
                {
                    self.tell(GuardianEvent::Exited(status));
                }
            }
        };
        if ended && self.killing.is_none() {
            if no_child && self.is_cgroup_empty() {
                // It has left nothing to kill, and a successor may be waiting.
                self.pending = None;
                self.killing = Some(Killing::begin(clock::now()));
            } else {
                self.kill(None);
            }
        }
        no_child
    }

    fn is_cgroup_empty(&self) -> bool {
        self.cgroup.as_ref().is_none_or(Cgroup::is_empty)
    }

    /// Goes on killing. True when the tree is proven empty and the parent knows it.
    pub(super) fn finish_killing(&mut self) -> bool {
        let no_child = self.reap();
        #[cfg(not(target_os = "linux"))]
        let no_child = no_child && kill_process_group(self.main, Signal::KILL).is_err();
        if no_child && self.is_cgroup_empty() {
            return self.finish();
        }
        let Some(killing) = &mut self.killing else { return false };
        let now = clock::now();
        if now < killing.next_sweep {
            return false;
        }
        // Where /proc cannot tell what is alive, the group is all there is to kill; the proof does not rest on it.
        let mut alive = tree::kill_below(std::process::id()).unwrap_or_default();
        if !self.main_reaped {
            let _ = kill_process_group(self.main, Signal::KILL);
        }
        if let Some(cgroup) = &self.cgroup {
            // Again, since a process may have been moved in.
            cgroup.kill();
            alive.extend(cgroup.pids());
        }
        alive.sort_unstable();
        alive.dedup();
        killing.next_sweep = clock::now() + killing.pause;
        killing.pause = (killing.pause * 2).min(LONGEST_PAUSE);
        if now >= killing.next_report && self.parent.is_flushed() {
            killing.next_report = now + REPORT_EVERY;
            self.tell(GuardianEvent::NotEmpty { pids: alive });
        }
        false
    }

    fn finish(&mut self) -> bool {
        // First of all: somebody may be waiting for the election.
        self.tell(GuardianEvent::Empty);
        while !self.parent.is_flushed() {
            if wait_for(&[(self.parent.as_fd(), PollFlags::OUT)], None).is_err() {
                break;
            }
            self.parent.flush();
        }
        if let Some(cgroup) = self.cgroup.take() {
            let _ = cgroup.remove();
        }
        if let Some(lease_file) = &self.lease_file {
            leftover::unlink(lease_file);
            if self.parent.is_closed() {
                // Its writer is gone, and the path is never used again.
                let _ = fs::remove_file(lease_file);
            }
        }
        true
    }
}
