//! What the campaign says.

use incumbent::{
    BootInstant, CampaignEvent, CandidateId, Error, ErrorKind, Leadership, LossReason, Result, StopReason,
};
use incumbent_guardian::{LeaseFileWriter, kill_leftovers_of};

use crate::platform::lease_dir;
use crate::report::{Report, loss_word, ms, stop_word};
use crate::run::job::{Job, Spec};
use crate::run::trouble::is_fatal;
use crate::{exit, text};

use super::{BLOCKED_LOOK, Lease, Runner, Waiting, died, jitter};

impl Runner {
    pub(super) fn campaign_said(&mut self, event: Option<CampaignEvent>) -> Result<Option<u8>> {
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
            Some(CampaignEvent::Released { campaigning_at }) => self.released(campaigning_at),
            Some(CampaignEvent::Ended) => return self.campaign_ended(),
            Some(_) => {}
            None => return Err(died()),
        }
        Ok(None)
    }

    fn elected(&mut self, leadership: Leadership) {
        self.has_led = true;
        self.lease = Lease::Held;
        self.give_up_at = None;
        if self.leaving.is_some() {
            self.campaign.work_stopped();
            return;
        }
        if let Err(message) = self.start(leadership) {
            self.fail(ErrorKind::Internal, &message);
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
            kill_lead: self.timing.kill_lead(),
            lease,
            leadership,
            hold: hold.into_iter().collect(),
        };
        self.job = Some(Job::start(ward, spec));
        Ok(())
    }

    fn lease_file(&self, leadership: &Leadership, deadline: BootInstant) -> Result<LeaseFileWriter, String> {
        let folder = lease_dir()?;
        let token = leadership.token().unwrap_or(incumbent::FencingToken(0));
        LeaseFileWriter::create(&folder, leadership.election(), token, deadline).map_err(|error| {
            format!(
                "the lease file cannot be made in {}: {error}; without it no command is started",
                folder.display()
            )
        })
    }

    pub(super) fn extended(&mut self, deadline: BootInstant) {
        let Some(job) = &mut self.job else { return };
        if let Err(error) = job.extend(deadline) {
            let message = format!(
                "the renewed deadline cannot be written to the lease file: {error}; the command is killed at the old one"
            );
            self.reporter.error(ErrorKind::Internal, &message);
        }
        match job.restore_lease_file() {
            Ok(false) => {}
            Ok(true) => self.reporter.warn(&format!(
                "the lease file {} was removed or replaced; it is written anew, until then incumbent check said no",
                job.lease_file()
            )),
            Err(error) => self.reporter.warn(&format!(
                "the lease file {} was removed or replaced, and cannot be written anew: {error}; incumbent check says no in this term",
                job.lease_file()
            )),
        }
        let valid_ms = ms(deadline.since(incumbent::clock::now()));
        self.reporter.tell(&Report::Extended { valid_ms });
    }

    pub(super) fn told_to_stop(&mut self, reason: &StopReason, until: Option<BootInstant>) {
        let Some(job) = &mut self.job else { return };
        job.ask_to_end(self.plan.store.settings.drain);
        let is_shutdown = *reason == StopReason::Shutdown;
        if std::mem::replace(&mut job.fate.shutdown_told, is_shutdown) && is_shutdown && until.is_none() {
            return;
        }
        let now = incumbent::clock::now();
        // At the deadline the guardian kills.
        let deadline = until.map(|until| until - self.timing.kill_lead());
        let killed_by = match job.kill_at {
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
        self.lease = match reason {
            LossReason::Superseded(_) => Lease::Nobodys,
            _ => Lease::Owed { until: self.lease_gone_at() },
        };
        if let LossReason::Stopped(_) = reason {
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

    fn released(&mut self, campaigning_at: Option<BootInstant>) {
        let owed = self.lease != Lease::Nobodys;
        match campaigning_at {
            None if owed => self.lease = Lease::Released,
            Some(at) if owed => {
                // The next term, or none, is what counts from now on.
                self.lease = Lease::Nobodys;
                let campaigning_in_ms = ms(at.since(incumbent::clock::now()));
                self.reporter.tell(&Report::Released { campaigning_in_ms });
            }
            _ => {}
        }
    }

    fn troubled(&mut self, error: &Error) {
        let message = text::error(error);
        let job = self.job.is_some();
        if !self.has_led && is_fatal(error.kind()) || self.plan.waiting == Waiting::Not && !job {
            if self.leaving.is_none() {
                self.fail(error.kind(), &message);
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
            tries_for_ms: self.tries_until().map(|until| ms(until.since(now))),
        });
    }

    /// What earlier terms left and cannot be killed.
    pub(super) fn leftovers(&self) -> Vec<i32> {
        lease_dir().map_or_else(|_| Vec::new(), |folder| kill_leftovers_of(&self.plan.election, &folder))
    }

    /// The term was given back, since what an earlier run left still runs: from now on it is only waited for.
    fn tell_blocked(&mut self) -> Option<u8> {
        let pids = self.leftovers();
        self.reporter.tell(&Report::Blocked { pids: &pids });
        match self.plan.waiting {
            Waiting::Not => return Some(self.end(exit::ANOTHER_LEADS)),
            Waiting::AtMost(limit) => self.give_up_at = Some(incumbent::clock::now() + limit),
            Waiting::ForEver => {}
        }
        self.pause_until = Some(incumbent::clock::now() + BLOCKED_LOOK);
        None
    }

    /// Until when a call that failed is tried again, if there is an end to it. On the way out only a lease that is owed is worth it.
    fn tries_until(&self) -> Option<BootInstant> {
        self.leaving?;
        let until = match self.lease {
            Lease::Owed { until } => until,
            Lease::Held => self.lease_gone_at(),
            Lease::Nobodys | Lease::Released => BootInstant::ZERO,
        };
        Some(self.exit_at.map_or(until, |at| at.min(until)))
    }

    fn campaign_ended(&mut self) -> Result<Option<u8>> {
        if let Some(exit_code) = self.leaving {
            return Ok(Some(self.end(exit_code)));
        }
        if !std::mem::take(&mut self.restarting) {
            return Err(died());
        }
        if self.blocked {
            return Ok(self.tell_blocked());
        }
        let pause = self.backoff.pause(self.last_run, jitter());
        let released = self.lease == Lease::Released;
        self.reporter.tell(&Report::Pause { restart_in_ms: ms(pause), released });
        self.pause_until = Some(incumbent::clock::now() + pause);
        Ok(None)
    }
}
