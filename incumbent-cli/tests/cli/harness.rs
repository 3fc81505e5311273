//! How these tests start the binary: in an environment of their own, each with folders of its own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testkit::{Cgroup, Proc, Stream};

/// How long something may take that takes milliseconds on an idle machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// A folder with an embedded store and whatever the jobs of a test write.
pub(crate) struct World {
    dir: tempfile::TempDir,
}

impl World {
    pub(crate) fn new() -> World {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("home")).expect("a folder");
        World { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The binary with nothing of this process's environment that concerns it.
    pub(crate) fn incumbent<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_incumbent"));
        command.args(arguments);
        command
    }

    /// A shell that finds the binary as `$INCUMBENT`.
    pub(crate) fn shell(&self, script: &str) -> Proc {
        let mut command = self.command("sh");
        command.args(["-c", script]);
        Proc::spawn(command)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir.path());
        for name in [
            "INCUMBENT_ON",
            "INCUMBENT_ELECTION",
            "INCUMBENT_ID",
            "INCUMBENT_TOKEN",
            "INCUMBENT_AUTHORITY",
            "INCUMBENT_LEASE_FILE",
            "POD_NAME",
            "KUBERNETES_SERVICE_HOST",
            "container",
        ] {
            command.env_remove(name);
        }
        command.env("HOME", self.path("home"));
        command.env("INCUMBENT", env!("CARGO_BIN_EXE_incumbent"));
        command
    }

    /// `incumbent run billing OPTIONS -- sh -c SCRIPT`; the script finds the binary as `$INCUMBENT`.
    pub(crate) fn run(&self, options: &[&str], script: &str) -> Proc {
        self.run_in(None, options, script)
    }

    /// [`World::run`], in a cgroup where one may be made.
    pub(crate) fn run_in(&self, cgroup: Option<&Cgroup>, options: &[&str], script: &str) -> Proc {
        let arguments = [&["run", "billing"], options, &["--", "sh", "-c", script]].concat();
        let command = self.incumbent(&arguments);
        Proc::spawn(cgroup.map(|cgroup| cgroup.command(&command)).unwrap_or(command))
    }

    /// Runs to the end: exit code, stdout, stderr.
    pub(crate) fn output<S: AsRef<OsStr>>(&self, arguments: &[S]) -> (i32, String, String) {
        ended(&Proc::spawn(self.incumbent(arguments)))
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

/// Waits for the end: exit code, stdout, stderr.
#[track_caller]
pub(crate) fn ended(process: &Proc) -> (i32, String, String) {
    let code = code(process);
    (code, process.text(Stream::Out), process.text(Stream::Err))
}

/// Waits for the end: the exit code, which there must be.
#[track_caller]
pub(crate) fn code(process: &Proc) -> i32 {
    let status = process.wait(SOON);
    status.code().unwrap_or_else(|| panic!("ended by a signal: {}", process.transcript()))
}

/// Waits until a job says `leading TOKEN` for the `terms`-th time, and gives that token.
#[track_caller]
pub(crate) fn wait_leading(process: &Proc, terms: usize) -> u64 {
    let lines = process.wait_lines(terms, |line| line.starts_with("leading "), SOON);
    lines[terms - 1].text["leading ".len()..].parse().expect("a token")
}

#[track_caller]
pub(crate) fn wait_standby(process: &Proc) {
    process.wait_line(|line| line.starts_with("standby: billing is led by"), SOON);
}

/// The state letter of a process, `None` if it is gone.
pub(crate) fn state_of(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Whether a process runs or could run: neither gone nor dead and unburied.
pub(crate) fn lives(pid: u32) -> bool {
    state_of(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// The pid that a job wrote to a file, once it is there.
#[track_caller]
pub(crate) fn pid_in(path: &Path) -> u32 {
    let mut pid = None;
    testkit::wait_until(SOON, || {
        pid = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
        pid.is_some()
    });
    pid.unwrap_or_else(|| panic!("no pid in {}", path.display()))
}

/// The children of a process, of all its threads.
pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    children
        .flat_map(|text| text.split_whitespace().flat_map(str::parse).collect::<Vec<u32>>())
        .filter(|pid| lives(*pid))
        .collect()
}

/// The guardian of a parent: its child.
#[track_caller]
pub(crate) fn guardian(parent: &Proc) -> u32 {
    let children = children_of(parent.pid());
    assert_eq!(children.len(), 1, "{children:?}");
    children[0]
}

/// Sends a signal to a process that is not this one's child.
pub(crate) fn send(pid: u32, signal: testkit::Signal) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    let _ = rustix::process::kill_process(pid, signal);
}
