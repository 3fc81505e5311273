//! The launcher: a child of the guardian that waits in its own session for what to become, and becomes it.
//!
//! Started beforehand, it leaves only an `exec` on the path of a takeover, and its pid is known before anything runs.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::event::{PollFd, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, chdir, setsid};
use rustix::stdio::dup2_stdin;

use crate::channel::Channel;
use crate::message::{Launch, StartFailure, StartFailureKind};

/// Waits for a [`Launch`] and executes it. Returns only if there is nothing to run, or it does not start; the channel
/// closes when it does.
pub(crate) fn launcher(mut channel: Channel, guardian: Pid) {
    if !die_with(guardian) {
        return;
    }
    // The child of a fork leads no group yet, so this cannot fail.
    let _ = setsid();
    let Some((launch, fds)) = wait(&mut channel) else { return };
    let failure = become_command(&launch, fds);
    let _ = channel.send(&failure, Vec::new());
}

/// Has the kernel kill this process, and what it becomes, when its guardian dies. False if that is dead already.
///
/// The signal follows the thread that forked, not the process; the guardian has no other thread. It outlasts the exec unless
/// the file is setuid or has capabilities, and ends when the command changes its user: this is for the case that nobody
/// else is left to kill, and no substitute for that.
#[cfg(target_os = "linux")]
fn die_with(guardian: Pid) -> bool {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    // In this order: a guardian that died before does not send it any more.
    set_parent_process_death_signal(Some(Signal::KILL)).is_ok() && getppid() == Some(guardian)
}

#[cfg(not(target_os = "linux"))]
fn die_with(_guardian: Pid) -> bool {
    true
}

fn wait(channel: &mut Channel) -> Option<(Launch, Vec<OwnedFd>)> {
    loop {
        if let Some(launch) = channel.receive().ok()? {
            return Some((launch, channel.take_fds()));
        }
        if channel.is_closed() {
            return None;
        }
        let interest = channel.interest();
        match poll(&mut [PollFd::from_borrowed_fd(channel.as_fd(), interest)], None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Replaces this process. `fds` are stdin and the descriptors that the command and all its children are to hold.
fn become_command(launch: &Launch, fds: Vec<OwnedFd>) -> StartFailure {
    let other = |error: io::Error, what: &str| {
        StartFailure::new(StartFailureKind::Other, &error, format_args!("{what}: {error}"))
    };
    let Some((program, arguments)) = launch.argv.split_first() else {
        return other(io::ErrorKind::InvalidInput.into(), "there is no command");
    };
    let mut fds = fds.into_iter();
    if let Some(stdin) = fds.next()
        && let Err(error) = dup2_stdin(&stdin)
    {
        return other(error.into(), "cannot pass stdin on");
    }
    let held: Vec<OwnedFd> = fds.collect();
    for fd in &held {
        if let Err(error) = fcntl_setfd(fd, FdFlags::empty()) {
            return other(error.into(), "cannot pass a lock on");
        }
    }
    if let Some(cwd) = &launch.cwd
        && let Err(error) = chdir(cwd.as_path())
    {
        return other(error.into(), &format!("cannot enter {}", cwd.display()));
    }
    // exec resets the handlers of the guardian; std empties the signal mask and restores SIGPIPE.
    let mut command = Command::new(program);
    command.args(arguments).envs(launch.env.iter().map(|(name, value)| (name, value)));
    classify(program, &command.exec(), &path_of(launch))
}

fn path_of(launch: &Launch) -> std::ffi::OsString {
    let given = launch.env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
    given.or_else(|| std::env::var_os("PATH")).unwrap_or_default()
}

fn classify(program: &OsStr, error: &io::Error, path: &OsStr) -> StartFailure {
    use StartFailureKind::{NotExecutable, NotFound, Other};
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        // The file is there, so what was not found is the interpreter that it names.
        Some(Errno::NOENT) if exists(program, path) => {
            StartFailure::new(NotExecutable, error, "the interpreter that it names does not exist")
        }
        Some(Errno::NOENT) => StartFailure::new(NotFound, error, "command not found"),
        Some(Errno::ACCESS | Errno::PERM) => StartFailure::new(NotExecutable, error, "permission denied"),
        Some(Errno::NOEXEC) => StartFailure::new(NotExecutable, error, "not an executable format"),
        Some(Errno::NOTDIR | Errno::ISDIR | Errno::LOOP | Errno::TXTBSY | Errno::NAMETOOLONG) => {
            StartFailure::new(NotExecutable, error, error)
        }
        _ => StartFailure::new(Other, error, error),
    }
}

fn exists(program: &OsStr, path: &OsStr) -> bool {
    if program.as_bytes().contains(&b'/') {
        return Path::new(program).exists();
    }
    std::env::split_paths(path).any(|dir| dir.join(program).is_file())
}
