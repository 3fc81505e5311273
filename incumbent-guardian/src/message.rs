//! What the parent, the guardian and the launcher say to each other.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Parent to guardian.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToGuardian {
    /// Carries stdin and the descriptors to hold.
    Start {
        launch: Launch,
        lease_file: PathBuf,
        token: u64,
        kill_lead_ns: u64,
    },
    Kill,
    /// To be answered with [`FromGuardian::Pong`].
    Ping,
}

/// Guardian to launcher: what to become.
#[derive(Serialize, Deserialize)]
pub(crate) struct Launch {
    pub(crate) argv: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) cwd: Option<PathBuf>,
}

impl fmt::Debug for Launch {
    /// Values of the environment may be secrets, and so may arguments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("program", &self.argv.first())
            .field("env", &self.env.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
    }
}

/// Guardian to parent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromGuardian {
    /// The process that will become the command, and its cgroup. Always the first.
    Ready {
        pid: i32,
        cgroup: Option<PathBuf>,
    },
    Event(GuardianEvent),
    /// It is not frozen.
    Pong,
}

/// What happens to the command. The last one is always [`GuardianEvent::Empty`], and it comes once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuardianEvent {
    /// The command was executed; its process, group and session have this number.
    Started {
        /// The pid.
        pid: i32,
    },
    /// The command was not executed.
    StartFailed(StartFailure),
    /// The command's own process ended. What is left of its tree is being killed.
    Exited(ExitStatus),
    /// The tree is being killed, for this reason. Told last, or not at all, when the command ended by
    /// itself.
    Killing {
        /// The reason.
        cause: KillCause,
    },
    /// Half a second after killing began, these were still alive. It goes on; do not release.
    NotEmpty {
        /// The pids.
        pids: Vec<i32>,
    },
    /// Nothing of the tree is left: now the term may be released.
    Empty,
}

/// Why the command did not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFailure {
    /// Which of the shell's two answers it is, if it is one.
    pub kind: StartFailureKind,
    /// The system's error number, 0 if it gave none.
    pub errno: i32,
    /// In words, without the command's name.
    pub message: String,
}

/// The shell's two answers to a command that does not start, and what else keeps it from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartFailureKind {
    /// There is no such command: exit code 127.
    NotFound,
    /// The file is there but cannot be executed: exit code 126.
    NotExecutable,
    /// What an earlier term of the election left on this machine lives, and cannot be killed.
    Leftovers,
    /// The working directory cannot be entered, or the system refused a process.
    Other,
}

impl StartFailure {
    pub(crate) fn new(kind: StartFailureKind, error: &io::Error, message: impl fmt::Display) -> StartFailure {
        StartFailure { kind, errno: error.raw_os_error().unwrap_or(0), message: message.to_string() }
    }
}

impl fmt::Display for StartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StartFailure {}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl ExitStatus {
    /// What a shell would report: the code, or 128 + the signal.
    pub fn shell_code(self) -> i32 {
        match self {
            ExitStatus::Code(code) => code,
            ExitStatus::Signal(signal) => 128 + signal,
        }
    }
}

/// Why a tree is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillCause {
    /// The deadline passed unrenewed, or the term was ended in the lease file.
    Deadline,
    /// [`Guardian::kill`](crate::Guardian::kill), or the handle was dropped.
    Requested,
    /// The guardian died, without any other reason to kill.
    GuardianLost,
    /// The guardian does not answer: it is frozen.
    GuardianSilent,
    /// What should become the command does not: it is frozen.
    LauncherSilent,
    /// The parent died, so nobody is left to hear of it.
    ParentLost,
}
