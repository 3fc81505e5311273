//! What this machine has of what `run` builds on.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::doctor::{Check, State};

/// A place that holds no folder.
const NO_FOLDER: &str = "/dev/null";
/// What a run opens at the same time, and as much again: a candidate with `file:` wins terms in vain with 24.
const DESCRIPTORS: usize = 48;

/// Makes sure, while it is still time to say so, that as many descriptors can be opened as a run opens: what misses one later
/// panics, or wins terms that it cannot begin.
pub(crate) fn descriptors() -> Result<(), String> {
    let all: io::Result<Vec<_>> =
        (0..DESCRIPTORS).map(|_| io::stderr().as_fd().try_clone_to_owned()).collect();
    all.map(drop).map_err(|error| {
        format!(
            "fewer than {DESCRIPTORS} files can be opened: {error}; raise the limit of open files (ulimit -n)"
        )
    })
}

/// Where lease files lie. The state directory is the last choice, so that nobody needs one whose other folders can be used.
pub(crate) fn lease_dir() -> Result<PathBuf, String> {
    let state = incumbent::default_state_dir();
    let last = state.as_deref().unwrap_or(Path::new(NO_FOLDER));
    incumbent_guardian::place::lease_dir(last).map_err(|error| {
        let last = match &state {
            Ok(state) => format!("{} neither: {error}", state.display()),
            Err(_) => "and neither XDG_STATE_HOME nor HOME is set".to_owned(),
        };
        let user = rustix::process::geteuid().as_raw();
        format!(
            "there is no folder for the lease file: /run/incumbent, /run/user/{user}/incumbent and /tmp/incumbent-{user} cannot be used, {last}; set HOME to a folder of this user, or give it one of the three with mode 0700"
        )
    })
}

/// Looks at everything that does not need a store.
pub(crate) fn checks() -> Vec<Check> {
    vec![boot_clock(), lease_folder(), tree(), cgroup()]
}

#[cfg(target_os = "linux")]
fn boot_clock() -> Check {
    use rustix::time::{ClockId, clock_gettime};
    let seconds = |id| clock_gettime(id).tv_sec;
    let slept = seconds(ClockId::Boottime) - seconds(ClockId::Monotonic);
    let detail = if slept > 1 {
        format!("CLOCK_BOOTTIME, which has counted the {slept} s that this machine slept")
    } else {
        "CLOCK_BOOTTIME, which goes on counting while the machine sleeps".to_owned()
    };
    Check::new("clock", State::Ok, detail)
}

#[cfg(not(target_os = "linux"))]
fn boot_clock() -> Check {
    Check::new(
        "clock",
        State::Ok,
        "CLOCK_MONOTONIC, which on this system goes on counting while the machine sleeps",
    )
}

fn lease_folder() -> Check {
    match lease_dir() {
        Ok(folder) => Check::new("lease files", State::Ok, folder.display().to_string()),
        Err(error) => Check::new("lease files", State::Wrong, error),
    }
}

#[cfg(target_os = "linux")]
fn tree() -> Check {
    Check::new(
        "processes",
        State::Ok,
        "all that descend from the command are killed with it; not what another program starts for it (systemd-run, a container engine)",
    )
}

#[cfg(not(target_os = "linux"))]
fn tree() -> Check {
    Check::new(
        "processes",
        State::Lacking,
        "the command's process group is killed with it; a descendant that leaves the group is not",
    )
}

fn cgroup() -> Check {
    match incumbent_guardian::probe_cgroup() {
        Ok(()) => Check::new(
            "cgroup",
            State::Ok,
            "each command is born in one of its own, and the kernel kills all of it at once; what is left if incumbent and its guardian are both killed or frozen is killed by the next run of the election on this machine before its own command starts; a leader on another machine does not wait for that",
        ),
        Err(error) => Check::new(
            "cgroup",
            State::Lacking,
            format!(
                "none can be made here ({error}), so processes are looked for and killed one by one; if incumbent and its guardian are both killed with SIGKILL, the command's own process dies with them and what it started runs on, beside the next leader: with file: that one starts when the lease has run out, but at once if what runs on has closed every descriptor"
            ),
        ),
    }
}
