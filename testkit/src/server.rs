//! One server process: its log, the signals that tests send it, and its end.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::clock::wait_until;
use crate::error::{Error, Result};
use crate::proc::is_stopped;
use crate::reaper;

/// A user that has no rights beyond its own files, for servers that refuse to run as root.
const NOBODY: u32 = 65_534;

/// A server that runs, or ran; dropping it kills it.
#[derive(Debug)]
pub(crate) struct Server {
    name: String,
    log: PathBuf,
    child: Option<Child>,
    paused: AtomicBool,
}

impl Server {
    /// One that does not run yet and will log to `log`.
    pub(crate) fn new(name: &str, log: PathBuf) -> Server {
        Server { name: name.to_owned(), log, child: None, paused: AtomicBool::new(false) }
    }

    /// Starts `command`, which must be the server itself and not fork away; kills what runs before.
    pub(crate) fn spawn(&mut self, mut command: Command) -> Result<()> {
        self.end();
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.and_then(|log| Ok((log.try_clone()?, log)));
        let (out, err) = log.map_err(|e| Error::new(format!("{}: {e}", self.log.display())))?;
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let child = command.spawn().map_err(|e| Error::new(format!("cannot run {program}: {e}")))?;
        reaper::watch(child.id());
        self.child = Some(child);
        Ok(())
    }

    /// The process id, if it was started and not ended here.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether it was started, and is not paused.
    pub(crate) fn is_running(&self) -> bool {
        self.child.is_some() && !self.paused.load(Ordering::Relaxed)
    }

    /// True if it was started and has ended by itself.
    pub(crate) fn has_exited(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    #[track_caller]
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.pid().unwrap_or_else(|| panic!("{} is not running", self.name));
        let pid = Pid::from_raw(pid as i32).expect("a child's pid is positive");
        kill_process(pid, signal).unwrap_or_else(|e| panic!("cannot signal {}: {e}", self.name));
    }

    /// Sends `signal` and waits until the process has ended.
    #[track_caller]
    pub(crate) fn stop(&mut self, signal: Signal, patience: Duration) {
        self.signal(signal);
        assert!(
            wait_until(patience, || self.has_exited()),
            "{} did not stop:\n{}",
            self.name,
            self.log_tail()
        );
        self.end();
    }

    /// Freezes the process (SIGSTOP) and waits until it stands still.
    #[track_caller]
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        let pid = self.pid().unwrap_or_default();
        assert!(wait_until(Duration::from_secs(10), || is_stopped(pid)), "{} did not stand still", self.name);
        self.paused.store(true, Ordering::Relaxed);
    }

    /// Lets the process run on (SIGCONT).
    #[track_caller]
    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
        self.paused.store(false, Ordering::Relaxed);
    }

    /// Kills the process if it runs, and reaps it.
    pub(crate) fn end(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = child.kill();
        reaper::unwatch(child.id());
        let _ = child.wait();
        self.paused.store(false, Ordering::Relaxed);
    }

    /// Forgets the process, if it runs, so that it outlives this one.
    pub(crate) fn leave_running(&mut self) -> Option<u32> {
        let pid = self.child.take()?.id();
        reaper::unwatch(pid);
        Some(pid)
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    pub(crate) fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs `command` as the user nobody if this process is root: many servers refuse root.
pub(crate) fn without_root(command: &mut Command) {
    if crate::probe::is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
}

/// Gives `path` and what lies in it to the user that [`without_root`] runs as.
pub(crate) fn hand_over(path: &Path) -> Result<()> {
    if !crate::probe::is_root() {
        return Ok(());
    }
    let at = |e: std::io::Error| Error::new(format!("{}: {e}", path.display()));
    std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).map_err(at)?;
    if path.is_dir() && !path.is_symlink() {
        for entry in fs::read_dir(path).map_err(at)?.flatten() {
            hand_over(&entry.path())?;
        }
    }
    Ok(())
}

/// Runs `command` to its end and gives its output; what it printed is in the error.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| Error::new(format!("cannot run {name}: {e}")))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(Error::new(format!("{name}: {}{}", text(&output.stdout), text(&output.stderr))))
}
