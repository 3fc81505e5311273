//! Ends what a test process started, however the test process ends.
//!
//! `Drop` cleans up after a test that returns or panics. A test process that is killed, aborts or calls `exit`
//! runs no `Drop`, and the parent-death signal follows a thread, not a process. So each test process has one
//! reaper: a small `sh` in a process group of its own that reads lines from a pipe (`+ PID`, `- PID`). The pipe
//! ends when the test process is gone, for whatever reason; then the reaper kills the process group of each PID
//! that is still listed and removes the run directory.
//!
//! What the reaper misses, because someone killed it too, the next run sweeps: a run directory holds a lock file
//! that its owner keeps locked, and a directory whose lock is free belongs to nobody any more. It is removed, and
//! processes whose command line names it (each server's does) are killed.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

use crate::clock::now;
use crate::fetch::servers_dir;

const SCRIPT: &str = r#"
trap '' HUP INT TERM
live=
while read -r op pid; do
    if [ "$op" = + ]; then live="$live $pid"; continue; fi
    rest=
    for p in $live; do [ "$p" = "$pid" ] || rest="$rest $p"; done
    live=$rest
done
for p in $live; do kill -s KILL -- "-$p"; done
rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }
"#;

struct Reaper {
    dir: PathBuf,
    pipe: Mutex<ChildStdin>,
    _lock: File,
}

/// A new empty directory under this process's run directory, which is removed when the process ends.
pub fn run_dir(name: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let dir = reaper().dir.join(format!("{name}-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir(&dir).unwrap_or_else(|e| panic!("cannot create {}: {e}", dir.display()));
    dir
}

/// From now on the process group led by `pid` is killed when this process ends.
pub(crate) fn watch(pid: u32) {
    tell('+', pid);
}

/// `pid` is about to be reaped: after that its number may belong to someone else.
pub(crate) fn unwatch(pid: u32) {
    tell('-', pid);
}

fn tell(op: char, pid: u32) {
    let mut pipe = reaper().pipe.lock().unwrap_or_else(PoisonError::into_inner);
    // One write, so that lines stay whole. A reaper that someone killed is no reason to fail a test.
    let _ = pipe.write_all(format!("{op} {pid}\n").as_bytes());
}

fn reaper() -> &'static Reaper {
    static REAPER: OnceLock<Reaper> = OnceLock::new();
    REAPER.get_or_init(|| start().unwrap_or_else(|e| panic!("cannot set up the run directory: {e}")))
}

fn start() -> std::io::Result<Reaper> {
    let runs = servers_dir().join("run");
    fs::create_dir_all(&runs)?;
    // Held until our own lock file is locked, lest another process sweeps our half-made directory.
    let setting_up = File::create(runs.join("lock"))?;
    setting_up.lock()?;
    sweep(&runs);
    let dir = runs.join(format!("p{}-{}", process::id(), now().as_nanos()));
    fs::create_dir(&dir)?;
    let lock = File::create(dir.join("lock"))?;
    lock.lock()?;
    let mut child = Command::new("sh")
        .args(["-c", SCRIPT, "testkit-reaper"])
        .arg(&dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    let pipe = child.stdin.take().expect("stdin was piped");
    Ok(Reaper { dir, pipe: Mutex::new(pipe), _lock: lock })
}

/// Removes the run directories of processes that are gone without their reaper, and kills what works in them.
fn sweep(runs: &Path) {
    let Ok(entries) = fs::read_dir(runs) else { return };
    for dir in entries.flatten().map(|entry| entry.path()) {
        let Ok(lock) = File::open(dir.join("lock")) else { continue };
        if lock.try_lock().is_ok() {
            for pid in processes_that_name(&dir) {
                let _ = kill_process(pid, Signal::KILL);
            }
            let _ = fs::remove_dir_all(&dir);
        }
    }
}

fn processes_that_name(dir: &Path) -> impl Iterator<Item = Pid> {
    let name = format!("{}/", dir.display());
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(move |process| {
        let arguments = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let pid = process.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw)?;
        String::from_utf8_lossy(&arguments).contains(&name).then_some(pid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::wait_until;
    use std::time::Duration;

    #[test]
    fn a_sweep_ends_what_a_lost_run_left_and_spares_a_live_one() {
        let runs = run_dir("runs");
        let sleeper = |name: &str| {
            let dir = runs.join(name);
            fs::create_dir(&dir).unwrap();
            let lock = File::create(dir.join("lock")).unwrap();
            let mut command = Command::new("sh");
            command.args(["-c", "echo ready; sleep 600 & wait", "sh"]).arg(dir.join("data"));
            let proc = crate::Proc::spawn(command);
            // Its command line can be read only some time after it was started.
            proc.wait_line(|line| line == "ready", Duration::from_secs(30));
            (proc, lock, dir)
        };
        let (lost, lost_lock, lost_dir) = sleeper("lost");
        let (live, live_lock, live_dir) = sleeper("live");
        live_lock.lock().unwrap();
        drop(lost_lock);
        sweep(&runs);
        assert!(wait_until(Duration::from_secs(30), || lost.try_wait().is_some()));
        assert!(!lost_dir.exists());
        assert!(live.try_wait().is_none());
        assert!(live_dir.exists());
    }
}
