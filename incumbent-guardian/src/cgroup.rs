//! A cgroup (v2) of the command's own, where one may be made: the kernel then kills all of it at once.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
#[cfg(target_os = "linux")]
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// How every name begins. Then comes the [number](root) of what its path begins in; the rest, of the guardian that made it, makes it
/// unique in this boot.
const PREFIX: &str = "incumbent-job-";
/// The type of a file system of cgroups.
#[cfg(target_os = "linux")]
const CGROUP2: rustix::fs::FsWord = 0x6367_7270;
/// How often a cgroup is made anew that a sweep removed before it was locked.
const ATTEMPTS: usize = 8;

/// The folder of this process's own cgroup, below which others may be made.
///
/// # Errors
/// Where there is no cgroup v2, or it is mounted elsewhere only.
pub(crate) fn base() -> io::Result<PathBuf> {
    let mounts = fs::read("/proc/self/mountinfo")?;
    let own = fs::read("/proc/self/cgroup")?;
    locate(&mounts, &own).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The cgroup of one command. It is not removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
    lock: Option<File>,
}

impl Cgroup {
    /// Makes a cgroup in `base` and [locks](Cgroup::lock) it.
    ///
    /// # Errors
    /// Where the cgroups are mounted read-only or belong to somebody else, or the kernel (before 5.14) cannot kill one:
    /// then do without.
    pub(crate) fn create(base: &Path) -> io::Result<Cgroup> {
        for _ in 0..ATTEMPTS {
            let now = crate::clock::now().as_nanos();
            let name = format!("{PREFIX}{}-{}-{now}", root(base).unwrap_or(0), std::process::id());
            let mut cgroup = Cgroup::existing(base.join(name));
            fs::create_dir(&cgroup.path)?;
            let locked = cgroup.lock();
            // A sweep that met it before it was locked has removed it, or is about to.
            if locked.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
                || !cgroup.path.exists()
            {
                continue;
            }
            if let Err(error) = locked {
                cgroup.remove()?;
                return Err(error);
            }
            return Ok(cgroup);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// The cgroup that a guardian made.
    pub(crate) fn existing(path: PathBuf) -> Cgroup {
        Cgroup { path, lock: None }
    }

    /// Takes the lock that a guardian holds on its cgroup as long as it lives: where it is free, nobody guards the
    /// processes in there. It is on the file that kills them, so only who may kill them can take it. Held until this is
    /// dropped, or this process dies.
    ///
    /// # Errors
    /// `WouldBlock` if its guardian lives, or somebody is killing what that left; those of opening the file.
    pub(crate) fn lock(&mut self) -> io::Result<()> {
        // Closed on exec, so that the command does not have it.
        let file = File::options().write(true).open(self.path.join("cgroup.kill"))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        self.lock = Some(file);
        Ok(())
    }

    /// Whether its name is one that guardians give.
    pub(crate) fn is_named_by_a_guardian(&self) -> bool {
        let name = self.path.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| name.starts_with(PREFIX))
    }

    /// Whether it is gone: not there, though this process sees what its path begins in. To a process in another cgroup namespace, or
    /// without the mount, the same path means something else or nothing.
    pub(crate) fn is_gone(&self) -> bool {
        let name = self.path.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_prefix(PREFIX));
        let root = name.and_then(|name| name.split('-').next()?.parse().ok());
        let is_missing =
            self.path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        is_missing && root.is_some() && self.path.ancestors().any(|above| number(above) == root)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder as a descriptor, to start a process in it.
    pub(crate) fn open(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    /// Stops and kills every process in it. One write each: no fork can slip through.
    pub(crate) fn kill(&self) {
        // Stopped first, so that no process reacts to the death of another. A killed process leaves the freezer.
        let _ = fs::write(self.path.join("cgroup.freeze"), "1");
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
    }

    /// Whether no living process is in it. If that cannot be read, it is not known to be empty.
    pub(crate) fn is_empty(&self) -> bool {
        match fs::read_to_string(self.path.join("cgroup.events")) {
            Ok(events) => events.lines().any(|line| line == "populated 0"),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// The pids in it and in those below it, for a report.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let pids = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        let below = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let below = below.flat_map(|entry| Cgroup::existing(entry.path()).pids());
        pids.lines().filter_map(|pid| pid.parse().ok()).chain(below).collect()
    }

    /// Removes it, and the empty ones that the command made below it.
    pub(crate) fn remove(&self) -> io::Result<()> {
        remove_tree(&self.path)
    }
}

/// The number of the outermost cgroup that a path leads through, which no other cgroup has in this boot.
fn root(path: &Path) -> Option<u64> {
    path.ancestors().map_while(number).last()
}

/// The number of a cgroup, the same wherever it is seen; `None` if the path is that of none.
#[cfg(target_os = "linux")]
fn number(path: &Path) -> Option<u64> {
    let is_cgroup = rustix::fs::statfs(path).ok()?.f_type == CGROUP2;
    is_cgroup.then(|| fs::metadata(path).ok().map(|cgroup| cgroup.ino()))?
}

#[cfg(not(target_os = "linux"))]
fn number(_path: &Path) -> Option<u64> {
    None
}

fn remove_tree(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

/// The folder of a process's cgroup, from its `mountinfo` and `cgroup`.
fn locate(mounts: &[u8], own: &[u8]) -> Option<PathBuf> {
    let own = own.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"0::"))?;
    let own = Path::new(OsStr::from_bytes(own));
    mounts.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let separator = fields.iter().position(|field| *field == b"-")?;
        if *fields.get(separator + 1)? != b"cgroup2" {
            return None;
        }
        let root = PathBuf::from(unescape(fields.get(3)?));
        let mount = PathBuf::from(unescape(fields.get(4)?));
        // A mount of another part of the hierarchy does not show our own cgroup.
        let below = own.strip_prefix(root).ok()?;
        if below.components().any(|component| component == std::path::Component::ParentDir) {
            return None;
        }
        Some(mount.join(below))
    })
}

/// Undoes the octal escapes of mountinfo.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let code = (byte == b'\\').then(|| after.get(..3)).flatten();
        let code = code.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_its_own_folder_on_a_unified_and_on_a_hybrid_machine() {
        let unified = b"25 30 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let own = b"0::/user.slice/user-1000.slice/session-2.scope\n";
        let expected = "/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope";
        assert_eq!(locate(unified, own), Some(expected.into()));

        let hybrid = b"32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                       41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let own = b"9:name=systemd:/a\n0::/b\n";
        assert_eq!(locate(hybrid, own), Some("/sys/fs/cgroup/unified/b".into()));
        assert_eq!(locate(hybrid, b"9:name=systemd:/a\n"), None);
        assert_eq!(locate(b"32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", own), None);
    }

    #[test]
    fn a_mount_of_a_part_is_seen_relative_to_it_and_a_foreign_part_is_not_used() {
        let mounts = b"1 2 0:1 /pods/a\\040b /cg\\040roups rw - cgroup2 cgroup2 rw\n";
        assert_eq!(locate(mounts, b"0::/pods/a b/c\n"), Some("/cg roups/c".into()));
        assert_eq!(locate(mounts, b"0::/elsewhere\n"), None);
        let mounts = b"1 2 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(locate(mounts, b"0::/../other\n"), None);
    }
}
