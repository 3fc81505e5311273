//! Which file systems are trusted: those whose `flock` and `rename` are known to exclude.
//!
//! A list of the good, not of the bad: on a network file system `flock` may succeed on two machines at once.

use std::io;
use std::path::Path;

/// Fails with the file system's name unless it is one of those that are trusted.
pub(crate) fn check(dir: &Path) -> io::Result<Result<(), String>> {
    Ok(judge(kind(dir)?))
}

#[cfg(target_os = "linux")]
type Kind = u32;

#[cfg(target_os = "linux")]
fn kind(dir: &Path) -> io::Result<Kind> {
    // The type's width and sign differ from machine to machine; every magic number fits into 32 bits.
    Ok(rustix::fs::statfs(dir)?.f_type as u32)
}

/// The magic numbers of `statfs(2)`.
#[cfg(target_os = "linux")]
fn judge(magic: Kind) -> Result<(), String> {
    const TRUSTED: [Kind; 6] = [
        0x0000_EF53, // ext2, ext3, ext4
        0x5846_5342, // xfs
        0x9123_683E, // btrfs
        0x2FC1_2FC1, // zfs
        0x0102_1994, // tmpfs
        0x794C_7630, // overlay
    ];
    const NAMED: [(Kind, &str); 12] = [
        (0x0000_6969, "nfs"),
        (0x0000_517B, "smb"),
        (0xFF53_4D42, "cifs"),
        (0xFE53_4D42, "smb2"),
        (0x6573_5546, "fuse"),
        (0x0102_1997, "9p"),
        (0x00C3_6400, "ceph"),
        (0x5346_414F, "afs"),
        (0x7461_636F, "ocfs2"),
        (0x0116_1970, "gfs2"),
        (0x786F_4256, "vboxsf"),
        (0x0000_4D44, "vfat"),
    ];
    if TRUSTED.contains(&magic) {
        return Ok(());
    }
    let name = NAMED.iter().find(|(known, _)| *known == magic);
    Err(name.map_or_else(|| format!("of type {magic:#x}"), |(_, name)| (*name).to_owned()))
}

#[cfg(target_os = "macos")]
fn kind(dir: &Path) -> io::Result<String> {
    let name = rustix::fs::statfs(dir)?.f_fstypename;
    Ok(name.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect())
}

#[cfg(target_os = "macos")]
fn judge(name: String) -> Result<(), String> {
    if name == "apfs" { Ok(()) } else { Err(name) }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn local_file_systems_pass_and_network_file_systems_are_named() {
        for magic in [0xEF53, 0x5846_5342, 0x9123_683E, 0x2FC1_2FC1, 0x0102_1994, 0x794C_7630] {
            assert_eq!(judge(magic), Ok(()), "{magic:#x}");
        }
        for (magic, name) in
            [(0x6969, "nfs"), (0xFF53_4D42, "cifs"), (0x6573_5546, "fuse"), (0x0102_1997, "9p")]
        {
            assert_eq!(judge(magic), Err(name.to_owned()));
        }
        assert_eq!(judge(0x1234_5678), Err("of type 0x12345678".to_owned()));
    }

    #[test]
    fn the_magic_number_is_read_from_the_directory() {
        // proc is no place for elections, and it is everywhere.
        assert_eq!(check(Path::new("/proc")).unwrap(), Err("of type 0x9fa0".to_owned()));
    }
}
