//! What the guardian says, down to the last process of a command.

use std::time::Duration;

use incumbent::{ErrorKind, StopReason};
use incumbent_guardian::{GuardianEvent, StartFailure, StartFailureKind};

use crate::exit;
use crate::report::{Report, kill_word};
use crate::run::job::Job;

use super::Runner;

/// How often it is told that processes cannot be killed.
const STUCK_EVERY: Duration = Duration::from_secs(30);

impl Runner {
    pub(super) fn guardian_said(&mut self, number: u32, event: GuardianEvent) {
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

    pub(super) fn tell_killing(&mut self, reason: &'static str) {
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
        if let Some(StartFailure { kind: StartFailureKind::Leftovers, .. }) = &fate.failure
            && self.leaving.is_none()
        {
            // Others may be on a machine where nothing is left.
            self.blocked = true;
            self.restarting = true;
            self.campaign.stop(StopReason::Shutdown);
        } else if let Some(failure) = &fate.failure {
            let (code, kind) = match failure.kind {
                StartFailureKind::NotFound => (exit::NOT_FOUND, ErrorKind::NotFound),
                StartFailureKind::NotExecutable => (exit::NOT_EXECUTABLE, ErrorKind::Denied),
                StartFailureKind::Leftovers | StartFailureKind::Other => (exit::FAILED, ErrorKind::Internal),
            };
            self.reporter.error(kind, &format!("{} does not start: {failure}", self.reporter.program));
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
            // The campaign goes on by itself, and says when.
            self.get_ready();
        }
    }
}
