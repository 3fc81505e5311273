//! Trees that outlived their guardians: killed by the next guardian, before its own command starts.
//!
//! Where the guardian and the parent are killed at the same instant, nobody is left to kill the tree. Its cgroup still
//! holds all of it, and the guardian's lock on that cgroup is free then. The lock decides, not a pid or a name, which
//! may be used again or belong to another pid namespace. The next guardian finds the cgroup beside its own, or by a link that
//! lies beside the lease file of the term, at one of the [places](crate::place) of the user.
//!
//! A guardian that still holds the lock after the end of its term is frozen: awake it would have killed. A guardian of the
//! same election then kills in its place.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use incumbent_core::ElectionName;
use incumbent_core::lease_file::Unreadable;

use crate::cgroup::Cgroup;
use crate::lease_file::{self, LeaseFileReader, election_of};
use crate::{clock, place};

const EXTENSION: &str = "cgroup";

/// A cgroup whose guardian is dead, or frozen after the end of its term. If dead, it is locked while it is being killed.
pub(crate) struct Leftover {
    cgroup: Cgroup,
    link: Option<PathBuf>,
}

impl Leftover {
    /// Begins to kill it.
    ///
    /// # Errors
    /// Those of [`Cgroup::lock`]: then it is left alone. A lock that is held does not count if `term_is_over`.
    fn kill(mut cgroup: Cgroup, link: Option<PathBuf>, term_is_over: bool) -> io::Result<Leftover> {
        match cgroup.lock() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && term_is_over => {}
            locked => locked?,
        }
        cgroup.kill();
        Ok(Leftover { cgroup, link })
    }

    /// Whether nothing of it is left, and then removes it; else goes on killing.
    pub(crate) fn is_gone(&self) -> bool {
        if !self.cgroup.is_empty() {
            self.cgroup.kill();
            return false;
        }
        let _ = self.cgroup.remove();
        self.link.iter().for_each(|link| drop(fs::remove_file(link)));
        true
    }

    /// The pids in it, for a report.
    pub(crate) fn pids(&self) -> Vec<i32> {
        self.cgroup.pids()
    }
}

/// Kills what dead guardians left in `base`, and removes what is empty already.
pub(crate) fn kill_in(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let cgroup = Cgroup::existing(entry.path());
        if cgroup.is_named_by_a_guardian()
            && let Ok(leftover) = Leftover::kill(cgroup, None, false)
        {
            leftover.is_gone();
        }
    }
}

/// Kills what dead guardians left whose links lie beside `lease_file` or where other runs of this user have theirs, and what frozen
/// ones of the same election did not kill at the end of their terms. Returns what has to be gone before the command of that term
/// may start: what terms of the same election left.
pub(crate) fn kill_for(lease_file: &Path) -> Vec<Leftover> {
    match (lease_file.parent(), election_of(lease_file)) {
        (Some(lease_dir), Some(election)) => kill_linked(lease_dir, election),
        _ => Vec::new(),
    }
}

/// In a folder for lease files, and in those that other runs of this user may have chosen.
fn kill_linked(lease_dir: &Path, election: &str) -> Vec<Leftover> {
    let elsewhere = place::known().filter(|place| place != lease_dir);
    let dirs = std::iter::once(lease_dir.to_owned()).chain(elsewhere);
    dirs.flat_map(|dir| kill_linked_in(&dir, election)).collect()
}

/// Kills what earlier terms of an election left on this machine under this user, as a guardian does before its command starts whose
/// lease file lies in `lease_dir`. Returns the pids of what still lives, since it cannot be killed.
pub fn kill_of(election: &ElectionName, lease_dir: &Path) -> Vec<i32> {
    let left = kill_linked(lease_dir, election.as_str());
    left.iter().filter(|leftover| !leftover.is_gone()).flat_map(Leftover::pids).collect()
}

fn kill_linked_in(dir: &Path, election: &str) -> Vec<Leftover> {
    let paths = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let links = paths.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
    let mut left = Vec::new();
    for link in links {
        let Ok(path) = fs::read_link(&link) else { continue };
        let cgroup = Cgroup::existing(path.clone());
        if !cgroup.is_named_by_a_guardian() {
            continue;
        }
        let of_our_election = election_of(&link) == Some(election);
        let is_over = of_our_election && is_over(&link) && has_our_clock(&cgroup);
        match Leftover::kill(cgroup, Some(link.clone()), is_over) {
            Ok(leftover) if !leftover.is_gone() && of_our_election => {
                left.push(leftover);
            }
            Err(_) if Cgroup::existing(path).is_gone() => drop(fs::remove_file(&link)),
            _ => {}
        }
    }
    left
}

/// Whether the term of a link is over, by the lease file beside it. Who removed that by hand has not ended the term.
fn is_over(link: &Path) -> bool {
    match LeaseFileReader::open(&lease_file::beside(link)) {
        Ok(reader) => match reader.read() {
            Ok(word) => !word.is_valid(clock::now()),
            Err(error) => error != Unreadable::Mismatch,
        },
        Err(_) => false,
    }
}

/// Whether what runs in a cgroup has the boot clock of this process: in another time namespace a deadline means another moment.
fn has_our_clock(cgroup: &Cgroup) -> bool {
    let clock = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/time")).ok();
    cgroup.pids().iter().any(|pid| clock(&pid.to_string()) == clock("self"))
}

/// Leaves a link to the cgroup of the term beside its lease file, if none is there.
///
/// # Errors
/// Those of making a link; also if one is there.
pub(crate) fn link(lease_file: &Path, cgroup: &Cgroup) -> io::Result<()> {
    symlink(cgroup.path(), link_of(lease_file))
}

/// Whether a link lies beside the lease file of a term.
pub(crate) fn is_linked(lease_file: &Path) -> bool {
    link_of(lease_file).symlink_metadata().is_ok()
}

/// Removes the link of a term whose tree is empty.
pub(crate) fn unlink(lease_file: &Path) {
    let _ = fs::remove_file(link_of(lease_file));
}

fn link_of(lease_file: &Path) -> PathBuf {
    lease_file.with_extension(EXTENSION)
}
