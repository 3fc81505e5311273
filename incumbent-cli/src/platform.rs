//! What this machine has of what `run` builds on.

use crate::doctor::{Check, State};

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
    let folder = incumbent::default_state_dir()
        .map_err(|error| crate::text::error(&error))
        .and_then(|state| incumbent_guardian::place::lease_dir(&state).map_err(|error| error.to_string()));
    match folder {
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
