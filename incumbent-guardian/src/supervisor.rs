//! The parent's thread for one guardian: delivers its events, watches the deadline too (at the deadline both kill), and
//! takes its place if it dies or is frozen.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use incumbent_core::BootInstant;
use rustix::event::PollFlags;
#[cfg(not(target_os = "linux"))]
use rustix::process::{Pid, Signal};

use crate::cgroup::Cgroup;
use crate::channel::Channel;
use crate::group::{Group, Main};
use crate::message::{
    ExitStatus, FromGuardian, GuardianEvent, KillCause, Launch, StartFailure, StartFailureKind, ToGuardian,
};
use crate::parent::{Order, StartSpec, guardians};
use crate::process::wait_for;
use crate::pulse::{Beat, Pulse};
use crate::tree::StartTime;
use crate::watch::DeadlineWatch;
use crate::{clock, leftover, tree};

/// How long a guardian may take to say that it is killing, before it is taken for frozen.
const ANSWER: Duration = Duration::from_millis(250);
/// How long it may be silent while it is killing, and how long its own death may take.
const SILENCE: Duration = Duration::from_secs(2);
/// How often what still lives is reported.
const REPORT_EVERY: Duration = Duration::from_millis(500);
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The thread's state.
pub(crate) struct Supervisor {
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
    main: Option<Main>,
    group: Arc<Group>,
    start_sent: bool,
    /// The command runs, as far as is known.
    started: bool,
    cgroup: Option<Cgroup>,
    /// What this side knows of why the tree is killed, until the guardian has told it.
    cause: KillCause,
    cause_told: bool,
    /// From the start until the guardian has to kill.
    pulse: Option<Pulse>,
    /// Once the guardian has to kill: when it is taken for frozen.
    answer_by: Option<BootInstant>,
}

impl Supervisor {
    pub(crate) fn new(
        channel: Channel,
        child: Child,
        woken: UnixStream,
        orders: Receiver<Order>,
        group: Arc<Group>,
        on_event: Box<dyn FnMut(GuardianEvent) + Send>,
    ) -> Supervisor {
        Supervisor {
            since: tree::start_time(child.id()),
            channel,
            child,
            woken,
            orders,
            on_event,
            watch: None,
            lease_file: None,
            main: None,
            group,
            start_sent: false,
            started: false,
            cgroup: None,
            cause: KillCause::GuardianLost,
            cause_told: false,
            pulse: None,
            answer_by: None,
        }
    }

    pub(crate) fn run(mut self) {
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
            let overdue = self.answer_by.is_some_and(|answer_by| clock::now() >= answer_by);
            let is_dead = self.channel.is_closed();
            let is_silent = !is_dead && (overdue || self.is_frozen());
            if is_silent && self.cause == KillCause::GuardianLost {
                self.cause = KillCause::GuardianSilent;
            }
            if is_dead || is_silent {
                self.take_over();
                return self.bury();
            }
            self.wait();
        }
    }

    fn wait(&mut self) {
        let now = clock::now();
        let answer = self.answer_by.map(|answer_by| answer_by.since(now));
        let pulse = self.pulse.as_ref().map(|pulse| pulse.timeout(now));
        let watch = self.watch.as_ref().and_then(|watch| watch.timeout(now));
        let timeout = [answer, pulse, watch].into_iter().flatten().min();
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
                // What comes of it is the guardian's to tell.
                Order::Hurry => self.pulse.iter_mut().for_each(|pulse| pulse.hurry(clock::now())),
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
        let (stdin, watch) = match stdin.and_then(|stdin| Ok((stdin, watch?))) {
            Ok(both) => both,
            // A term without a lease file is over.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.order_kill(KillCause::Deadline);
            }
            // Without a deadline to watch nothing may start.
            Err(error) => {
                let failure = StartFailure::new(
                    StartFailureKind::Other,
                    &error,
                    format_args!("its deadline cannot be watched: {error}"),
                );
                (self.on_event)(GuardianEvent::StartFailed(failure));
                return self.order_kill(KillCause::Requested);
            }
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
        self.pulse = Some(Pulse::new(clock::now()));
        self.tell(&message, fds);
    }

    /// Whether the guardian does not answer, though it had the time to. Asks it if it is time to.
    fn is_frozen(&mut self) -> bool {
        match self.pulse.as_mut().map(|pulse| pulse.beat(clock::now())) {
            Some(Beat::Ask) => self.tell(&ToGuardian::Ping, Vec::new()),
            // One that waits for a processor is not frozen.
            Some(Beat::Silent) => return !tree::is_runnable(self.child.id()),
            Some(Beat::Wait) | None => {}
        }
        false
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
        self.pulse = None;
        let _ = self.channel.send(&ToGuardian::Kill, Vec::new());
        self.answer_by.get_or_insert_with(|| clock::now() + ANSWER);
    }

    /// Delivers what the guardian says. True if the tree is empty.
    fn hear(&mut self) -> bool {
        loop {
            let said = self.channel.receive();
            if let (Ok(Some(_)), Some(pulse)) = (&said, &mut self.pulse) {
                pulse.heard(clock::now());
            }
            let event = match said {
                Ok(Some(FromGuardian::Event(event))) => event,
                Ok(Some(FromGuardian::Pong)) => continue,
                Ok(Some(FromGuardian::Ready { pid, cgroup })) => {
                    let start = u32::try_from(pid).map_or(0, tree::start_time);
                    self.main = Some(Main { pid, start });
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
                GuardianEvent::Started { .. } => {
                    self.started = true;
                    self.main.iter().for_each(|main| self.group.runs(*main));
                }
                GuardianEvent::StartFailed(_) => {}
                GuardianEvent::Killing { .. } => {
                    self.cause_told = true;
                    self.killing_goes_on();
                }
                GuardianEvent::Exited(_) => {
                    self.started = false;
                    self.group.ended();
                    self.killing_goes_on();
                }
                GuardianEvent::NotEmpty { .. } => self.killing_goes_on(),
                GuardianEvent::Empty => {
                    (self.on_event)(GuardianEvent::Empty);
                    return true;
                }
            }
            (self.on_event)(event);
        }
    }

    /// The guardian has said so, and has to say more.
    fn killing_goes_on(&mut self) {
        self.pulse = None;
        self.answer_by = Some(clock::now() + SILENCE);
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
        if !self.has_ended_by_itself() {
            self.tell_cause();
        }
        let dead_by = clock::now() + SILENCE;
        let mut pause = FIRST_PAUSE;
        let mut next_report = clock::now() + REPORT_EVERY;
        let mut empty_rounds = 0;
        loop {
            // A process that looks at nothing twice in a row has missed nothing that could still be forked.
            let alive = self.kill_everything(dead_by);
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
        self.tell_cause();
        (self.on_event)(GuardianEvent::Empty);
    }

    fn tell_cause(&mut self) {
        if !std::mem::replace(&mut self.cause_told, true) {
            (self.on_event)(GuardianEvent::Killing { cause: self.cause });
        }
    }

    /// Whether the command ended before anybody killed it, though its frozen guardian could not tell.
    fn has_ended_by_itself(&mut self) -> bool {
        self.started
            && self.cause == KillCause::GuardianSilent
            && self.main.is_some_and(|main| tree::is_zombie(main.pid))
            // In this order: with its guardian the command dies, too.
            && matches!(self.child.try_wait(), Ok(None))
    }

    /// One round: the tree first, so that nobody wakes it, then the guardian, then what both left to us. A guardian that is still
    /// there at `dead_by` is held up in the kernel, and will do nothing any more but die.
    fn kill_everything(&mut self, dead_by: BootInstant) -> io::Result<Vec<i32>> {
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        let mut alive = Vec::new();
        let mut below = Ok(Vec::new());
        if self.child.try_wait()?.is_none() {
            below = tree::kill_below(self.child.id());
            self.child.kill()?;
            if clock::now() < dead_by {
                alive.push(self.child.id() as i32);
            }
        }
        match below.and_then(|below| Ok([below, self.kill_orphans()?].concat())) {
            Ok(found) => alive.extend(found),
            // Processes cannot be looked for. Where they are all in a cgroup they need not.
            Err(error) if self.cgroup.is_none() => return Err(error),
            Err(_) => {}
        }
        if let Some(cgroup) = self.cgroup.as_ref().filter(|cgroup| !cgroup.is_empty()) {
            alive.extend(cgroup.pids());
            // It may be in the middle of something, but it is not empty.
            if alive.is_empty() {
                alive.extend(self.main.map(|main| main.pid));
            }
        }
        #[cfg(not(target_os = "linux"))]
        alive.extend(self.kill_group());
        Ok(alive)
    }

    /// Kills what the guardian left to this process, and reaps what is dead of it. Returns the pids of what was alive.
    fn kill_orphans(&mut self) -> io::Result<Vec<i32>> {
        let guardians = guardians();
        let alive = tree::kill_orphans(&guardians, self.since)?;
        let reaped = tree::reap_orphans(&guardians, self.since)?;
        drop(guardians);
        for (pid, status) in reaped {
            let signal = status.terminating_signal().map(ExitStatus::Signal);
            if let Some(status) = signal.or(status.exit_status().map(ExitStatus::Code))
                && self.started
                && self.main.is_some_and(|main| main.pid == pid)
            {
                self.started = false;
                self.group.ended();
                (self.on_event)(GuardianEvent::Exited(status));
            }
        }
        Ok(alive)
    }

    /// Where orphans do not come to us, the group is what can be killed.
    #[cfg(not(target_os = "linux"))]
    fn kill_group(&self) -> Option<i32> {
        let pid = self.main?.pid;
        let killed = rustix::process::kill_process_group(Pid::from_raw(pid)?, Signal::KILL);
        killed.is_ok().then_some(pid)
    }

    /// Reaps the guardian, which ends once it has cleaned up behind itself. One that does not is frozen.
    fn bury(mut self) {
        let _ = wait_for(&[(self.channel.as_fd(), PollFlags::IN)], Some(SILENCE));
        let _ = self.child.kill();
        let _ = self.child.wait();
        guardians().retain(|pid| *pid != self.child.id());
    }
}
