//! A cgroup (v2) for the processes of one test, apart from those of other tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::clock::wait_until;

/// A cgroup below that of the test. Dropping it kills everything in it and removes it.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes one; `None` where that is not allowed, or the kernel cannot kill it.
    pub fn new() -> Option<Cgroup> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let mount = mounts.lines().find(|line| line.contains(" cgroup2 "))?.split(' ').nth(1)?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let name = format!("test-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let cgroup = Cgroup { path: Path::new(mount).join(own).join(name) };
        fs::create_dir(&cgroup.path).ok()?;
        cgroup.path.join("cgroup.kill").exists().then_some(cgroup)
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `command`, started in here. Its streams are not taken over.
    pub fn command(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo 0 >\"$0\" && exec \"$@\""]).arg(self.path.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            inside.current_dir(dir);
        }
        inside
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        wait_until(Duration::from_secs(10), || remove(&self.path));
    }
}

fn remove(path: &Path) -> bool {
    let below = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in below.filter(|path| path.is_dir()) {
        remove(&path);
    }
    fs::remove_dir(path).is_ok()
}
