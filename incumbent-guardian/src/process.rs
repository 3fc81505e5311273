//! The guardian process: starts the command, watches the deadline, kills the whole tree and proves it empty.
//!
//! One thread, one poll loop, no runtime, no network. It is the subreaper of everything below it, so *no child left* is the
//! exact proof that the tree is empty: a process of the tree has a living ancestor in the tree, or is a child of ours.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use incumbent_core::{BootInstant, FencingToken};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process_group, setsid, wait};
use rustix::stdio::{dup2_stdin, stdin};
use signal_hook::consts::signal::{
    SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2,
};

use crate::cgroup::{self, Cgroup};
use crate::channel::Channel;
use crate::leftover::{self, Leftover};
use crate::message::{
    ExitStatus, FromGuardian, GuardianEvent, KillCause, Launch, StartFailure, StartFailureKind, ToGuardian,
};
use crate::signals::is_ignored;
use crate::watch::DeadlineWatch;
use crate::{clock, tree};

/// How long processes get to die before they are looked for again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How long the kernel gets to empty a cgroup before its processes are looked for.
const CGROUP_PAUSE: Duration = Duration::from_millis(10);
/// How often what still lives is reported; also how the parent knows that this process is not frozen.
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// How long the kernel gets to empty the cgroups that earlier terms left, before the command is given up.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(5);

/// The main function of the guardian process: what the hidden subcommand [`SUBCOMMAND`](crate::SUBCOMMAND) calls, first
/// thing, before any thread is started. `arguments` are those after the subcommand; there are none.
///
/// Not for people: standard input must be the socket that [`Guardian::spawn`](crate::Guardian::spawn) made.
pub fn guardian_main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    if arguments.into_iter().next().is_some() || rustix::net::sockopt::socket_type(stdin()).is_err() {
        eprintln!("incumbent: this subcommand is started by incumbent itself");
        return ExitCode::from(2);
    }
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("incumbent: guardian: {error}");
            ExitCode::from(125)
        }
    }
}

fn start() -> io::Result<()> {
    // Out of the terminal's reach and of signals to the parent's group: only the parent, and SIGKILL, decide.
    let _ = setsid();
    #[cfg(target_os = "linux")]
    {
        rustix::process::set_child_subreaper(Some(getpid()))?;
        // For people who look at the processes; else it is named after the path that was executed.
        let _ = rustix::thread::set_name(c"guardian");
    }
    // Handlers, not SIG_IGN, which the command would inherit, as it does what is ignored already.
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2] {
        if !is_ignored(signal) {
            signal_hook::flag::register(signal, Arc::clone(&ignored))?;
        }
    }
    let (children, wake) = UnixStream::pair()?;
    children.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(SIGCHLD, wake)?;

    let parent = Channel::new(UnixStream::from(stdin().try_clone_to_owned()?))?;
    dup2_stdin(fs::File::open("/dev/null")?)?;

    let (launcher, ours) = UnixStream::pair()?;
    let guardian = getpid();
    let cgroup = cgroup::base().and_then(|base| {
        leftover::kill_in(&base);
        Cgroup::create(&base)
    });
    let Some((main, cgroup)) = fork(cgroup.ok())? else {
        drop((parent, children, ours));
        crate::launch::launcher(Channel::new(launcher)?, guardian);
        return Ok(());
    };
    drop(launcher);
    let mut guardian = Guardian {
        parent,
        launcher: Some(Channel::new(ours)?),
        children,
        main,
        main_reaped: false,
        started: false,
        start_failed: false,
        early_signals: Vec::new(),
        pending: None,
        cgroup,
        watch: None,
        lease_file: None,
        held: Vec::new(),
        killing: None,
    };
    let cgroup = guardian.cgroup.as_ref().map(|cgroup| cgroup.path().to_owned());
    guardian.parent.send(&FromGuardian::Ready { pid: main.as_raw_nonzero().get(), cgroup }, Vec::new())?;
    guardian.run()
}

/// Forks into the cgroup, or without it where that is refused. `None` is the child, which keeps no lock on it.
fn fork(cgroup: Option<Cgroup>) -> io::Result<Option<(Pid, Option<Cgroup>)>> {
    if let Some(cgroup) = cgroup {
        match cgroup.open().and_then(|dir| crate::fork::fork(Some(&dir))) {
            Ok(main) => return Ok(main.map(|main| (main, Some(cgroup)))),
            Err(_) => cgroup.remove()?,
        }
    }
    Ok(crate::fork::fork(None)?.map(|main| (main, None)))
}

struct Guardian {
    parent: Channel,
    /// Until the command is executed.
    launcher: Option<Channel>,
    /// Readable when a child changed its state.
    children: UnixStream,
    /// The launcher, later the command; also the number of its group and session.
    main: Pid,
    main_reaped: bool,
    started: bool,
    start_failed: bool,
    /// Signals that arrived while the command was starting.
    early_signals: Vec<i32>,
    pending: Option<Pending>,
    cgroup: Option<Cgroup>,
    watch: Option<DeadlineWatch>,
    lease_file: Option<PathBuf>,
    held: Vec<OwnedFd>,
    killing: Option<Killing>,
}

/// A command that may start once nothing is left of earlier terms.
struct Pending {
    launch: Launch,
    fds: Vec<OwnedFd>,
    leftovers: Vec<Leftover>,
    give_up_at: BootInstant,
}

struct Killing {
    next_sweep: BootInstant,
    pause: Duration,
    next_report: BootInstant,
}

impl Guardian {
    fn run(&mut self) -> io::Result<()> {
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

    fn tell(&mut self, event: GuardianEvent) {
        // It can only fail for its size, and none of these is large.
        let _ = self.parent.send(&FromGuardian::Event(event), Vec::new());
    }

    /// Waits until something happens, or it is time to look again.
    fn wait(&mut self) -> io::Result<()> {
        let now = clock::now();
        let sweep = self.killing.as_ref().map(|killing| killing.next_sweep.since(now));
        let watched = self.watch.as_ref().filter(|_| self.killing.is_none());
        let pending = self.pending.as_ref().map(|_| FIRST_PAUSE);
        let timeout =
            [sweep, pending, watched.and_then(|watch| watch.timeout(now))].into_iter().flatten().min();

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
                // Once more: this process may have waited for long, and a lease file lies where another run would not look.
                self.cgroup.iter().filter_map(|cgroup| cgroup.path().parent()).for_each(leftover::kill_in);
                let leftovers = leftover::kill_linked_beside(&lease_file);
                if let Some(cgroup) = &self.cgroup {
                    // Without it what this process may leave is found by a guardian with the same base only.
                    let _ = leftover::link(&lease_file, cgroup);
                }
                self.lease_file = Some(lease_file);
                let give_up_at = clock::now() + LEFTOVER_PATIENCE;
                self.pending = Some(Pending { launch, fds, leftovers, give_up_at });
            }
            ToGuardian::Signal { signal } if !self.started => self.early_signals.push(signal),
            ToGuardian::Signal { signal } => self.signal(signal),
            ToGuardian::Ping => {
                // It can only fail for its size.
                let _ = self.parent.send(&FromGuardian::Pong, Vec::new());
            }
            ToGuardian::Kill | ToGuardian::Start { .. } => {}
        }
    }

    /// Has the launcher become the command, once nothing is left of earlier terms.
    fn launch(&mut self) {
        let Some(mut pending) = self.pending.take() else { return };
        pending.leftovers.retain(|leftover| !leftover.is_gone());
        if pending.leftovers.is_empty() {
            if let Some(launcher) = &mut self.launcher {
                let _ = launcher.send(&pending.launch, pending.fds);
            }
        } else if clock::now() < pending.give_up_at {
            self.pending = Some(pending);
        } else {
            let pids: Vec<_> = pending.leftovers.iter().flat_map(Leftover::pids).collect();
            let message = format!(
                "an earlier run whose guardian is dead or frozen left processes that cannot be killed: {pids:?}"
            );
            self.start_failed = true;
            let failure = StartFailure::new(StartFailureKind::Other, &Errno::BUSY.into(), message);
            self.tell(GuardianEvent::StartFailed(failure));
            self.kill(None);
        }
    }

    /// Learns whether the command was executed.
    fn hear_launcher(&mut self) {
        let Some(launcher) = &mut self.launcher else { return };
        match launcher.receive::<StartFailure>() {
            Ok(Some(failure)) => {
                self.start_failed = true;
                self.tell(GuardianEvent::StartFailed(failure));
            }
            Ok(None) if !launcher.is_closed() => return,
            Ok(None) | Err(_) => {
                let was_sent = self.watch.is_some() && self.pending.is_none();
                self.started = was_sent && !self.start_failed && self.killing.is_none();
                if self.started {
                    self.tell(GuardianEvent::Started { pid: self.main.as_raw_nonzero().get() });
                    for signal in std::mem::take(&mut self.early_signals) {
                        self.signal(signal);
                    }
                }
            }
        }
        self.launcher = None;
    }

    /// Passes a signal on to the command's group.
    fn signal(&self, signal: i32) {
        // Until it is reaped, the number cannot belong to anybody else.
        if self.main_reaped {
            return;
        }
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        // A session without a terminal ignores it, unless the command handles it.
        let signal = if signal == Signal::TSTP { Signal::STOP } else { signal };
        let _ = kill_process_group(self.main, signal);
        if signal == Signal::TERM {
            // A stopped command would not hear that it is to end.
            let _ = kill_process_group(self.main, Signal::CONT);
        }
    }

    /// Begins to kill the tree.
    fn kill(&mut self, cause: Option<KillCause>) {
        self.pending = None;
        if !self.main_reaped {
            let _ = kill_process_group(self.main, Signal::STOP);
        }
        let now = clock::now();
        let next_sweep = self.cgroup.as_ref().map_or(now, |cgroup| {
            cgroup.kill();
            now + CGROUP_PAUSE
        });
        self.killing = Some(Killing { next_sweep, pause: FIRST_PAUSE, next_report: now + REPORT_EVERY });
        if let Some(cause) = cause {
            self.tell(GuardianEvent::Killing { cause });
        }
    }

    /// Reaps what has ended. True if there is no child left, dead or alive.
    fn reap(&mut self) -> bool {
        loop {
            let (pid, status) = match wait(WaitOptions::NOHANG) {
                Ok(Some(reaped)) => reaped,
                Ok(None) => return false,
                Err(Errno::INTR) => continue,
                Err(error) => return error == Errno::CHILD,
            };
            if pid == self.main {
                self.main_reaped = true;
                // What the launcher said last comes before its end.
                self.hear_launcher();
                let signal = status.terminating_signal().map(ExitStatus::Signal);
                if let Some(status) = signal.or(status.exit_status().map(ExitStatus::Code))
                    && self.started
                {
                    self.tell(GuardianEvent::Exited(status));
                }
                if self.killing.is_none() {
                    self.kill(None);
                }
            }
        }
    }

    /// Goes on killing. True when the tree is proven empty and the parent knows it.
    fn finish_killing(&mut self) -> bool {
        let no_child = self.reap();
        #[cfg(not(target_os = "linux"))]
        let no_child = no_child && kill_process_group(self.main, Signal::KILL).is_err();
        if no_child && self.cgroup.as_ref().is_none_or(Cgroup::is_empty) {
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

pub(crate) fn wait_for(fds: &[(BorrowedFd<'_>, PollFlags)], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout
        .map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
    let mut fds: Vec<_> = fds.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
