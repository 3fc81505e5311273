//! Signals and timers.

use incumbent::{BootInstant, ErrorKind, Result, StopReason};
use incumbent_core::time::exact;

use crate::exit;
use crate::run::signals::Wish;

use super::{BLOCKED_LOOK, Lease, Runner, Waiting};

impl Runner {
    /// Returns the exit code if this process ends at once.
    pub(super) fn wished(&mut self, wish: Wish) -> Option<u8> {
        match (wish, &mut self.job) {
            (Wish::PassOn { signal, .. }, Some(job)) => job.signal(signal),
            (Wish::PassOn { else_stop: false, .. }, None) => {}
            (Wish::PassOn { .. } | Wish::Stop, None) => {
                if self.leaving.is_some() || self.pause_until.is_some() {
                    return Some(self.end(self.leaving.unwrap_or(exit::OK)));
                }
                self.leave(exit::OK);
            }
            (Wish::Stop, Some(job)) => {
                if self.leaving.is_some() {
                    job.kill();
                    self.tell_killing("signal");
                } else {
                    self.leave(exit::OK);
                    // Before the elector says so: every moment until nothing of the command is left is one without a leader.
                    self.told_to_stop(&StopReason::Shutdown, None);
                }
            }
        }
        None
    }

    pub(super) fn timer(&self) -> Option<BootInstant> {
        let kill_at = self.job.as_ref().and_then(|job| job.kill_at);
        [kill_at, self.pause_until, self.give_up_at, self.exit_at].into_iter().flatten().min()
    }

    pub(super) fn timed_out(&mut self) -> Result<Option<u8>> {
        let now = incumbent::clock::now();
        if let Some(job) = &mut self.job
            && job.kill_at.is_some_and(|at| now >= at)
        {
            job.kill();
            self.tell_killing("drain");
        }
        if self.give_up_at.take_if(|at| now >= *at).is_some() {
            let limit = match self.plan.waiting {
                Waiting::AtMost(limit) => exact(limit),
                Waiting::ForEver | Waiting::Not => String::new(),
            };
            let message = format!("{} was not won within {limit}", self.plan.election);
            self.reporter.error(ErrorKind::TimedOut, &message);
            if self.pause_until.is_some() {
                // There is no campaign that would have to end.
                return Ok(Some(self.end(exit::WAITED_TOO_LONG)));
            }
            self.leave(exit::WAITED_TOO_LONG);
        }
        if self.exit_at.is_some_and(|at| now >= at) {
            return Ok(Some(self.end(self.leaving.unwrap_or(exit::FAILED))));
        }
        if self.pause_until.take_if(|until| now >= *until).is_some() {
            if self.blocked && !self.leftovers().is_empty() {
                self.pause_until = Some(now + BLOCKED_LOOK);
                return Ok(None);
            }
            self.blocked = false;
            self.campaign = self.candidate.clone().campaign()?;
            self.lease = Lease::Nobodys;
            self.stand_by();
        }
        Ok(None)
    }
}
