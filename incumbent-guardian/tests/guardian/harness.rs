//! Starts parents, reads what they print, and looks at processes from outside.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use incumbent_core::lease_file::{DEADLINE_OFFSET, encode_deadline};
use incumbent_guardian::{GuardianEvent, clock};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::parent::{Line, Plan, ROLE};

/// Longer than anything takes on a busy machine. Only a failing test waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// A lease that does not run out in a test.
pub(crate) const LONG: u64 = 3_600_000;
const NOBODY: u32 = 65534;

/// With which powers a parent runs: as the user of the tests, and, if that is root, also as nobody, for whom no cgroup
/// can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    Own,
    Nobody,
}

pub(crate) fn users() -> Vec<User> {
    if rustix::process::geteuid().is_root() { vec![User::Own, User::Nobody] } else { vec![User::Own] }
}

/// The numbers of a process's descriptors.
pub(crate) fn descriptors(pid: i32) -> Vec<String> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut fds: Vec<_> = fds.map(|fd| fd.unwrap().file_name().into_string().unwrap()).collect();
    fds.sort();
    fds
}

/// One of a process's signal sets, as `/proc/PID/status` names and writes it.
pub(crate) fn signal_mask(pid: i32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
}

/// A folder that every user can use.
pub(crate) fn scratch() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    dir
}

/// This binary where nobody can execute it, too: the target folder may be in a private home.
fn program() -> &'static Path {
    static COPY: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = COPY.get_or_init(|| {
        let dir = scratch();
        let path = dir.path().join("guardian-test");
        fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
        (dir, path)
    });
    path
}

pub(crate) struct Parent {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    pub(crate) guardian: i32,
    pub(crate) lease_file: PathBuf,
    /// What the command printed so far.
    pub(crate) output: Vec<String>,
}

impl Parent {
    pub(crate) fn spawn(plan: Plan) -> Parent {
        Parent::spawn_as(User::Own, plan)
    }

    pub(crate) fn spawn_as(user: User, plan: Plan) -> Parent {
        let mut command = Command::new(program());
        if user == User::Nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        Parent::spawn_by(command, plan)
    }

    /// As the child of another program, which may put it elsewhere.
    pub(crate) fn spawn_under(wrapper: &[&str], plan: Plan) -> Parent {
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).arg(program());
        Parent::spawn_by(command, plan)
    }

    fn spawn_by(mut command: Command, plan: Plan) -> Parent {
        command.arg(ROLE).arg(serde_json::to_string(&plan).unwrap());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        let mut parent =
            Parent { child, stdin, lines, guardian: 0, lease_file: PathBuf::new(), output: Vec::new() };
        match parent.line() {
            Line::Guardian { pid, lease_file } => (parent.guardian, parent.lease_file) = (pid, lease_file),
            line @ Line::Event { .. } => panic!("{line:?} before the guardian"),
        }
        parent
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub(crate) fn order(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn line(&mut self) -> Line {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect("the parent says nothing");
            match serde_json::from_str(&line) {
                Ok(line) => return line,
                Err(_) => self.output.push(line),
            }
        }
    }

    /// The next event and the moment of its delivery.
    pub(crate) fn event(&mut self) -> (GuardianEvent, u64) {
        match self.line() {
            Line::Event { event, at } => (event, at),
            line @ Line::Guardian { .. } => panic!("{line:?} twice"),
        }
    }

    /// Waits for the start; returns the command's pid.
    pub(crate) fn started(&mut self) -> i32 {
        match self.event().0 {
            GuardianEvent::Started { pid } => pid,
            event => panic!("{event:?} instead of the start"),
        }
    }

    /// All events up to and with `Empty`.
    pub(crate) fn rest(&mut self) -> Vec<GuardianEvent> {
        let mut events = Vec::new();
        while events.last() != Some(&GuardianEvent::Empty) {
            events.push(self.event().0);
        }
        events
    }

    /// Waits for a line of the command's.
    pub(crate) fn printed(&mut self, text: &str) {
        let deadline = clock::now() + PATIENCE;
        while !self.output.iter().any(|line| line == text) {
            let left = deadline.since(clock::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|_| panic!("{text:?} was not printed"));
            self.output.push(line);
        }
    }

    pub(crate) fn send(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    pub(crate) fn wait(&mut self) {
        self.child.wait().unwrap();
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        // A failing test must not leave a tree behind: the guardian kills it when its parent is dead.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if self.guardian != 0 && is_alive(self.guardian) {
            send(self.guardian, Signal::CONT);
        }
    }
}

/// Sends a signal to a process, which may have ended.
pub(crate) fn send(pid: i32, signal: Signal) {
    let sent = kill_process(Pid::from_raw(pid).unwrap(), signal);
    assert!(matches!(sent, Ok(()) | Err(rustix::io::Errno::SRCH)), "{sent:?}");
}

pub(crate) fn sh(script: &str) -> Vec<OsString> {
    ["sh", "-c", script].map(OsString::from).into()
}

/// A command that ticks into `file` for ever. Its command line holds the file's name.
pub(crate) fn ticker(file: &Path) -> String {
    format!("while :; do echo tick >>{}; sleep 0.01; done", file.display())
}

pub(crate) fn ticks(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |metadata| metadata.len())
}

pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = clock::now() + PATIENCE;
    while !condition() {
        assert!(clock::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn until_ticking(file: &Path) {
    let before = ticks(file);
    until("it ticks", || ticks(file) > before + 10);
}

/// Moves the deadline, as if the elector had before it was frozen.
pub(crate) fn set_deadline(lease_file: &Path, good_for: Duration) {
    let bytes = encode_deadline(clock::now() + good_for);
    File::options()
        .write(true)
        .open(lease_file)
        .unwrap()
        .write_all_at(&bytes, DEADLINE_OFFSET as u64)
        .unwrap();
}

/// Long enough for a living ticker to tick several times.
pub(crate) fn assert_silent(file: &Path) {
    let before = ticks(file);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(ticks(file), before, "{} still ticks", file.display());
}

pub(crate) fn stat(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    Some(rest.split(' ').map(str::to_owned).collect())
}

pub(crate) fn is_alive(pid: i32) -> bool {
    stat(pid).is_some_and(|fields| fields[0] != "Z" && fields[0] != "X")
}

/// Stopped, or waiting in a vfork for a child that is.
pub(crate) fn is_stopped(pid: i32) -> bool {
    stat(pid).is_some_and(|fields| fields[0] == "T" || fields[0] == "D")
}

/// The living processes whose command line holds `marker`, other than parents and the harness.
pub(crate) fn marked(marker: &Path) -> Vec<i32> {
    let marker = marker.to_str().unwrap();
    let entries = fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains(marker) && !line.contains("\"argv\"") && is_alive(*pid)
    })
    .collect()
}

/// The folder of a process's cgroup (v2), if it has one of its own.
pub(crate) fn own_cgroup(pid: i32) -> Option<PathBuf> {
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    if !path.contains("/incumbent-") {
        return None;
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" cgroup2 ")).unwrap();
    Some(Path::new(mount.split(' ').nth(1).unwrap()).join(path.trim_start_matches('/')))
}
