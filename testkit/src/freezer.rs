//! Mounts of one test, and processes that not even SIGKILL reaches. Root alone can make them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::clock::{now, wait_until};
use crate::reaper::run_dir;

const PATIENCE: Duration = Duration::from_secs(30);

/// A mount on a folder of its own. Dropping it takes it away.
#[derive(Debug)]
pub struct Mount(PathBuf);

impl Mount {
    /// Mounts a file system of this kind.
    ///
    /// # Panics
    /// Where that is not allowed.
    pub fn new(kind: &str, options: &str) -> Mount {
        let dir = run_dir("mount");
        let mut mount = Command::new("mount");
        mount.args(["-t", kind, "-o", options, "incumbent-test"]).arg(&dir);
        assert!(
            mount.status().is_ok_and(|status| status.success()),
            "{kind} ({options}) cannot be mounted here"
        );
        Mount(dir)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}

/// A cgroup (v1) whose frozen processes sleep uninterruptibly: SIGKILL does not reach them. Dropping it thaws them.
#[derive(Debug)]
pub struct Freezer {
    path: PathBuf,
    _mount: Mount,
}

impl Freezer {
    /// Makes one with nothing in it.
    ///
    /// # Panics
    /// Where that is not allowed.
    #[expect(clippy::new_without_default, reason = "it panics")]
    pub fn new() -> Freezer {
        let mount = Mount::new("cgroup", "freezer");
        let path = mount.path().join(format!("incumbent-test-{}", now().as_nanos()));
        fs::create_dir(&path).expect("a cgroup");
        Freezer { path, _mount: mount }
    }

    /// Moves a process into it.
    ///
    /// # Panics
    /// If there is no such process.
    pub fn add(&self, pid: u32) {
        fs::write(self.path.join("cgroup.procs"), pid.to_string()).expect("a process");
    }

    /// Freezes what is in it.
    pub fn freeze(&self) {
        self.set("FROZEN");
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.set("THAWED");
    }

    fn set(&self, state: &str) {
        let file = self.path.join("freezer.state");
        fs::write(&file, state).expect("a state");
        let reached = || fs::read_to_string(&file).is_ok_and(|now| now.trim() == state);
        assert!(wait_until(PATIENCE, reached), "it is not {state}");
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = fs::write(self.path.join("freezer.state"), "THAWED");
        wait_until(Duration::from_secs(2), || fs::remove_dir(&self.path).is_ok());
    }
}
