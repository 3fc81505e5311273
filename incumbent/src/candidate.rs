//! A candidate: who stands for election, and what it does when it wins.

use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use incumbent_core::guarantees::Exclusion;
use incumbent_core::ids::check_address;
use incumbent_core::{
    CandidateId, ElectionName, Elector, ElectorConfig, Error, ErrorKind, LossReason, Result, StopReason,
    Timing,
};
use tokio::sync::mpsc;
use tracing::{Instrument, debug, info, info_span, warn};

use crate::campaign::{Campaign, CampaignEvent};
use crate::connection::Election;
use crate::driver::Driver;
use crate::leadership::Leadership;

/// A candidate in one election, to be configured and then [`run`](Candidate::run).
#[derive(Clone, Debug)]
#[must_use = "a candidate does nothing until it runs"]
pub struct Candidate {
    election: Election,
    id: String,
    address: Option<String>,
    grace: Option<Duration>,
    drain: Option<Option<Duration>>,
    liveness: Option<Duration>,
    split_brain: bool,
}

impl Candidate {
    pub(crate) fn new(election: Election, id: String) -> Candidate {
        Candidate {
            election,
            id,
            address: None,
            grace: None,
            drain: None,
            liveness: None,
            split_brain: false,
        }
    }

    /// An address under which others find this candidate while it leads: 1 to 512 bytes without spaces and control
    /// characters, else [`campaign`](Candidate::campaign) refuses it.
    pub fn advertise(mut self, address: impl Into<String>) -> Candidate {
        self.address = Some(address.into());
        self
    }

    /// How long before the deadline the work is told to stop when nothing renews the grant. Default min(5 s, ttl/4).
    pub fn grace(mut self, grace: Duration) -> Candidate {
        self.grace = Some(grace);
        self
    }

    /// How long a polite stop may take; `None` is without bound. Default 30 s. Work that takes longer is dropped, and its lease is
    /// not released but runs out.
    pub fn drain(mut self, drain: Option<Duration>) -> Candidate {
        self.drain = Some(drain);
        self
    }

    /// Gives up a term whose work has not called [`Leadership::alive`] for `limit`. Off by default.
    pub fn liveness(mut self, limit: Duration) -> Candidate {
        self.liveness = Some(limit);
        self
    }

    /// Accepts that two may lead at one time, on a backend that [excludes nobody](Exclusion::None) in a network that falls apart.
    /// Without it [`campaign`](Candidate::campaign) refuses such a backend. Changes nothing on any other.
    pub fn allow_split_brain(mut self) -> Candidate {
        self.split_brain = true;
        self
    }

    /// The election's name and the candidate's, as they were given.
    pub(crate) fn names(&self) -> (String, String) {
        (self.election.name().to_owned(), self.id.clone())
    }

    /// The intervals that will be in force.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] with the arithmetic, if they contradict each other.
    pub fn timing(&self) -> Result<Timing> {
        let connection = self.election.connection();
        let mut settings = *connection.settings();
        if self.grace.is_some() {
            settings.grace = self.grace;
        }
        if let Some(drain) = self.drain {
            settings.drain = drain;
        }
        Timing::new(&settings, connection.guarantees())
    }

    /// Stands for election. For those who want every event; [`run`](Candidate::run) is simpler.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`], [`ErrorKind::InvalidConfig`], also on a backend that
    /// [excludes nobody](Candidate::allow_split_brain). Never because a server cannot be reached.
    pub fn campaign(self) -> Result<Campaign> {
        let timing = self.timing()?;
        let guarantees = self.election.connection().guarantees();
        if guarantees.exclusion == Exclusion::None && !self.split_brain {
            let text = format!(
                "two candidates may lead at one time on this backend, which {}; choose one that excludes them, or accept it with --allow-split-brain (in a program: Candidate::allow_split_brain)",
                guarantees.summary
            );
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        let election = ElectionName::new(self.election.name())?;
        let id = CandidateId::new(self.id)?;
        if let Some(address) = &self.address {
            check_address(address)?;
        }
        let handle = self.election.connection().handle().clone();
        let takeover_max = handle.guarantees().takeover_max(timing.ttl);
        let config = ElectorConfig { election, id, address: self.address, timing, takeover_max };
        let elector = Elector::new(config, seed()?);
        let (inputs, inbox) = mpsc::unbounded_channel();
        let (events, outbox) = mpsc::unbounded_channel();
        let own = handle.clone();
        let (sender, liveness) = (inputs.clone(), self.liveness);
        handle.spawn(move |backend| {
            let inputs = (sender, inbox);
            Driver { backend, handle: own, elector, liveness, inputs, events }.run()
        });
        Ok(Campaign { events: outbox, inputs })
    }

    /// Runs `work` whenever this candidate leads, and returns its output when it completes.
    ///
    /// When the term is lost the work is dropped, and called again in the next term. Work that returns after it was
    /// [told to stop](Leadership::stopping) has drained, not completed: its output is dropped and the candidate campaigns again. When
    /// this returns, the grant is released, or runs out by itself where the store could not be told.
    ///
    /// Dropping the future drops the work and lets the lease run out. Needs no particular runtime.
    ///
    /// # Errors
    /// Only what [`campaign`](Candidate::campaign) refuses. Trouble with the store is waited out.
    pub async fn run<W, F>(self, work: W) -> Result<F::Output>
    where
        W: FnMut(Leadership) -> F,
        F: Future,
    {
        match self.run_until(std::future::pending::<()>(), work).await? {
            Some(output) => Ok(output),
            None => Err(Error::new(ErrorKind::Internal, "the elector's thread has died")),
        }
    }

    /// As [`run`](Candidate::run), until `shutdown` resolves: then the work is told to stop, may drain, and the grant is
    /// released. Returns `None` if the work did not complete by then.
    ///
    /// # Errors
    /// As [`run`](Candidate::run).
    pub async fn run_until<S, W, F>(self, shutdown: S, mut work: W) -> Result<Option<F::Output>>
    where
        S: Future,
        W: FnMut(Leadership) -> F,
        F: Future,
    {
        let (election, id) = self.names();
        let mut campaign = self.campaign()?;
        let mut shutdown = pin!(shutdown);
        let mut told = false;
        loop {
            let event = tokio::select! {
                biased;
                event = campaign.next() => event,
                _ = &mut shutdown, if !told => {
                    told = true;
                    campaign.stop(StopReason::Shutdown);
                    continue;
                }
            };
            let leadership = match event {
                None | Some(CampaignEvent::Ended) => return Ok(None),
                Some(CampaignEvent::Elected(leadership)) => leadership,
                Some(event) => {
                    log(&event);
                    continue;
                }
            };
            let span = info_span!("term", election = %election, id = %id, token = ?leadership.token());
            let work = work(leadership.clone());
            let term = lead(&mut campaign, leadership, shutdown.as_mut(), &mut told, work);
            match term.instrument(span).await {
                Term::Completed(output) => {
                    wait_for_end(&mut campaign).await;
                    return Ok(Some(output));
                }
                // What runs out by itself needs no one to wait for it.
                Term::Overran if told => return Ok(None),
                Term::Stopped | Term::Overran => {}
            }
        }
    }
}

/// How the work of one term ended.
enum Term<T> {
    Completed(T),
    Stopped,
    Overran,
}

/// One term: runs the work until it completes or is stopped and dropped, and confirms that.
async fn lead<S: Future, F: Future>(
    campaign: &mut Campaign,
    leadership: Leadership,
    mut shutdown: Pin<&mut S>,
    told: &mut bool,
    work: F,
) -> Term<F::Output> {
    info!(valid_until = ?leadership.valid_until(), "elected");
    let mut overran = false;
    let output = {
        let mut work = pin!(leadership.guard(work));
        loop {
            tokio::select! {
                biased;
                event = campaign.next() => match event {
                    Some(event) => {
                        log(&event);
                        if let CampaignEvent::Lost(reason) = &event {
                            overran = matches!(reason, LossReason::DrainOverran(_));
                            break None;
                        }
                    }
                    None => break None,
                },
                _ = shutdown.as_mut(), if !*told => {
                    *told = true;
                    campaign.stop(StopReason::Shutdown);
                }
                output = &mut work => match output {
                    Ok(output) => break Some(output),
                    // The driver tells the term before it tells us.
                    Err(lost) => {
                        overran = matches!(lost.reason(), Some(LossReason::DrainOverran(_)));
                        break None;
                    }
                },
            }
        }
    };
    let stopping = leadership.is_stopping().map(|stopping| stopping.reason);
    let completed = matches!(stopping, None | Some(StopReason::Shutdown));
    if completed && output.is_some() {
        campaign.stop(StopReason::Shutdown);
    }
    campaign.work_stopped();
    match output {
        Some(output) if completed => Term::Completed(output),
        _ if overran => Term::Overran,
        _ => Term::Stopped,
    }
}

async fn wait_for_end(campaign: &mut Campaign) {
    while let Some(event) = campaign.next().await {
        log(&event);
    }
}

pub(crate) fn log(event: &CampaignEvent) {
    match event {
        CampaignEvent::Lost(reason) => info!(?reason, "term over"),
        CampaignEvent::Stopping { reason, .. } => info!(?reason, "told to stop"),
        CampaignEvent::Trouble(error) => warn!(%error, "the store gives trouble; trying again"),
        CampaignEvent::SameId(leader) => {
            warn!(nonce = ?leader.contender.nonce, "another process campaigns under this id; give each its own");
        }
        event => debug!(?event, "campaign"),
    }
}

/// 128 random bits from the operating system.
fn seed() -> Result<u128> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|error| {
        Error::new(ErrorKind::Internal, "the operating system gives no random numbers").with_source(error)
    })?;
    Ok(u128::from_ne_bytes(bits))
}
