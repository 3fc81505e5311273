//! A guardian's life: what its parent orders, the start of the command, the watch over its deadline.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use incumbent_core::{BootInstant, FencingToken};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::killing::{FIRST_PAUSE, Killing};
use super::wait_for;
use crate::cgroup::Cgroup;
use crate::channel::Channel;
use crate::clock;
use crate::leftover::{self, Leftover};
use crate::message::{
    FromGuardian, GuardianEvent, KillCause, Launch, StartFailure, StartFailureKind, ToGuardian,
};
use crate::watch::DeadlineWatch;

/// How long the kernel gets to empty the cgroups that earlier terms left, before the command is given up.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(5);
/// How long the launcher may take to become the command, before it is taken for frozen.
const LAUNCH_PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Guardian {
    pub(super) parent: Channel,
    /// Until the command is executed.
    launcher: Option<Channel>,
    /// When it counts as frozen, once it was told what to become.
    launched_by: Option<BootInstant>,
    /// Readable when a child changed its state.
    children: UnixStream,
    /// The launcher, later the command; also the number of its group and session.
    pub(super) main: Pid,
    pub(super) main_reaped: bool,
    pub(super) started: bool,
    start_failed: bool,
    pub(super) pending: Option<Pending>,
    pub(super) cgroup: Option<Cgroup>,
    watch: Option<DeadlineWatch>,
    pub(super) lease_file: Option<PathBuf>,
    held: Vec<OwnedFd>,
    pub(super) killing: Option<Killing>,
}

/// A command that may start once nothing is left of earlier terms.
pub(super) struct Pending {
    launch: Launch,
    fds: Vec<OwnedFd>,
    leftovers: Vec<Leftover>,
    give_up_at: BootInstant,
}

impl Guardian {
    /// Tells the parent that it is ready.
    pub(super) fn new(
        parent: Channel,
        launcher: Channel,
        children: UnixStream,
        main: Pid,
        cgroup: Option<Cgroup>,
    ) -> io::Result<Guardian> {
        let mut guardian = Guardian {
            parent,
            launcher: Some(launcher),
            launched_by: None,
            children,
            main,
            main_reaped: false,
            started: false,
            start_failed: false,
            pending: None,
            cgroup,
            watch: None,
            lease_file: None,
            held: Vec::new(),
            killing: None,
        };
        let cgroup = guardian.cgroup.as_ref().map(|cgroup| cgroup.path().to_owned());
        let ready = FromGuardian::Ready { pid: main.as_raw_nonzero().get(), cgroup };
        guardian.parent.send(&ready, Vec::new())?;
        Ok(guardian)
    }

    pub(super) fn run(&mut self) -> io::Result<()> {
        loop {
            // The deadline comes before anything else: this may be the first moment after a freeze.
            let now = clock::now();
            if self.killing.is_none() && self.watch.as_mut().is_some_and(|watch| watch.is_over(now)) {
                self.kill(Some(KillCause::Deadline));
            }
            self.reap();
            self.hear_launcher();
            self.hear_parent();
            self.launch();
            if self.killing.is_some() && self.finish_killing() {
                return Ok(());
            }
            self.wait()?;
        }
    }

    pub(super) fn tell(&mut self, event: GuardianEvent) {
        // It can only fail for its size, and none of these is large.
        let _ = self.parent.send(&FromGuardian::Event(event), Vec::new());
    }

    /// Waits until something happens, or it is time to look again.
    fn wait(&mut self) -> io::Result<()> {
        let now = clock::now();
        let sweep = self.killing.as_ref().map(|killing| killing.next_sweep.since(now));
        let watched = self.watch.as_ref().filter(|_| self.killing.is_none());
        let pending = self.pending.as_ref().map(|_| FIRST_PAUSE);
        let launched = self.launched_by.filter(|_| self.killing.is_none()).map(|by| by.since(now));
        let watch = watched.and_then(|watch| watch.timeout(now));
        let timeout = [sweep, pending, launched, watch].into_iter().flatten().min();

        let mut fds: Vec<(BorrowedFd<'_>, PollFlags)> = vec![(self.children.as_fd(), PollFlags::IN)];
        if !self.parent.is_closed() {
            fds.push((self.parent.as_fd(), self.parent.interest()));
        }
        fds.extend(self.launcher.iter().map(|launcher| (launcher.as_fd(), launcher.interest())));
        fds.extend(watched.into_iter().flat_map(DeadlineWatch::fds).map(|fd| (fd, PollFlags::IN)));
        wait_for(&fds, timeout)?;

        while (&self.children).read(&mut [0; 64]).is_ok_and(|len| len > 0) {}
        self.parent.flush();
        self.launcher.iter_mut().for_each(Channel::flush);
        Ok(())
    }

    fn hear_parent(&mut self) {
        loop {
            match self.parent.receive() {
                Ok(Some(message)) => self.obey(message),
                Ok(None) if !self.parent.is_closed() => return,
                // The end, or bytes that no parent of ours sends.
                Ok(None) | Err(_) => {
                    if self.killing.is_none() {
                        self.kill(Some(KillCause::ParentLost));
                    }
                    return;
                }
            }
        }
    }

    fn obey(&mut self, message: ToGuardian) {
        match message {
            ToGuardian::Kill if self.killing.is_none() => self.kill(Some(KillCause::Requested)),
            ToGuardian::Start { launch, lease_file, token, kill_lead_ns } if self.killing.is_none() => {
                let fds = self.parent.take_fds();
                // All but stdin are locks, which this process holds too, whatever the command closes.
                self.held = fds.iter().skip(1).filter_map(|fd| fd.try_clone().ok()).collect();
                let lead = Duration::from_nanos(kill_lead_ns);
                let watch = DeadlineWatch::new(&lease_file, FencingToken(token), lead);
                // A lease file that cannot be watched is a term that is over.
                let Some(watch) =
                    watch.ok().and_then(|mut watch| (!watch.is_over(clock::now())).then_some(watch))
                else {
                    self.lease_file = Some(lease_file);
                    return self.kill(Some(KillCause::Deadline));
                };
                self.watch = Some(watch);
                // Once more: this process may have waited for long.
                self.cgroup.iter().filter_map(|cgroup| cgroup.path().parent()).for_each(leftover::kill_in);
                let leftovers = leftover::kill_for(&lease_file);
                if let Some(cgroup) = &self.cgroup {
                    // Without it what this process may leave is found by a guardian with the same base only.
                    let _ = leftover::link(&lease_file, cgroup);
                }
                self.lease_file = Some(lease_file);
                let give_up_at = clock::now() + LEFTOVER_PATIENCE;
                self.pending = Some(Pending { launch, fds, leftovers, give_up_at });
            }
            ToGuardian::Ping => {
                // It may have been removed by hand, or with its folder.
                if let (Some(lease_file), Some(cgroup)) = (&self.lease_file, &self.cgroup) {
                    let _ = leftover::link(lease_file, cgroup);
                }
                // It can only fail for its size.
                let _ = self.parent.send(&FromGuardian::Pong, Vec::new());
            }
            ToGuardian::Kill | ToGuardian::Start { .. } => {}
        }
    }

    /// Has the launcher become the command, once nothing is left of earlier terms.
    fn launch(&mut self) {
        if self.killing.is_none() && self.launched_by.is_some_and(|by| clock::now() >= by) {
            self.launched_by = None;
            self.kill(Some(KillCause::LauncherSilent));
        }
        let Some(mut pending) = self.pending.take() else { return };
        pending.leftovers.retain(|leftover| !leftover.is_gone());
        if pending.leftovers.is_empty() {
            if let Some(launcher) = &mut self.launcher {
                // Whoever has stopped it while it waited has not stopped the command. Woken before, or a command that stops
                // itself at once would be woken too.
                let _ = kill_process(self.main, Signal::CONT);
                let _ = launcher.send(&pending.launch, pending.fds);
                self.launched_by = Some(clock::now() + LAUNCH_PATIENCE);
            }
        } else if clock::now() < pending.give_up_at {
            self.pending = Some(pending);
        } else {
            let pids: Vec<_> = pending.leftovers.iter().flat_map(Leftover::pids).collect();
            let message = format!(
                "an earlier run whose guardian is dead or frozen left processes that cannot be killed: {pids:?}"
            );
            self.start_failed = true;
            let failure = StartFailure::new(StartFailureKind::Leftovers, &Errno::BUSY.into(), message);
            self.tell(GuardianEvent::StartFailed(failure));
            self.kill(None);
        }
    }

    /// Learns whether the command was executed.
    pub(super) fn hear_launcher(&mut self) {
        let Some(launcher) = &mut self.launcher else { return };
        match launcher.receive::<StartFailure>() {
            Ok(Some(failure)) => {
                self.start_failed = true;
                self.tell(GuardianEvent::StartFailed(failure));
            }
            Ok(None) if !launcher.is_closed() => return,
            Ok(None) | Err(_) => {
                let was_sent = self.launched_by.is_some();
                self.started = was_sent && !self.start_failed && self.killing.is_none();
                if self.started {
                    self.tell(GuardianEvent::Started { pid: self.main.as_raw_nonzero().get() });
                }
            }
        }
        self.launcher = None;
        self.launched_by = None;
    }
}
