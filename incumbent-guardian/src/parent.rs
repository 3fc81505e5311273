//! The parent's side: starts a guardian and tells it what to do.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use incumbent_core::FencingToken;

use crate::SUBCOMMAND;
use crate::channel::Channel;
use crate::group::Group;
use crate::message::GuardianEvent;
use crate::supervisor::Supervisor;

/// The guardians of this process that are not reaped yet. Locked while one is started and while orphans are looked
/// for, so that none is taken for an orphan.
static GUARDIANS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

pub(crate) fn guardians() -> MutexGuard<'static, Vec<u32>> {
    GUARDIANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What to start, and under which term.
pub struct StartSpec {
    /// The command and its arguments, executed directly; looked for in `PATH` if it has no slash.
    pub argv: Vec<OsString>,
    /// Added to the environment of this process, as it was when the guardian was spawned.
    pub env: Vec<(OsString, OsString)>,
    /// The working directory; that of this process if `None`.
    pub cwd: Option<PathBuf>,
    /// The term's lease file, already written.
    pub lease_file: PathBuf,
    /// The term's token, as the lease file has it.
    pub token: FencingToken,
    /// How long before the deadline the tree is killed, so that it is dead at the deadline.
    pub kill_lead: Duration,
    /// Descriptors that the guardian and the command with all its children inherit and hold open: locks. At most 15.
    pub hold: Vec<OwnedFd>,
}

impl fmt::Debug for StartSpec {
    /// Without arguments and values of the environment, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartSpec")
            .field("program", &self.argv.first())
            .field("env", &self.env.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("cwd", &self.cwd)
            .field("lease_file", &self.lease_file)
            .field("token", &self.token)
            .field("kill_lead", &self.kill_lead)
            .field("hold", &self.hold)
            .finish_non_exhaustive()
    }
}

/// A guardian that waits for a command, or watches it. It serves one command; spawn another for the next term.
///
/// Dropping it kills the tree and does not wait for that: its events go on until [`GuardianEvent::Empty`].
/// If this process dies, the guardian kills the tree.
#[derive(Debug)]
pub struct Guardian {
    pid: u32,
    commands: Sender<Order>,
    wake: UnixStream,
    group: Arc<Group>,
}

/// To the thread that supervises a guardian.
#[derive(Debug)]
pub(crate) enum Order {
    Start(StartSpec),
    /// The command was sent a signal.
    Hurry,
    Kill,
}

impl Guardian {
    /// Starts a guardian, which then waits; and the thread that calls `on_event`, which must not block.
    ///
    /// `program` is a program whose hidden subcommand [`SUBCOMMAND`](crate::SUBCOMMAND) calls
    /// [`guardian_main`](crate::guardian_main); see [`own_program`](crate::own_program).
    ///
    /// This process becomes a child subreaper. It must not start processes in sessions of their own: if a guardian dies,
    /// these would be taken for what it left, and killed.
    ///
    /// # Errors
    /// If the program cannot be started, or the system refuses a socket, a thread or the subreaper.
    pub fn spawn(
        program: &Path,
        on_event: impl FnMut(GuardianEvent) + Send + 'static,
    ) -> io::Result<Guardian> {
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let (ours, theirs) = UnixStream::pair()?;
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let channel_to_guardian = Channel::new(ours)?;
        let (commands, orders) = channel();
        let name = std::env::args_os().next().unwrap_or_else(|| program.into());

        let mut alive = guardians();
        let child = Command::new(program)
            .arg0(name)
            .arg(SUBCOMMAND)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()?;
        let pid = child.id();
        alive.push(pid);
        drop(alive);

        let group = Arc::new(Group::default());
        let supervisor =
            Supervisor::new(channel_to_guardian, child, woken, orders, group.clone(), Box::new(on_event));
        std::thread::Builder::new().name("guardian".into()).spawn(move || supervisor.run())?;
        Ok(Guardian { pid, commands, wake, group })
    }

    /// The pid of the guardian process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Starts the command. The answer is [`GuardianEvent::Started`] or [`GuardianEvent::StartFailed`]; signals that are
    /// sent meanwhile reach the command once it runs. A second start is ignored.
    pub fn start(&self, spec: StartSpec) {
        self.order(Order::Start(spec));
    }

    /// Passes a signal on to the command's process group. `SIGTERM` also wakes a stopped command. `SIGTSTP` arrives as
    /// `SIGSTOP`, since the system ignores it in a session without a terminal.
    pub fn signal(&self, signal: i32) {
        self.group.signal(signal);
        self.order(Order::Hurry);
    }

    /// Kills the whole tree, now. [`GuardianEvent::Empty`] tells when nothing is left.
    pub fn kill(&self) {
        self.order(Order::Kill);
    }

    fn order(&self, order: Order) {
        // Once the tree is empty the thread has ended, and there is nobody to order about.
        if self.commands.send(order).is_ok() {
            // A full pipe wakes as well.
            let _ = (&self.wake).write(&[1]);
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.kill();
    }
}
