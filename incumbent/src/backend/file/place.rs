//! The state directory: where it is by default, how it comes to be, and its identity.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use incumbent_core::{Authority, Error, ErrorKind, Result};
use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};

use super::failure::failure;
use super::filesystem;
use super::format::{self, random};
use crate::url::bad;

const IDENTITY: &str = "authority";
const FORMAT: u32 = 1;

// What could not be done to the directory.
const MAKE: &str = "make the state directory";
const WRITE: &str = "write to the state directory";

#[derive(Serialize, Deserialize)]
struct Identity {
    v: u32,
    id: String,
}

/// Where `file:` without a path keeps its state: `/var/lib/incumbent` for root, else `$XDG_STATE_HOME/incumbent`, else
/// `~/.local/state/incumbent`.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] if neither `HOME` nor `XDG_STATE_HOME` says where.
pub fn default_state_dir() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/incumbent"));
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match (absolute("XDG_STATE_HOME"), absolute("HOME")) {
        (Some(state), _) => Ok(state.join("incumbent")),
        (None, Some(home)) => Ok(home.join(".local/state/incumbent")),
        (None, None) => Err(bad("neither XDG_STATE_HOME nor HOME is set; say where with file:/PATH")),
    }
}

/// Checks that the directory can hold elections, or could be made where it is missing, and writes nothing. Tells its identity if
/// it has one.
pub(super) fn examine(dir: &Path) -> Result<Option<Authority>> {
    // Of what is missing, the nearest folder that is there.
    let there = dir.ancestors().find(|path| path.symlink_metadata().is_ok()).unwrap_or(dir);
    match fs::metadata(there) {
        Ok(found) if !found.is_dir() => {
            return Err(failure("use", there, io::Error::from(io::ErrorKind::NotADirectory)));
        }
        Ok(_) => {}
        Err(error) => return Err(failure("examine", there, error)),
    }
    trust(there)?;
    may_use(there).map_err(|error| failure(if there == dir { WRITE } else { MAKE }, dir, error))?;
    known(dir)
}

/// Makes the directory if it is missing, checks that it can hold elections, and tells its identity.
pub(super) fn prepare(dir: &Path) -> Result<Authority> {
    if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        // Nothing was there to be removed: the place itself holds no folders, as /proc does.
        if error.kind() == io::ErrorKind::NotFound {
            return Err(bad(format!(
                "cannot make the state directory {}: {error}; choose another one with file:PATH",
                dir.display()
            )));
        }
        return Err(failure(MAKE, dir, error));
    }
    check(dir)?;
    identity(dir)
}

fn check(dir: &Path) -> Result<()> {
    trust(dir)?;
    may_use(dir).map_err(|error| failure(WRITE, dir, error))
}

/// Whether locks on its file system are known to exclude.
fn trust(dir: &Path) -> Result<()> {
    let trusted = filesystem::check(dir).map_err(|error| failure("examine", dir, error))?;
    if let Err(name) = trusted {
        return Err(bad(format!(
            "{} is on a file system ({name}) whose locks are not known to exclude; choose a directory on a local one (ext4, xfs, btrfs, zfs, tmpfs, overlay, apfs) with file:PATH",
            dir.display()
        )));
    }
    Ok(())
}

fn may_use(dir: &Path) -> rustix::io::Result<()> {
    access(dir, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK)
}

/// Who issues the tokens of this directory. Drawn at random when it is first asked for.
pub(super) fn identity(dir: &Path) -> Result<Authority> {
    if let Some(known) = known(dir)? {
        return Ok(known);
    }
    let path = dir.join(IDENTITY);
    create(dir, &path)?;
    let gone = || failure("read", &path, io::Error::from(io::ErrorKind::NotFound));
    known(dir)?.ok_or_else(gone)
}

/// `None` if nobody has asked for it yet.
fn known(dir: &Path) -> Result<Option<Authority>> {
    let path = dir.join(IDENTITY);
    let mut text = String::new();
    match format::open(&path).map_err(io::Error::from).and_then(|mut file| file.read_to_string(&mut text)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|error| failure("read", &path, error))?,
    };
    match serde_json::from_str::<Identity>(&text) {
        Ok(Identity { v: FORMAT, id }) => Ok(Some(Authority::new(format!("file:{id}")))),
        _ => Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "{} cannot be understood; restore it, or remove it: then fences refuse until they are told to adopt the new authority",
                path.display()
            ),
        )),
    }
}

/// Whole or not at all, and the first one wins.
fn create(dir: &Path, path: &Path) -> Result<()> {
    let identity = Identity { v: FORMAT, id: format!("{:016x}{:016x}", random()?, random()?) };
    let new = dir.join(format!("{IDENTITY}.{:016x}.tmp", random()?));
    let made = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let mut line = serde_json::to_vec(&identity)?;
        line.push(b'\n');
        file.write_all(&line)?;
        file.sync_all()?;
        match fs::hard_link(&new, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }?;
        fs::File::open(dir)?.sync_all()
    })();
    let _ = fs::remove_file(&new);
    made.map_err(|error: io::Error| failure("create", path, error))
}
