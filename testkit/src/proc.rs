//! A process under test: its output line by line while it runs, signals, its end.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use incumbent_core::BootInstant;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use crate::clock::{now, wait_until};
use crate::reaper;

/// Which of its two streams a process wrote to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// One line that a process wrote.
#[derive(Clone, Debug)]
pub struct Line {
    /// Where it was written.
    pub stream: Stream,
    /// The line without its end; bytes that are not UTF-8 are replaced.
    pub text: String,
    /// When it was read.
    pub at: BootInstant,
}

/// A running process whose output is captured, the leader of a process group of its own.
///
/// Dropping it kills the whole group (SIGKILL). The process is not reaped before that, so that its number cannot
/// come to mean another process while a test still uses it: a process that has ended stays a zombie until then.
#[derive(Debug)]
pub struct Proc {
    name: String,
    child: Child,
    output: Arc<Output>,
}

#[derive(Debug, Default)]
struct Output {
    state: Mutex<Captured>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Captured {
    lines: Vec<Line>,
    closed: usize,
}

impl Proc {
    /// Starts `command` with both output streams captured; its standard input is empty unless it was set.
    ///
    /// # Panics
    /// If the program cannot be started.
    #[track_caller]
    pub fn spawn(mut command: Command) -> Proc {
        // `Command` does not tell whether a standard input was set, so a caller who wants one says so.
        command.stdin(Stdio::null());
        Proc::start(command)
    }

    /// As [`spawn`](Proc::spawn), with a pipe to its standard input, which [`stdin`](Proc::stdin) gives.
    #[track_caller]
    pub fn spawn_with_stdin(mut command: Command) -> Proc {
        command.stdin(Stdio::piped());
        Proc::start(command)
    }

    #[track_caller]
    fn start(mut command: Command) -> Proc {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|e| panic!("cannot run {name}: {e}"));
        reaper::watch(child.id());
        let output = Arc::new(Output::default());
        capture(child.stdout.take().expect("stdout was piped"), Stream::Out, &output);
        capture(child.stderr.take().expect("stderr was piped"), Stream::Err, &output);
        Proc { name, child, output }
    }

    /// The process id, which is also the id of its group.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The pipe to its standard input, once, if it was made.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Sends a signal to the process alone.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill_process(self.id(), signal).unwrap_or_else(|e| panic!("cannot signal {}: {e}", self.name));
    }

    /// Sends a signal to the whole process group.
    #[track_caller]
    pub fn signal_group(&self, signal: Signal) {
        kill_process_group(self.id(), signal).unwrap_or_else(|e| panic!("cannot signal {}: {e}", self.name));
    }

    /// Everything that was written so far, in the order in which it was read.
    pub fn lines(&self) -> Vec<Line> {
        self.output.lock().lines.clone()
    }

    /// What was written so far to one stream, as text.
    pub fn text(&self, stream: Stream) -> String {
        let lines = self.lines();
        lines
            .iter()
            .filter(|line| line.stream == stream)
            .fold(String::new(), |text, line| text + &line.text + "\n")
    }

    /// The first line for which `wanted` holds, waiting for it to be written.
    ///
    /// # Panics
    /// After `timeout`, or when the process has closed its output without such a line; with all that it wrote.
    #[track_caller]
    pub fn wait_line(&self, wanted: impl Fn(&str) -> bool, timeout: Duration) -> Line {
        self.wait_lines(1, wanted, timeout).remove(0)
    }

    /// The first `count` lines for which `wanted` holds, waiting for them to be written. Panics as
    /// [`wait_line`](Proc::wait_line) does.
    #[track_caller]
    pub fn wait_lines(&self, count: usize, wanted: impl Fn(&str) -> bool, timeout: Duration) -> Vec<Line> {
        let end = now() + timeout;
        let mut captured = self.output.lock();
        loop {
            let found: Vec<Line> =
                captured.lines.iter().filter(|line| wanted(&line.text)).take(count).cloned().collect();
            if found.len() == count {
                return found;
            }
            let left = end.since(now());
            let over = if captured.closed == 2 { Some("it has closed its output") } else { None };
            if let Some(why) = over.or_else(|| left.is_zero().then_some("time is up")) {
                let got = found.len();
                drop(captured);
                panic!("{got} of {count} lines of {} came, and {why}; {}", self.name, self.transcript());
            }
            captured =
                self.output.changed.wait_timeout(captured, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The exit status, if the process has ended.
    pub fn try_wait(&self) -> Option<ExitStatus> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.id()), options).ok().flatten()?;
        let raw = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => (code & 0xff) << 8,
            (None, signal) => signal.unwrap_or_default(),
        };
        Some(ExitStatus::from_raw(raw))
    }

    /// Waits until the process has ended, and for the rest of its output.
    ///
    /// # Panics
    /// After `timeout`, with all that it wrote.
    #[track_caller]
    pub fn wait(&self, timeout: Duration) -> ExitStatus {
        let mut status = None;
        wait_until(timeout, || {
            status = self.try_wait();
            status.is_some()
        });
        let Some(status) = status else { panic!("{} has not ended; {}", self.name, self.transcript()) };
        // A descendant that lives on may hold the streams open; then there is no rest to wait for.
        wait_until(Duration::from_secs(1), || self.output.lock().closed == 2);
        status
    }

    /// Everything that was written, for a failure's message.
    pub fn transcript(&self) -> String {
        let lines = self.lines();
        let mut text = format!("{} lines of {}:\n", lines.len(), self.name);
        for line in lines {
            let mark = if line.stream == Stream::Out { "out" } else { "err" };
            let _ = writeln!(text, "  {:?} {mark}: {}", line.at, line.text);
        }
        text
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = kill_process_group(self.id(), Signal::KILL);
        let _ = self.child.kill();
        reaper::unwatch(self.child.id());
        let _ = self.child.wait();
    }
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, Captured> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads one stream on a thread of its own, until every process that holds it is gone.
fn capture(from: impl Read + Send + 'static, stream: Stream, output: &Arc<Output>) {
    let output = Arc::clone(output);
    thread::spawn(move || {
        let mut reader = BufReader::new(from);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes)).into_owned();
            output.lock().lines.push(Line { stream, text, at: now() });
            output.changed.notify_all();
            bytes.clear();
        }
        output.lock().closed += 1;
        output.changed.notify_all();
    });
}

/// Whether every thread of the process `pid` stands still, after SIGSTOP.
pub fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the command name, which may hold anything but ends with the last `)`.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}
