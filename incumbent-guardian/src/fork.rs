//! Forks the guardian, on Linux directly into a cgroup.
//!
//! Moving a process into a cgroup afterwards stalls every fork on the machine for up to 25 ms; being born there is free,
//! but the standard library cannot do that.
#![expect(unsafe_code, reason = "neither std nor rustix can fork, nor start a process in a cgroup")]

use std::fs::File;
use std::io;

use rustix::process::Pid;

/// Forks this process, which must have one thread only. In the child it returns `None`; the child shares nothing with
/// its parent but open descriptors.
///
/// # Errors
/// If the system refuses a process, or, with a cgroup, a process in it: then try without.
pub(crate) fn fork(cgroup: Option<&File>) -> io::Result<Option<Pid>> {
    let pid = match cgroup {
        // SAFETY: there is one thread, so no lock is held by a thread that the child does not have.
        None => unsafe { libc::fork() },
        Some(cgroup) => fork_into(cgroup)?,
    };
    match pid {
        0 => Ok(None),
        pid => Pid::from_raw(pid).filter(|_| pid > 0).map(Some).ok_or_else(io::Error::last_os_error),
    }
}

#[cfg(target_os = "linux")]
fn fork_into(cgroup: &File) -> io::Result<i32> {
    use std::os::fd::AsRawFd;

    // libc's own constant does not fit its type.
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

    /// `struct clone_args` up to `cgroup` (Linux 5.7).
    #[repr(C)]
    #[derive(Default)]
    struct CloneArgs {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
        set_tid: u64,
        set_tid_size: u64,
        cgroup: u64,
    }

    let args = CloneArgs {
        flags: CLONE_INTO_CGROUP,
        exit_signal: libc::SIGCHLD as u64,
        cgroup: cgroup.as_raw_fd() as u64,
        ..CloneArgs::default()
    };
    // SAFETY: without CLONE_VM and a stack of its own the child goes on with a copy of this memory, as after fork; there is
    // one thread, so no lock is held; the arguments are a valid structure of the given size.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &args, size_of::<CloneArgs>()) };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid as i32) }
}

#[cfg(not(target_os = "linux"))]
fn fork_into(_cgroup: &File) -> io::Result<i32> {
    Err(io::ErrorKind::Unsupported.into())
}
