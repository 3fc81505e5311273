//! How a term ends: told to go, drained, lost or abandoned; then the release, and the pause before the next campaign.

use std::time::Duration;

use super::{Elector, Event, Kind, LossReason, Output, Over, State, StopReason, Stopping};
use crate::backend::{Claim, Grant};
use crate::time::BootInstant;

impl Elector {
    pub(super) fn stop(&mut self, now: BootInstant, reason: StopReason) {
        if reason == StopReason::Shutdown {
            self.shutdown = true;
        }
        match &self.state {
            State::Waiting { .. } | State::Over(_) | State::Ended => {}
            State::Campaigning { claim, .. } => {
                if self.shutdown {
                    let claim = claim.clone();
                    self.over(now, claim, None, false, Duration::ZERO);
                }
            }
            State::Leading(term) => {
                if term.stopping.is_none() {
                    let until = self.config.timing.drain.map(|drain| now + drain);
                    self.begin_stop(reason, until);
                    // A drain of nothing is over at once.
                    self.expire(now);
                }
            }
        }
    }

    pub(super) fn begin_stop(&mut self, reason: StopReason, until: Option<BootInstant>) {
        let State::Leading(term) = &mut self.state else { return };
        term.stopping = Some(Stopping { reason: reason.clone(), until });
        self.event(Event::Stopping { reason, until });
    }

    pub(super) fn work_stopped(&mut self, now: BootInstant) {
        match &mut self.state {
            State::Leading(term) => {
                term.work_stopped = true;
                if term.stopping.is_none() {
                    self.begin_stop(StopReason::Resigned, Some(now));
                }
            }
            State::Over(over) => over.work_running = false,
            _ => {}
        }
    }

    pub(super) fn abandoned(&mut self, now: BootInstant) {
        self.stop(now, StopReason::Shutdown);
        self.lose(now, LossReason::DrainOverran(StopReason::Shutdown));
        if let State::Over(over) = &mut self.state
            && over.work_running
        {
            over.work_running = false;
            over.release_at = over.gone_at;
        }
    }

    /// Invalid first, then the release; a renewal under way is awaited, so that the release is the last word.
    pub(super) fn finish_term(&mut self, now: BootInstant) {
        let State::Leading(term) = &self.state else { return };
        if let Some(stopping) = &term.stopping
            && term.work_stopped
            && self.pending.as_ref().is_none_or(|pending| pending.kind != Kind::Renew)
        {
            let reason = stopping.reason.clone();
            self.lose(now, LossReason::Stopped(reason));
        }
    }

    pub(super) fn lose(&mut self, now: BootInstant, reason: LossReason) {
        let State::Leading(term) = &self.state else { return };
        let term = (**term).clone();
        self.event(Event::Lost(reason.clone()));
        let timing = self.config.timing;
        let pause = match &reason {
            LossReason::Stopped(StopReason::Resigned | StopReason::Handover(_) | StopReason::Stalled)
            | LossReason::DrainOverran(_) => timing.resign_pause(self.rng.jitter()),
            LossReason::Stopped(_) | LossReason::Expired | LossReason::Superseded(_) => {
                timing.retry_after(1, self.rng.jitter())
            }
        };
        self.over(now, term.claim, Some(term.grant), !term.work_stopped, pause);
        let State::Over(over) = &mut self.state else { return };
        match reason {
            LossReason::Stopped(StopReason::Handover(to)) => over.next = to,
            // What the work may have left running must not see a successor before the lease has run out.
            LossReason::DrainOverran(_) => over.release_at = over.gone_at,
            _ => {}
        }
    }

    pub(super) fn over(
        &mut self,
        now: BootInstant,
        claim: Claim,
        grant: Option<Grant>,
        work_running: bool,
        pause: Duration,
    ) {
        if let Some(pending) = self.pending.take() {
            self.outputs.push_back(Output::Cancel(pending.id));
        }
        self.last_nonce = Some(claim.nonce);
        // A request without an answer may have extended the grant at any moment until now. Without a grant the release
        // is a courtesy, tried once.
        let gone_at = match &grant {
            Some(_) => self.config.timing.gone_from_store_at(now, self.config.takeover_max),
            None => now,
        };
        self.state = State::Over(Box::new(Over {
            claim,
            grant,
            next: None,
            work_running,
            release_at: now,
            gone_at,
            pause,
        }));
    }

    pub(super) fn tell_released(&mut self, now: BootInstant) {
        let State::Over(over) = &self.state else { return };
        if over.grant.is_some() {
            let campaigning_at = (!self.shutdown).then_some(now + over.pause);
            self.event(Event::Released { campaigning_at });
        }
    }

    /// The campaign is left behind, whether the store knows or not.
    pub(super) fn released(&mut self, now: BootInstant) {
        let State::Over(over) = &self.state else { return };
        self.state = State::Waiting { until: now + over.pause };
    }

    pub(super) fn end(&mut self) {
        self.state = State::Ended;
        self.event(Event::Ended);
    }
}
