//! What `run` does about what happens: one loop over the campaign, the guardian, signals and timers.
//!
//! The command's life: standby → elected (lease file, start) → told to stop → killed → nothing of it left → the term is given
//! up. Only when nothing of it is left does the campaign hear that the work has stopped, so that nothing is released before.

use std::ffi::OsString;
use std::time::Duration;

use incumbent::{
    BootInstant, Campaign, Candidate, CandidateId, ElectionName, Error, ErrorKind, Result, StopReason, Timing,
};
use incumbent_core::guarantees::Exclusion;
use incumbent_guardian::lease_file;
use tokio::sync::mpsc;

use crate::exit;
use crate::platform::lease_dir;
use crate::report::{Report, Reporter, ms};
use crate::store::Store;

use super::backoff::Backoff;
use super::internal;
use super::job::{Job, Said, Ward};
use super::signals::Caught;
use super::trouble::Trouble;

mod campaign;
mod guardian;
mod wishes;

/// How often it is looked whether what an earlier run left is gone.
const BLOCKED_LOOK: Duration = Duration::from_millis(500);
/// How long the end of this process waits for the store to take the term back.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);

/// Who follows goes first: the end of this process, and of its sessions at the server, would take both from it.
const AFTER_RELEASE: Duration = Duration::from_millis(20);

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
    pub(crate) allow_split_brain: bool,
}

/// How long to stand by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    ForEver,
    AtMost(Duration),
    Not,
}

/// Runs the plan to its end. Returns the exit code.
pub(crate) async fn run(plan: Plan, signals: Caught, reporter: Reporter) -> Result<u8> {
    let mut signals = signals.listen().map_err(|error| internal("signals cannot be taken", error))?;
    let connection = plan.store.connect().await?;
    // Bounded by this process: the library's own bound would not release after it.
    let mut candidate = connection.election(plan.election.as_str()).candidate(plan.id.as_str()).drain(None);
    if let Some(grace) = plan.store.settings.grace {
        candidate = candidate.grace(grace);
    }
    if let Some(address) = &plan.address {
        candidate = candidate.advertise(address);
    }
    if plan.allow_split_brain {
        candidate = candidate.allow_split_brain();
        if connection.guarantees().exclusion == Exclusion::None {
            reporter.warn("two commands may run at one time, in two parts of a network that falls apart");
        }
    }
    let timing = candidate.timing()?;
    let campaign = candidate.clone().campaign()?;
    let (events, mut said) = mpsc::unbounded_channel();
    let mut runner = Runner {
        timing,
        takeover_max: connection.guarantees().takeover_max(timing.ttl),
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
        blocked: false,
        exit_at: None,
        give_up_at: None,
        has_led: false,
        lease: Lease::Nobodys,
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
                    if runner.lease == Lease::Released {
                        tokio::time::sleep(AFTER_RELEASE).await;
                    }
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

/// What is known of the lease of the latest term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lease {
    /// There was no term, or nothing of it matters any more.
    Nobodys,
    Held,
    /// The term is over, and the store has not confirmed that it knows. It will at that moment by itself.
    Owed {
        until: BootInstant,
    },
    Released,
}

struct Runner {
    plan: Plan,
    timing: Timing,
    takeover_max: Duration,
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
    /// What an earlier run left on this machine cannot be killed: until it is gone, this one does not campaign.
    blocked: bool,
    /// When this process ends without having released.
    exit_at: Option<BootInstant>,
    /// When standing by has lasted long enough.
    give_up_at: Option<BootInstant>,
    has_led: bool,
    lease: Lease,
    last_run: Duration,
    backoff: Backoff,
    trouble: Trouble,
}

impl Runner {
    /// A campaign has begun.
    fn stand_by(&mut self) {
        self.reporter.tell(&Report::Campaigning { backend: &self.plan.store.shown() });
        self.get_ready();
    }

    /// For the next term.
    fn get_ready(&mut self) {
        if let Waiting::AtMost(limit) = self.plan.waiting {
            self.give_up_at.get_or_insert(incumbent::clock::now() + limit);
        }
        // Now, when nobody waits for it.
        if let Ok(folder) = lease_dir() {
            let _ = lease_file::sweep(&folder);
        }
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

    fn fail(&mut self, kind: ErrorKind, message: &str) {
        self.reporter.error(kind, message);
        self.leave(exit::FAILED);
    }

    /// When the store lets go of a lease for which nothing is sent from now on.
    fn lease_gone_at(&self) -> BootInstant {
        self.timing.gone_from_store_at(incumbent::clock::now(), self.takeover_max)
    }

    /// The last word.
    fn end(&self, exit_code: u8) -> u8 {
        let until = match self.lease {
            Lease::Held => Some(self.lease_gone_at()),
            Lease::Owed { until } => Some(until),
            Lease::Nobodys | Lease::Released => None,
        };
        let left = until.map(|until| until.since(incumbent::clock::now()));
        self.reporter.tell(&Report::Ended {
            exit_code,
            released: self.lease == Lease::Released,
            lease_left_ms: left.map(ms),
        });
        exit_code
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
