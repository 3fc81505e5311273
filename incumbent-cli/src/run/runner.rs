//! What `run` does about what happens: one loop over the campaign, the guardian, signals and timers.
//!
//! The command's life: standby → elected (lease file, start) → told to stop → killed → nothing of it left → the term is given
//! up. Only when nothing of it is left does the campaign hear that the work has stopped, so that nothing is released before.

use std::ffi::OsString;
use std::time::Duration;

use incumbent::{
    BootInstant, Campaign, CampaignEvent, Candidate, CandidateId, ElectionName, Error, ErrorKind, Leadership,
    LossReason, Result, StopReason,
};
use incumbent_guardian::{GuardianEvent, LeaseFileWriter, StartFailureKind, lease_file};
use tokio::sync::mpsc;

use crate::report::{Report, Reporter, kill_word, loss_word, ms, stop_word};
use crate::store::Store;
use crate::{exit, text};

use super::backoff::Backoff;
use super::job::{Job, Said, Spec, Ward};
use super::signals::{Signals, Wish};
use super::trouble::{Trouble, is_fatal};

/// How long the end of this process waits for the store to take the term back.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);
/// How often it is told that processes cannot be killed.
const STUCK_EVERY: Duration = Duration::from_secs(30);

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) election: ElectionName,
    pub(crate) id: CandidateId,
    pub(crate) address: Option<String>,
    pub(crate) store: Store,
    pub(crate) command: Vec<OsString>,
    pub(crate) restart: bool,
    pub(crate) waiting: Waiting,
}

/// How long to stand by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    ForEver,
    AtMost(Duration),
    Not,
}

/// Runs the plan to its end. Returns the exit code.
pub(crate) async fn run(plan: Plan, reporter: Reporter) -> Result<u8> {
    let mut signals = Signals::take().map_err(|error| internal("signals cannot be taken", error))?;
    let connection = plan.store.connect().await?;
    // Bounded by this process: the library's own bound would not release after it.
    let mut candidate = connection.election(plan.election.as_str()).candidate(plan.id.as_str()).drain(None);
    if let Some(grace) = plan.store.settings.grace {
        candidate = candidate.grace(grace);
    }
    if let Some(address) = &plan.address {
        candidate = candidate.advertise(address);
    }
    let kill_lead = candidate.timing()?.kill_lead();
    let campaign = candidate.clone().campaign()?;
    let (events, mut said) = mpsc::unbounded_channel();
    let mut runner = Runner {
        kill_lead,
        reporter,
        candidate,
        campaign,
        events,
        spare: None,
        wards: 0,
        job: None,
        leaving: None,
        restarting: false,
        pause_until: None,
        exit_at: None,
        give_up_at: None,
        has_led: false,
        holds: false,
        released: false,
        last_run: Duration::ZERO,
        backoff: Backoff::new(),
        trouble: Trouble::default(),
        plan,
    };
    runner.stand_by();
    loop {
        let timer = runner.timer();
        tokio::select! {
            biased;
            Some((number, event)) = said.recv() => runner.guardian_said(number, event),
            wish = signals.next() => if let Some(code) = runner.wished(wish) {
                return Ok(code);
            },
            event = runner.campaign.next(), if runner.pause_until.is_none() => {
                if let Some(code) = runner.campaign_said(event)? {
                    return Ok(code);
                }
            }
            deadline = extended(runner.job.as_ref()) => runner.extended(deadline),
            () = sleep_until(timer) => if let Some(code) = runner.timed_out()? {
                return Ok(code);
            },
        }
    }
}

struct Runner {
    plan: Plan,
    kill_lead: Duration,
    reporter: Reporter,
    candidate: Candidate,
    campaign: Campaign,
    events: mpsc::UnboundedSender<Said>,
    /// The guardian of the next term, started beforehand.
    spare: Option<Ward>,
    wards: u32,
    job: Option<Job>,
    /// The exit code, once it is decided that this process ends.
    leaving: Option<u8>,
    /// The campaign is being ended to begin another, for the next run of the command.
    restarting: bool,
    /// Between one run of the command and the next.
    pause_until: Option<BootInstant>,
    /// When this process ends without having released.
    exit_at: Option<BootInstant>,
    /// When standing by has lasted long enough.
    give_up_at: Option<BootInstant>,
    has_led: bool,
    /// A term has begun and is not given back, as far as is known.
    holds: bool,
    /// The latest term was given back to the store, as far as is known.
    released: bool,
    last_run: Duration,
    backoff: Backoff,
    trouble: Trouble,
}

impl Runner {
    /// A campaign is under way, or will be by itself.
    fn stand_by(&mut self) {
        self.holds = false;
        self.give_up_at = match self.plan.waiting {
            Waiting::AtMost(limit) => Some(incumbent::clock::now() + limit),
            Waiting::ForEver | Waiting::Not => None,
        };
        self.reporter.tell(&Report::Campaigning { backend: &self.plan.store.shown() });
        if self.spare.is_none()
            && let Err(error) = self.prepare_guardian()
        {
            self.reporter.warn(&format!("the guardian cannot be started beforehand: {error}"));
        }
    }

    fn prepare_guardian(&mut self) -> std::io::Result<()> {
        self.wards += 1;
        self.spare = Some(Ward::start(self.wards, self.events.clone())?);
        Ok(())
    }

    /// Ends this process with `code` once the campaign has ended.
    fn leave(&mut self, code: u8) {
        self.leaving.get_or_insert(code);
        self.campaign.stop(StopReason::Shutdown);
        if self.job.is_none() {
            self.exit_at.get_or_insert(incumbent::clock::now() + RELEASE_PATIENCE);
        }
    }

    fn fail(&mut self, message: &str) {
        self.reporter.error(message);
        self.leave(exit::FAILED);
    }

    // ---- the campaign ----

    fn campaign_said(&mut self, event: Option<CampaignEvent>) -> Result<Option<u8>> {
        match event {
            Some(CampaignEvent::Elected(leadership)) => self.elected(leadership),
            Some(CampaignEvent::Stopping { reason, until }) => self.told_to_stop(&reason, until),
            Some(CampaignEvent::Lost(reason)) => self.lost(&reason),
            Some(CampaignEvent::LeaderChanged(leader)) => {
                self.reporter.tell(&Report::Standby { leader: leader.as_ref() });
                if leader.is_some() && self.plan.waiting == Waiting::Not {
                    self.leave(exit::ANOTHER_LEADS);
                }
            }
            Some(CampaignEvent::SameId(leader)) => self.reporter.tell(&Report::SameId { leader: &leader }),
            Some(CampaignEvent::Trouble(error)) => self.troubled(&error),
            Some(CampaignEvent::Recovered) => {
                if let Some(lasted) = self.trouble.recovered(incumbent::clock::now()) {
                    self.reporter.tell(&Report::Recovered { lasted_ms: ms(lasted) });
                }
            }
            Some(CampaignEvent::Ended) => return self.campaign_ended(),
            Some(_) => {}
            None => return Err(died()),
        }
        Ok(None)
    }

    fn elected(&mut self, leadership: Leadership) {
        self.has_led = true;
        self.holds = true;
        self.released = false;
        self.give_up_at = None;
        if self.leaving.is_some() {
            self.campaign.work_stopped();
            return;
        }
        if let Err(message) = self.start(leadership) {
            self.fail(&message);
            self.campaign.work_stopped();
        }
    }

    fn start(&mut self, leadership: Leadership) -> Result<(), String> {
        let deadline = leadership.valid_until();
        if self.spare.is_none() {
            self.prepare_guardian().map_err(|error| format!("the guardian cannot be started: {error}"))?;
        }
        let lease = self.lease_file(&leadership, deadline)?;
        let hold = leadership.liveness_fd().map_err(|error| text::error(&error))?;
        let Some(ward) = self.spare.take() else { return Err("there is no guardian".to_owned()) };
        self.reporter.tell(&Report::Elected {
            token: leadership.token(),
            authority: leadership.authority(),
            valid_ms: ms(deadline.since(incumbent::clock::now())),
        });
        let spec = Spec {
            command: &self.plan.command,
            url: &self.plan.store.url,
            kill_lead: self.kill_lead,
            lease,
            leadership,
            hold: hold.into_iter().collect(),
        };
        self.job = Some(Job::start(ward, spec));
        Ok(())
    }

    fn lease_file(&self, leadership: &Leadership, deadline: BootInstant) -> Result<LeaseFileWriter, String> {
        let state = incumbent::default_state_dir().map_err(|error| text::error(&error))?;
        let folder = lease_file::lease_dir(&state).map_err(|error| {
            format!("there is no folder for the lease file, {} at the latest: {error}", state.display())
        })?;
        let token = leadership.token().unwrap_or(incumbent::FencingToken(0));
        LeaseFileWriter::create(&folder, leadership.election(), token, deadline).map_err(|error| {
            format!(
                "the lease file cannot be made in {}: {error}; without it no command is started",
                folder.display()
            )
        })
    }

    fn extended(&mut self, deadline: BootInstant) {
        let Some(job) = &mut self.job else { return };
        if let Err(error) = job.extend(deadline) {
            self.reporter.error(&format!(
                "the renewed deadline cannot be written to the lease file: {error}; the command is killed at the old one"
            ));
        }
        let valid_ms = ms(deadline.since(incumbent::clock::now()));
        self.reporter.tell(&Report::Extended { valid_ms });
    }

    fn told_to_stop(&mut self, reason: &StopReason, until: Option<BootInstant>) {
        let Some(job) = &mut self.job else { return };
        let now = incumbent::clock::now();
        let kill_at = self.plan.store.settings.drain.map(|drain| now + drain);
        job.ask_to_end(kill_at);
        // At the deadline the guardian kills.
        let deadline = until.map(|until| until - self.kill_lead);
        let killed_by = match kill_at {
            Some(at) => Some(deadline.map_or(at, |deadline| deadline.min(at))),
            None => deadline,
        };
        let to = match reason {
            StopReason::Handover(to) => to.as_ref().map(CandidateId::as_str),
            _ => None,
        };
        let kill_in_ms = killed_by.map(|at| ms(at.since(now)));
        self.reporter.tell(&Report::Stopping { reason: stop_word(reason), to, kill_in_ms });
    }

    fn lost(&mut self, reason: &LossReason) {
        if let LossReason::Stopped(_) = reason {
            // Given back, unless the store gives trouble now.
            self.released = true;
            return;
        }
        let leader = match reason {
            LossReason::Superseded(leader) => leader.as_ref(),
            _ => None,
        };
        self.reporter.tell(&Report::Lost { reason: loss_word(reason), leader });
        self.tell_killing(loss_word(reason));
        if let Some(job) = &mut self.job {
            job.end_term();
        }
    }

    fn troubled(&mut self, error: &Error) {
        self.released = false;
        let message = text::error(error);
        let job = self.job.is_some();
        if !self.has_led && is_fatal(error.kind()) || self.plan.waiting == Waiting::Not && !job {
            if self.leaving.is_none() {
                self.fail(&message);
            }
            return;
        }
        let now = incumbent::clock::now();
        let Some(lasts) = self.trouble.failed(now, error.kind()) else { return };
        let valid = self.job.as_ref().map(|job| job.leadership.valid_until().since(now));
        self.reporter.tell(&Report::Trouble {
            kind: text::kind(error.kind()),
            message,
            lasts_ms: ms(lasts),
            valid_ms: valid.map(ms),
        });
    }

    fn campaign_ended(&mut self) -> Result<Option<u8>> {
        if let Some(exit_code) = self.leaving {
            self.reporter.tell(&Report::Ended { exit_code, released: self.released });
            return Ok(Some(exit_code));
        }
        if !std::mem::take(&mut self.restarting) {
            return Err(died());
        }
        let pause = self.backoff.pause(self.last_run, jitter());
        self.reporter.tell(&Report::Pause { restart_in_ms: ms(pause) });
        self.pause_until = Some(incumbent::clock::now() + pause);
        Ok(None)
    }

    // ---- the guardian ----

    fn guardian_said(&mut self, number: u32, event: GuardianEvent) {
        match &mut self.job {
            Some(job) if job.ward.number == number => {}
            _ => {
                // The spare one died. The next one is started when it is needed.
                self.spare.take_if(|spare| spare.number == number);
                return;
            }
        }
        let Some(job) = &mut self.job else { return };
        match event {
            GuardianEvent::Started { pid } => {
                let lease_file = job.lease_file();
                self.reporter.tell(&Report::Started { pid, lease_file: &lease_file });
            }
            GuardianEvent::StartFailed(failure) => job.fate.failure = Some(failure),
            GuardianEvent::Exited(status) => {
                job.fate.exited = Some(status);
                self.reporter.tell(&Report::exited(status));
            }
            GuardianEvent::Killing { cause } => {
                job.fate.tell();
                self.tell_killing(kill_word(cause));
            }
            GuardianEvent::NotEmpty { pids } => {
                let now = incumbent::clock::now();
                if job.fate.stuck_told_at.is_none_or(|at| now.since(at) >= STUCK_EVERY) {
                    job.fate.stuck_told_at = Some(now);
                    self.reporter.tell(&Report::NotEmpty { pids: &pids });
                }
            }
            GuardianEvent::Empty => {
                if let Some(job) = self.job.take() {
                    self.nothing_left(job);
                }
            }
        }
    }

    fn tell_killing(&mut self, reason: &'static str) {
        if let Some(job) = &mut self.job
            && !std::mem::replace(&mut job.fate.killing_told, true)
        {
            self.reporter.tell(&Report::Killing { reason });
        }
    }

    /// Nothing of the command is left: now the term may be given up.
    fn nothing_left(&mut self, job: Job) {
        self.last_run = incumbent::clock::now().since(job.started_at);
        let fate = &job.fate;
        let code = fate.exited.map(|status| u8::try_from(status.shell_code()).unwrap_or(exit::FAILED));
        if let Some(failure) = &fate.failure {
            let code = match failure.kind {
                StartFailureKind::NotFound => exit::NOT_FOUND,
                StartFailureKind::NotExecutable => exit::NOT_EXECUTABLE,
                StartFailureKind::Other => exit::FAILED,
            };
            self.reporter.error(&format!("{} does not start: {failure}", self.reporter.program));
            self.leave(code);
        } else if self.leaving.is_some() {
            // Told to stop: the command's own code, if it had begun.
            self.leave(exit::OK);
            self.leaving = code.or(self.leaving);
        } else if !fate.told && self.plan.restart {
            self.restarting = true;
            self.campaign.stop(StopReason::Shutdown);
        } else if !fate.told {
            self.leave(code.unwrap_or(exit::FAILED));
        } else if job.leadership.is_stopping().is_none() {
            // The guardian is gone, not the term: others may do better.
            job.leadership.resign();
        }
        let again = self.leaving.is_none() && fate.told;
        // The lease file goes before the term does.
        drop(job);
        self.campaign.work_stopped();
        if again {
            self.stand_by();
        }
    }

    // ---- signals and timers ----

    /// Returns the exit code if this process ends at once.
    fn wished(&mut self, wish: Wish) -> Option<u8> {
        match (wish, &mut self.job) {
            (Wish::PassOn { signal, .. }, Some(job)) => job.signal(signal),
            (Wish::PassOn { else_stop: false, .. }, None) => {}
            (Wish::PassOn { .. } | Wish::Stop, None) => {
                if self.leaving.is_some() || self.pause_until.is_some() {
                    let exit_code = self.leaving.unwrap_or(exit::OK);
                    self.reporter.tell(&Report::Ended { exit_code, released: false });
                    return Some(exit_code);
                }
                self.leave(exit::OK);
            }
            (Wish::Stop, Some(job)) => {
                if self.leaving.is_some() {
                    job.kill();
                    self.tell_killing("signal");
                } else {
                    self.leave(exit::OK);
                }
            }
        }
        None
    }

    fn timer(&self) -> Option<BootInstant> {
        let kill_at = self.job.as_ref().and_then(|job| job.kill_at);
        [kill_at, self.pause_until, self.give_up_at, self.exit_at].into_iter().flatten().min()
    }

    fn timed_out(&mut self) -> Result<Option<u8>> {
        let now = incumbent::clock::now();
        if let Some(job) = &mut self.job
            && job.kill_at.is_some_and(|at| now >= at)
        {
            job.kill();
            self.tell_killing("drain");
        }
        if self.give_up_at.take_if(|at| now >= *at).is_some() {
            self.reporter.error(&format!("{} was not won in time", self.plan.election));
            self.leave(exit::WAITED_TOO_LONG);
        }
        if self.exit_at.is_some_and(|at| now >= at) {
            let exit_code = self.leaving.unwrap_or(exit::FAILED);
            if self.holds {
                self.reporter.warn(&format!(
                    "{} could not be released; its lease runs out by itself",
                    self.plan.election
                ));
            }
            self.reporter.tell(&Report::Ended { exit_code, released: false });
            return Ok(Some(exit_code));
        }
        if self.pause_until.take_if(|until| now >= *until).is_some() {
            self.campaign = self.candidate.clone().campaign()?;
            self.stand_by();
        }
        Ok(None)
    }
}

async fn extended(job: Option<&Job>) -> BootInstant {
    match job {
        Some(job) => job.extended().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(moment: Option<BootInstant>) {
    match moment {
        Some(moment) => tokio::time::sleep(moment.since(incumbent::clock::now())).await,
        None => std::future::pending().await,
    }
}

fn died() -> Error {
    Error::new(ErrorKind::Internal, "the elector's thread has died; the command is killed")
}

/// A random byte; it only spreads restarts.
fn jitter() -> u8 {
    let mut byte = [128];
    let _ = getrandom::fill(&mut byte);
    byte[0]
}

fn internal(message: &str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Internal, message).with_source(error)
}
