//! The guardian process: starts the command, watches the deadline, kills the whole tree and proves it empty.
//!
//! One thread, one poll loop, no runtime, no network. It is the subreaper of everything below it, so *no child left* is the
//! exact proof that the tree is empty: a process of the tree has a living ancestor in the tree, or is a child of ours.

mod killing;
mod life;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, getpid, setsid};
use rustix::stdio::{dup2_stdin, stdin};
use signal_hook::consts::signal::{
    SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2,
};

use crate::cgroup::{self, Cgroup};
use crate::channel::Channel;
use crate::leftover;
use crate::signals::is_ignored;

use life::Guardian;

/// The main function of the guardian process: what the hidden subcommand [`SUBCOMMAND`](crate::SUBCOMMAND) calls, first
/// thing, before any thread is started. `arguments` are those after the subcommand; there are none.
///
/// Not for people: standard input must be the socket that [`Guardian::spawn`](crate::Guardian::spawn) made.
pub fn guardian_main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    if arguments.into_iter().next().is_some() || rustix::net::sockopt::socket_type(stdin()).is_err() {
        eprintln!("incumbent: this subcommand is started by incumbent itself");
        return ExitCode::from(2);
    }
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("incumbent: guardian: {error}");
            ExitCode::from(125)
        }
    }
}

fn start() -> io::Result<()> {
    // Out of the terminal's reach and of signals to the parent's group: only the parent, and SIGKILL, decide.
    let _ = setsid();
    #[cfg(target_os = "linux")]
    {
        rustix::process::set_child_subreaper(Some(getpid()))?;
        // For people who look at the processes; else it is named after the path that was executed.
        let _ = rustix::thread::set_name(c"guardian");
    }
    // Handlers, not SIG_IGN, which the command would inherit, as it does what is ignored already.
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2] {
        if !is_ignored(signal) {
            signal_hook::flag::register(signal, Arc::clone(&ignored))?;
        }
    }
    let (children, wake) = UnixStream::pair()?;
    children.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(SIGCHLD, wake)?;

    let parent = Channel::new(UnixStream::from(stdin().try_clone_to_owned()?))?;
    dup2_stdin(fs::File::open("/dev/null")?)?;

    let (launcher, ours) = UnixStream::pair()?;
    let guardian = getpid();
    let cgroup = cgroup::base().and_then(|base| {
        leftover::kill_in(&base);
        Cgroup::create(&base)
    });
    let Some((main, cgroup)) = fork(cgroup.ok())? else {
        drop((parent, children, ours));
        crate::launch::launcher(Channel::new(launcher)?, guardian);
        return Ok(());
    };
    drop(launcher);
    Guardian::new(parent, Channel::new(ours)?, children, main, cgroup)?.run()
}

/// Forks into the cgroup, or without it where that is refused. `None` is the child, which keeps no lock on it.
fn fork(cgroup: Option<Cgroup>) -> io::Result<Option<(Pid, Option<Cgroup>)>> {
    if let Some(cgroup) = cgroup {
        match cgroup.open().and_then(|dir| crate::fork::fork(Some(&dir))) {
            Ok(main) => return Ok(main.map(|main| (main, Some(cgroup)))),
            Err(_) => cgroup.remove()?,
        }
    }
    Ok(crate::fork::fork(None)?.map(|main| (main, None)))
}

pub(crate) fn wait_for(fds: &[(BorrowedFd<'_>, PollFlags)], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout
        .map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
    let mut fds: Vec<_> = fds.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
