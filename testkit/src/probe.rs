//! What this machine lets a test do; asked once per test process, by trying it.

use std::env;
use std::fmt;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::fetch;
use crate::proc::Proc;

/// Something that not every machine allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Tracing a process that is not a child of the tracer.
    Ptrace,
    /// Being root.
    Root,
    /// Making network name spaces.
    NetNs,
    /// Making mount name spaces, and mounting in them: `unshare --map-root-user --mount`.
    MountNs,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Capability::Ptrace => "permission to trace processes with strace",
            Capability::Root => "root",
            Capability::NetNs => "permission to make network name spaces",
            Capability::MountNs => "permission to make user and mount name spaces",
        })
    }
}

/// Fails the test where the machine does not allow what it needs, and says how to leave the test out.
///
/// # Panics
/// If `capability` is not there.
#[track_caller]
pub fn require(capability: Capability) {
    let (there, why) = match capability {
        Capability::Ptrace => match can_ptrace() {
            Ok(()) => (true, String::new()),
            Err(why) => (false, format!(" ({why})")),
        },
        Capability::Root => (is_root(), String::new()),
        Capability::NetNs => (can_netns(), String::new()),
        Capability::MountNs => (can_mountns(), String::new()),
    };
    let group = env::var("INCUMBENT_TEST_GROUP").unwrap_or_else(|_| "GROUP".to_owned());
    assert!(there, "this test needs {capability}{why}; leave it out with: cargo xtask test --skip {group}");
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether strace can attach to a running process; if not, why.
pub fn can_ptrace() -> Result<(), String> {
    static ANSWER: OnceLock<Result<(), String>> = OnceLock::new();
    ANSWER.get_or_init(try_ptrace).clone()
}

fn try_ptrace() -> Result<(), String> {
    let mut sleep = Command::new("sleep");
    sleep.arg("60");
    let target = Proc::spawn(sleep);
    let mut strace = fetch::strace().map_err(|e| e.to_string())?;
    strace.args(["-e", "trace=none", "-p", &target.pid().to_string()]);
    let tracer = Proc::spawn(strace);
    // It begins each line with its own name, which may be a path.
    let answer = tracer.wait_line(|line| line.contains("strace: "), Duration::from_secs(30)).text;
    if answer.contains(" attached") { Ok(()) } else { Err(answer) }
}

/// Whether this process may make a network name space.
pub fn can_netns() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
        unshare.status().is_ok_and(|status| status.success())
    })
}

/// Whether this process may make a mount name space of its own and mount in it.
pub fn can_mountns() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/tmp"]);
        unshare.stdout(Stdio::null()).stderr(Stdio::null());
        unshare.status().is_ok_and(|status| status.success())
    })
}
