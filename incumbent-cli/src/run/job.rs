//! One term's job: the command under its guardian, and the lease file that both read.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use incumbent::{BootInstant, FencingToken, Leadership};
use incumbent_guardian::{ExitStatus, Guardian, GuardianEvent, LeaseFileWriter, StartFailure, StartSpec};
use rustix::process::Signal;
use tokio::sync::mpsc;

/// A guardian, and which one it is among those of this process.
#[derive(Debug)]
pub(crate) struct Ward {
    pub(crate) number: u32,
    guardian: Guardian,
}

/// What a guardian says, with its number.
pub(crate) type Said = (u32, GuardianEvent);

impl Ward {
    /// Starts a guardian that waits.
    pub(crate) fn start(number: u32, events: mpsc::UnboundedSender<Said>) -> io::Result<Ward> {
        let program = incumbent_guardian::own_program()?;
        let guardian = Guardian::spawn(&program, move |event| {
            // Once this process ends nobody listens.
            let _ = events.send((number, event));
        })?;
        Ok(Ward { number, guardian })
    }
}

/// How a job came to its end, as far as it has.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    /// The command was told to stop, or is being killed: whatever it does now, it did not end by itself.
    pub(crate) told: bool,
    /// It was told that the command shall stop because this process does.
    pub(crate) shutdown_told: bool,
    /// It was told that the command is being killed.
    pub(crate) killing_told: bool,
    /// When it was told last that some of it cannot be killed yet.
    pub(crate) stuck_told_at: Option<BootInstant>,
    pub(crate) exited: Option<ExitStatus>,
    pub(crate) failure: Option<StartFailure>,
}

impl Fate {
    /// What ended by itself before cannot be told any more.
    pub(crate) fn tell(&mut self) {
        self.told |= self.exited.is_none();
    }
}

/// A command from its start until nothing of it is left.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) leadership: Leadership,
    pub(crate) ward: Ward,
    pub(crate) fate: Fate,
    pub(crate) started_at: BootInstant,
    /// When it is killed because it takes too long to stop.
    pub(crate) kill_at: Option<BootInstant>,
    asked: bool,
    lease: LeaseFileWriter,
    known: BootInstant,
}

/// What a job is started with.
pub(crate) struct Spec<'a> {
    pub(crate) command: &'a [OsString],
    pub(crate) url: &'a str,
    pub(crate) kill_lead: Duration,
    pub(crate) lease: LeaseFileWriter,
    pub(crate) leadership: Leadership,
    /// Locks that the command and its children hold as long as any of them lives.
    pub(crate) hold: Vec<OwnedFd>,
}

impl Job {
    /// Tells the guardian to start the command; its events tell what came of it.
    pub(crate) fn start(ward: Ward, spec: Spec<'_>) -> Job {
        let Spec { leadership, lease, .. } = spec;
        let token = leadership.token();
        let variables: [(&str, OsString); 6] = [
            ("INCUMBENT_ELECTION", leadership.election().as_str().into()),
            ("INCUMBENT_ID", leadership.id().as_str().into()),
            ("INCUMBENT_TOKEN", token.map(|token| token.to_string()).unwrap_or_default().into()),
            ("INCUMBENT_AUTHORITY", leadership.authority().as_str().into()),
            (crate::store::ON, spec.url.into()),
            ("INCUMBENT_LEASE_FILE", lease.path().into()),
        ];
        let known = leadership.valid_until();
        ward.guardian.start(StartSpec {
            argv: spec.command.to_vec(),
            env: variables.into_iter().map(|(name, value)| (name.into(), value)).collect(),
            cwd: None,
            lease_file: lease.path().to_owned(),
            token: token.unwrap_or(FencingToken(0)),
            kill_lead: spec.kill_lead,
            hold: spec.hold,
        });
        let started_at = incumbent::clock::now();
        Job { leadership, ward, fate: Fate::default(), started_at, kill_at: None, asked: false, lease, known }
    }

    /// Resolves when the term is good for longer. Cancel-safe.
    pub(crate) async fn extended(&self) -> BootInstant {
        self.leadership.extended(self.known).await
    }

    /// Writes the later deadline where the guardian and the command see it.
    pub(crate) fn extend(&mut self, deadline: BootInstant) -> io::Result<()> {
        self.known = deadline;
        self.lease.set_deadline(deadline)
    }

    /// Writes the lease file anew if it was removed by hand. Returns whether that was so.
    pub(crate) fn restore_lease_file(&mut self) -> io::Result<bool> {
        self.lease.restore(self.known)
    }

    /// Asks the command to end, within `drain` of the first time that it is asked.
    pub(crate) fn ask_to_end(&mut self, drain: Option<Duration>) {
        if std::mem::replace(&mut self.asked, true) {
            return;
        }
        self.fate.tell();
        self.ward.guardian.signal(Signal::TERM.as_raw());
        self.kill_at = drain.map(|drain| incumbent::clock::now() + drain);
    }

    /// Passes a signal on.
    pub(crate) fn signal(&self, signal: i32) {
        self.ward.guardian.signal(signal);
    }

    /// Kills the command and all that it started. The term, if it is not over, goes on until nothing is left.
    pub(crate) fn kill(&mut self) {
        self.fate.tell();
        self.kill_at = None;
        self.ward.guardian.kill();
    }

    pub(crate) fn lease_file(&self) -> String {
        self.lease.path().display().to_string()
    }

    /// Says that the term is over where the guardian and the command see it, and kills.
    pub(crate) fn end_term(&mut self) {
        // If this fails the deadline in the file stands, and the order to kill goes another way.
        let _ = self.lease.end();
        self.kill();
    }
}
