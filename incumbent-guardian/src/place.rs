//! Where lease files lie, and the links to what their terms may leave running.
//!
//! No variable of the environment moves these folders, so that every run of a user on a machine finds what another has left,
//! whether it came from a login, from cron or from a service. Each belongs to its user alone: in a folder that somebody else
//! can write to, a forged link would have a guardian kill what it should not.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::geteuid;

const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// The folder for new lease files: `/run/incumbent`, which root makes and others use where it was given to them, else
/// `/run/user/UID/incumbent`, else `/tmp/incumbent-UID`, else one in `state_dir` whose name holds the boot id, since a deadline means
/// nothing after a reboot. It is made if it is missing, and one that is not this user's alone is passed over.
///
/// # Errors
/// That of the last choice, if none of them can be used.
pub fn lease_dir(state_dir: &Path) -> io::Result<PathBuf> {
    places().into_iter().find(|place| usable(place).is_ok()).map_or_else(|| lease_dir_in(state_dir), Ok)
}

/// The last choice.
pub(crate) fn lease_dir_in(state_dir: &Path) -> io::Result<PathBuf> {
    let dir = state_dir.join(format!("lease-{}", boot_id()));
    DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    access(&dir, Access::WRITE_OK | Access::EXEC_OK)?;
    Ok(dir)
}

/// The folders in which runs of this user may have left something: which one a run chose may depend on whether its user was logged in.
pub(crate) fn known() -> impl Iterator<Item = PathBuf> {
    places().into_iter().filter(|place| examine(place).is_ok())
}

fn places() -> [PathBuf; 3] {
    let user = geteuid().as_raw();
    [
        PathBuf::from("/run/incumbent"),
        PathBuf::from(format!("/run/user/{user}/incumbent")),
        PathBuf::from(format!("/tmp/incumbent-{user}")),
    ]
}

/// Makes the folder, if what it lies in is there, and makes sure that it can be used.
///
/// # Errors
/// Any that making gives, and where the folder is not this user's alone.
pub(crate) fn usable(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => examine(dir),
    }
}

/// Makes sure that a folder is this user's alone, and that nobody else can put another in its place.
fn examine(dir: &Path) -> io::Result<()> {
    let user = geteuid().as_raw();
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, why.to_owned()));
    // Not what a link leads to.
    let found = fs::symlink_metadata(dir)?;
    if !found.is_dir() || found.uid() != user || found.mode() & WRITABLE_BY_OTHERS != 0 {
        return refused("it is no folder of this user alone");
    }
    let above = fs::metadata(dir.parent().unwrap_or(dir))?;
    let others_write = above.mode() & WRITABLE_BY_OTHERS != 0 && above.mode() & STICKY == 0;
    if others_write || ![0, user].contains(&above.uid()) {
        return refused("others can replace it");
    }
    Ok(access(dir, Access::WRITE_OK | Access::EXEC_OK)?)
}

#[cfg(target_os = "linux")]
fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_or_else(|_| "unknown-boot".into(), |id| id.trim().to_owned())
}

/// Without a boot id a leftover of another boot is still harmless: the sweep finds its lock free.
#[cfg(not(target_os = "linux"))]
fn boot_id() -> String {
    "unknown-boot".into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_folder_that_is_made_is_this_users_alone() {
        let above = tempfile::tempdir().unwrap();
        set_mode(above.path(), 0o1777);
        let made = above.path().join("incumbent");
        usable(&made).unwrap();
        assert_eq!(fs::metadata(&made).unwrap().mode() & 0o777, 0o700);
        usable(&made).unwrap();
    }

    /// As in /tmp, where everybody can be first.
    #[test]
    fn a_folder_that_somebody_else_prepared_is_passed_over() {
        let above = tempfile::tempdir().unwrap();
        set_mode(above.path(), 0o1777);
        let path = |name: &str| above.path().join(name);
        usable(&path("own")).unwrap();
        symlink(path("own"), path("link")).unwrap();
        fs::write(path("file"), "").unwrap();
        fs::create_dir(path("open")).unwrap();
        set_mode(&path("open"), 0o777);
        fs::create_dir(path("group")).unwrap();
        set_mode(&path("group"), 0o770);
        for name in ["link", "file", "open", "group"] {
            assert!(usable(&path(name)).is_err(), "{name}");
        }
        if geteuid().is_root() {
            fs::create_dir(path("foreign")).unwrap();
            chown(path("foreign"), Some(65534), None).unwrap();
            assert!(usable(&path("foreign")).is_err());
        }
    }

    #[test]
    fn a_folder_that_others_can_replace_is_passed_over() {
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("incumbent");
        usable(&dir).unwrap();
        set_mode(above.path(), 0o777);
        assert!(usable(&dir).is_err());
        set_mode(above.path(), 0o700);
        assert!(usable(&dir).is_ok());
    }

    #[test]
    fn the_last_choice_carries_the_boot_id_and_none_is_moved_by_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        assert!(usable(Path::new("/proc/incumbent")).is_err());
        let chosen = lease_dir(dir.path()).unwrap();
        assert!(
            places().contains(&chosen) || chosen == dir.path().join(format!("lease-{}", boot_id())),
            "{chosen:?}"
        );
        assert!(known().all(|place| places().contains(&place)));
    }
}
