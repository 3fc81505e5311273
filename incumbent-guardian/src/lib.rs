//! The process between incumbent and what it runs: watches the deadline, kills the whole tree, proves it empty.
//!
//! [`Guardian`] is the parent's side, [`guardian_main`] the process itself. Between them goes a socket; both read the
//! deadline from the term's [lease file](incumbent_core::lease_file), and at the deadline both kill. The guardian kills, too,
//! when the parent dies; the parent does when the guardian dies, is frozen when it has to kill, or gives no sign of life for three
//! seconds of the parent's own time. Nothing here knows of elections, networks or runtimes.
//!
//! On Linux the tree is everything that descends from the command, wherever it went: the guardian and the parent are
//! subreapers, and where a cgroup (v2) may be made the command is born in one. A process that other means started on the
//! command's behalf (`systemd-run`, `at`, a container engine) is not in the tree. Elsewhere the tree is the command's
//! process group.
//!
//! If parent and guardian are killed at the same instant, the kernel (Linux) kills the command's own process at once,
//! unless that has changed its user or capabilities. What that process had started runs on. If the
//! guardian is frozen, and the parent frozen or dead, all runs on. Where there is a cgroup the next guardian of the user on the machine kills it before its own
//! command starts: at any time if the guardian is dead; if it is frozen, when the term is over and the election is the same.
//!
//! The command runs in a session of its own without a controlling terminal, its standard streams untouched. So Ctrl-C
//! reaches it only through [`Guardian::signal`], `/dev/tty` is not there, and reading from a terminal never stops it.

mod cgroup;
mod channel;
pub mod clock;
mod fork;
mod group;
mod launch;
pub mod lease_file;
mod leftover;
mod mask;
mod message;
mod parent;
pub mod place;
mod process;
mod pulse;
mod signals;
mod supervisor;
#[cfg_attr(not(target_os = "linux"), path = "tree_groups.rs")]
mod tree;
mod watch;

use std::io;
use std::path::PathBuf;

pub use lease_file::{LeaseFileReader, LeaseFileWriter};
pub use leftover::kill_of as kill_leftovers_of;
pub use mask::hold_signals_back;
pub use message::{ExitStatus, GuardianEvent, KillCause, StartFailure, StartFailureKind};
pub use parent::{Guardian, StartSpec};
pub use process::guardian_main;
pub use signals::is_ignored;

/// Whether a command may be born in a cgroup of its own here.
///
/// # Errors
/// Why not.
pub fn probe_cgroup() -> io::Result<()> {
    cgroup::Cgroup::create(&cgroup::base()?)?.remove()
}

/// The hidden subcommand that the program of a guardian answers with [`guardian_main`].
pub const SUBCOMMAND: &str = "__guardian";

/// The program that this process runs, to be its own guardian's; the same one even if the file was replaced meanwhile.
///
/// # Errors
/// Where the system does not tell.
pub fn own_program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}
