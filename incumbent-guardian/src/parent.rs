//! The parent's side: starts a guardian, tells it what to do, and takes its place if it dies or is frozen.
//!
//! A thread of its own per guardian delivers the events and watches the deadline too: at the deadline both kill.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use incumbent_core::{BootInstant, FencingToken};
use rustix::event::PollFlags;
#[cfg(not(target_os = "linux"))]
use rustix::process::{Pid, Signal};

use crate::cgroup::Cgroup;
use crate::channel::Channel;
use crate::message::{ExitStatus, FromGuardian, GuardianEvent, KillCause, Launch, ToGuardian};
use crate::process::wait_for;
use crate::tree::StartTime;
use crate::watch::DeadlineWatch;
use crate::{SUBCOMMAND, clock, leftover, tree};

/// How long a guardian may take to say that it is killing, before it is taken for frozen.
const ANSWER: Duration = Duration::from_millis(250);
/// How long it may be silent while it is killing.
const SILENCE: Duration = Duration::from_secs(2);
/// How often what still lives is reported.
const REPORT_EVERY: Duration = Duration::from_millis(500);
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The guardians of this process that are not reaped yet. Locked while one is started and while orphans are looked
/// for, so that none is taken for an orphan.
static GUARDIANS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn guardians() -> MutexGuard<'static, Vec<u32>> {
    GUARDIANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What to start, and under which term.
pub struct StartSpec {
    /// The command and its arguments, executed directly; looked for in `PATH` if it has no slash.
    pub argv: Vec<OsString>,
    /// Added to the environment of this process, as it was when the guardian was spawned.
    pub env: Vec<(OsString, OsString)>,
    /// The working directory; that of this process if `None`.
    pub cwd: Option<PathBuf>,
    /// The term's lease file, already written.
    pub lease_file: PathBuf,
    /// The term's token, as the lease file has it.
    pub token: FencingToken,
    /// How long before the deadline the tree is killed, so that it is dead at the deadline.
    pub kill_lead: Duration,
    /// Descriptors that the guardian and the command with all its children inherit and hold open: locks. At most 15.
    pub hold: Vec<OwnedFd>,
}

impl fmt::Debug for StartSpec {
    /// Without arguments and values of the environment, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartSpec")
            .field("program", &self.argv.first())
            .field("env", &self.env.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("cwd", &self.cwd)
            .field("lease_file", &self.lease_file)
            .field("token", &self.token)
            .field("kill_lead", &self.kill_lead)
            .field("hold", &self.hold)
            .finish_non_exhaustive()
    }
}

/// A guardian that waits for a command, or watches it. It serves one command; spawn another for the next term.
///
/// Dropping it kills the tree and does not wait for that: its events go on until [`GuardianEvent::Empty`].
/// If this process dies, the guardian kills the tree.
#[derive(Debug)]
pub struct Guardian {
    pid: u32,
    commands: Sender<Order>,
    wake: UnixStream,
}

enum Order {
    Start(StartSpec),
    Signal(i32),
    Kill,
}

impl Guardian {
    /// Starts a guardian, which then waits; and the thread that calls `on_event`, which must not block.
    ///
    /// `program` is a program whose hidden subcommand [`SUBCOMMAND`](crate::SUBCOMMAND) calls
    /// [`guardian_main`](crate::guardian_main); see [`own_program`](crate::own_program).
    ///
    /// This process becomes a child subreaper. It must not start processes in sessions of their own: if a guardian dies,
    /// these would be taken for what it left, and killed.
    ///
    /// # Errors
    /// If the program cannot be started, or the system refuses a socket, a thread or the subreaper.
    pub fn spawn(
        program: &Path,
        on_event: impl FnMut(GuardianEvent) + Send + 'static,
    ) -> io::Result<Guardian> {
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let (ours, theirs) = UnixStream::pair()?;
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let channel_to_guardian = Channel::new(ours)?;
        let (commands, orders) = channel();
        let name = std::env::args_os().next().unwrap_or_else(|| program.into());

        let mut alive = guardians();
        let child = Command::new(program)
            .arg0(name)
            .arg(SUBCOMMAND)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()?;
        let pid = child.id();
        alive.push(pid);
        drop(alive);

        let supervisor = Supervisor {
            since: tree::start_time(pid),
            channel: channel_to_guardian,
            child,
            woken,
            orders,
            on_event: Box::new(on_event),
            watch: None,
            lease_file: None,
            main: None,
            start_sent: false,
            started: false,
            cgroup: None,
            cause: KillCause::GuardianLost,
            cause_told: false,
            answer_by: None,
        };
        std::thread::Builder::new().name("guardian".into()).spawn(move || supervisor.run())?;
        Ok(Guardian { pid, commands, wake })
    }

    /// The pid of the guardian process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Starts the command. The answer is [`GuardianEvent::Started`] or [`GuardianEvent::StartFailed`]; signals that are
    /// sent meanwhile reach the command once it runs. A second start is ignored.
    pub fn start(&self, spec: StartSpec) {
        self.order(Order::Start(spec));
    }

    /// Passes a signal on to the command's process group. `SIGTERM` also wakes a stopped command. `SIGTSTP` arrives as
    /// `SIGSTOP`, since the system ignores it in a session without a terminal.
    pub fn signal(&self, signal: i32) {
        self.order(Order::Signal(signal));
    }

    /// Kills the whole tree, now. [`GuardianEvent::Empty`] tells when nothing is left.
    pub fn kill(&self) {
        self.order(Order::Kill);
    }

    fn order(&self, order: Order) {
        // Once the tree is empty the thread has ended, and there is nobody to order about.
        if self.commands.send(order).is_ok() {
            // A full pipe wakes as well.
            let _ = (&self.wake).write(&[1]);
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The thread's state.
struct Supervisor {
    channel: Channel,
    child: Child,
    /// When the guardian started: what is older is not of its tree.
    since: StartTime,
    woken: UnixStream,
    orders: Receiver<Order>,
    on_event: Box<dyn FnMut(GuardianEvent) + Send>,
    /// None before the start and once it has killed.
    watch: Option<DeadlineWatch>,
    lease_file: Option<PathBuf>,
    main: Option<i32>,
    start_sent: bool,
    /// The command runs, as far as is known.
    started: bool,
    cgroup: Option<Cgroup>,
    /// What this side knows of why the tree is killed, until the guardian has told it.
    cause: KillCause,
    cause_told: bool,
    /// Once the guardian has to kill: when it is taken for frozen.
    answer_by: Option<BootInstant>,
}

impl Supervisor {
    fn run(mut self) {
        loop {
            // First the deadline: this may be the first moment after a freeze.
            let now = clock::now();
            if self.watch.as_mut().is_some_and(|watch| watch.is_over(now)) {
                self.watch = None;
                self.kill_at_deadline();
            }
            self.take_orders();
            if self.hear() {
                return self.bury();
            }
            let silent = self.answer_by.is_some_and(|answer_by| clock::now() >= answer_by);
            if self.channel.is_closed() || silent {
                self.take_over();
                return self.bury();
            }
            self.wait();
        }
    }

    fn wait(&mut self) {
        let now = clock::now();
        let answer = self.answer_by.map(|answer_by| answer_by.since(now));
        let timeout =
            [answer, self.watch.as_ref().and_then(|watch| watch.timeout(now))].into_iter().flatten().min();
        let mut fds =
            vec![(self.woken.as_fd(), PollFlags::IN), (self.channel.as_fd(), self.channel.interest())];
        fds.extend(self.watch.iter().flat_map(DeadlineWatch::fds).map(|fd| (fd, PollFlags::IN)));
        if wait_for(&fds, timeout).is_err() {
            std::thread::sleep(FIRST_PAUSE);
        }
        while (&self.woken).read(&mut [0; 64]).is_ok_and(|len| len > 0) {}
        self.channel.flush();
    }

    fn take_orders(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Start(spec) => self.start(spec),
                Order::Signal(signal) => self.tell(&ToGuardian::Signal { signal }, Vec::new()),
                Order::Kill => self.order_kill(KillCause::Requested),
            }
        }
    }

    fn start(&mut self, spec: StartSpec) {
        if std::mem::replace(&mut self.start_sent, true) {
            return;
        }
        let stdin = rustix::stdio::stdin().try_clone_to_owned();
        let watch = DeadlineWatch::new(&spec.lease_file, spec.token, spec.kill_lead);
        let (Ok(stdin), Ok(watch)) = (stdin, watch) else {
            // Without a deadline to watch nothing may start.
            return self.order_kill(KillCause::Deadline);
        };
        self.watch = Some(watch);
        self.lease_file = Some(spec.lease_file.clone());
        let fds = std::iter::once(stdin).chain(spec.hold).collect();
        let message = ToGuardian::Start {
            launch: Launch { argv: spec.argv, env: spec.env, cwd: spec.cwd },
            lease_file: spec.lease_file,
            token: spec.token.0,
            kill_lead_ns: u64::try_from(spec.kill_lead.as_nanos()).unwrap_or(u64::MAX),
        };
        self.tell(&message, fds);
    }

    fn tell(&mut self, message: &ToGuardian, fds: Vec<OwnedFd>) {
        if self.channel.send(message, fds).is_err() {
            // A command that cannot be passed on cannot be started.
            self.order_kill(KillCause::Requested);
        }
    }

    /// From now on the guardian has to answer.
    fn order_kill(&mut self, cause: KillCause) {
        if self.cause == KillCause::GuardianLost {
            self.cause = cause;
        }
        let _ = self.channel.send(&ToGuardian::Kill, Vec::new());
        self.answer_by.get_or_insert_with(|| clock::now() + ANSWER);
    }

    /// Delivers what the guardian says. True if the tree is empty.
    fn hear(&mut self) -> bool {
        loop {
            let event = match self.channel.receive() {
                Ok(Some(FromGuardian::Event(event))) => event,
                Ok(Some(FromGuardian::Ready { pid, cgroup })) => {
                    self.main = Some(pid);
                    self.cgroup = cgroup.map(Cgroup::existing);
                    continue;
                }
                Ok(None) => return false,
                Err(_) => {
                    // Not what a guardian of ours says: it cannot be relied on.
                    self.answer_by = Some(BootInstant::ZERO);
                    return false;
                }
            };
            match event {
                GuardianEvent::Started { .. } => self.started = true,
                GuardianEvent::StartFailed(_) => {}
                GuardianEvent::Killing { .. } => {
                    self.cause_told = true;
                    self.answer_by = Some(clock::now() + SILENCE);
                }
                GuardianEvent::Exited(_) => {
                    self.started = false;
                    self.answer_by = Some(clock::now() + SILENCE);
                }
                GuardianEvent::NotEmpty { .. } => self.answer_by = Some(clock::now() + SILENCE),
                GuardianEvent::Empty => {
                    (self.on_event)(GuardianEvent::Empty);
                    return true;
                }
            }
            (self.on_event)(event);
        }
    }

    /// At the deadline the guardian kills, and so does this side: one of them may be frozen.
    fn kill_at_deadline(&mut self) {
        self.order_kill(KillCause::Deadline);
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        // An error here is met again when the guardian does not answer.
        let _ = tree::kill_below(self.child.id());
    }

    /// The guardian is dead or frozen: does its work, until nothing of the tree is left.
    fn take_over(&mut self) {
        if !self.cause_told {
            (self.on_event)(GuardianEvent::Killing { cause: self.cause });
        }
        let mut pause = FIRST_PAUSE;
        let mut next_report = clock::now() + REPORT_EVERY;
        let mut empty_rounds = 0;
        loop {
            // A process that looks at nothing twice in a row has missed nothing that could still be forked.
            let alive = self.kill_everything();
            empty_rounds = if alive.as_ref().is_ok_and(Vec::is_empty) { empty_rounds + 1 } else { 0 };
            if empty_rounds == 2 {
                break;
            }
            if clock::now() >= next_report {
                next_report = clock::now() + REPORT_EVERY;
                (self.on_event)(GuardianEvent::NotEmpty { pids: alive.unwrap_or_default() });
            }
            if empty_rounds == 0 {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        if let Some(cgroup) = &self.cgroup {
            let _ = cgroup.remove();
        }
        self.lease_file.iter().for_each(|lease_file| leftover::unlink(lease_file));
        (self.on_event)(GuardianEvent::Empty);
    }

    /// One round: the tree first, so that nobody wakes it, then the guardian, then what both left to us.
    fn kill_everything(&mut self) -> io::Result<Vec<i32>> {
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        let mut alive = Vec::new();
        if self.child.try_wait()?.is_none() {
            alive.extend(tree::kill_below(self.child.id())?);
            alive.push(self.child.id() as i32);
            self.child.kill()?;
        }
        let guardians = guardians();
        alive.extend(tree::kill_orphans(&guardians, self.since)?);
        let reaped = tree::reap_orphans(&guardians, self.since)?;
        drop(guardians);
        for (pid, status) in reaped {
            let signal = status.terminating_signal().map(ExitStatus::Signal);
            if let Some(status) = signal.or(status.exit_status().map(ExitStatus::Code))
                && self.started
                && Some(pid) == self.main
            {
                self.started = false;
                (self.on_event)(GuardianEvent::Exited(status));
            }
        }
        alive.extend(self.cgroup.iter().filter(|cgroup| !cgroup.is_empty()).flat_map(Cgroup::pids));
        #[cfg(not(target_os = "linux"))]
        alive.extend(self.kill_group());
        Ok(alive)
    }

    /// Where orphans do not come to us, the group is what can be killed.
    #[cfg(not(target_os = "linux"))]
    fn kill_group(&self) -> Option<i32> {
        let main = self.main?;
        let killed = rustix::process::kill_process_group(Pid::from_raw(main)?, Signal::KILL);
        killed.is_ok().then_some(main)
    }

    /// Reaps the guardian, which ends once it has cleaned up behind itself. One that does not is frozen.
    fn bury(mut self) {
        let _ = wait_for(&[(self.channel.as_fd(), PollFlags::IN)], Some(SILENCE));
        let _ = self.child.kill();
        let _ = self.child.wait();
        guardians().retain(|pid| *pid != self.child.id());
    }
}
