//! The files of an election: their names, and a record's bytes (one line of JSON as a header, then the body as it is).
//!
//! An election's name stands in front, a suffix behind it, so that names need no escaping and no two files collide.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use incumbent_core::record::RecordKey;
use incumbent_core::{ElectionName, Error, ErrorKind, Nonce, Note, Result, Stored};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::failure::failure;

/// The version of the header. A newer one is refused unchanged.
const FORMAT: u32 = 1;
/// More than any record of ours has.
const LENGTH_MAX: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
struct Header {
    v: u32,
    election: ElectionName,
    version: u64,
    token: u64,
}

pub(super) fn record_path(dir: &Path, key: &RecordKey) -> PathBuf {
    let suffix = match key.note {
        None => "record",
        Some(Note::Checkpoint) => "checkpoint",
        Some(Note::Handover) => "handover",
    };
    dir.join(format!("{}.{suffix}", key.election))
}

pub(super) fn lock_path(dir: &Path, election: &ElectionName) -> PathBuf {
    dir.join(format!("{election}.lock"))
}

/// What is to become a record or a note.
pub(super) fn new_path(dir: &Path, election: &ElectionName) -> Result<PathBuf> {
    Ok(dir.join(format!("{election}.{:016x}.new", random()?)))
}

pub(super) fn alive_path(dir: &Path, election: &ElectionName, nonce: Nonce) -> PathBuf {
    dir.join(format!("{election}.{nonce}.alive"))
}

/// A file in the state directory that others want to hear of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Named<'a> {
    /// A record or a note that is looked at when it changes.
    Record(&'a str),
    /// A campaign's liveness lock.
    Alive(&'a str, Nonce),
    /// What is to become a record.
    New,
}

impl<'a> Named<'a> {
    pub(super) fn parse(name: &'a str) -> Option<Named<'a>> {
        match name.rsplit_once('.')? {
            (election, "record" | "handover") => Some(Named::Record(election)),
            (rest, "alive") => {
                let (election, nonce) = rest.rsplit_once('.')?;
                Some(Named::Alive(election, nonce.parse().ok()?))
            }
            (_, "new") => Some(Named::New),
            _ => None,
        }
    }
}

/// Opens a file to read it, whatever it is: a pipe must not block, a link must not lead elsewhere.
pub(super) fn open(path: &Path) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::empty()).map(File::from)
}

pub(super) fn encode(election: &ElectionName, version: u64, token: u64, body: &[u8]) -> Result<Vec<u8>> {
    let header = Header { v: FORMAT, election: election.clone(), version, token };
    let mut bytes = serde_json::to_vec(&header)
        .map_err(|error| Error::new(ErrorKind::Internal, "a header cannot be written").with_source(error))?;
    bytes.push(b'\n');
    bytes.extend_from_slice(body);
    Ok(bytes)
}

/// Reads a record or note whole. What has no header gets a version that stands for its bytes.
pub(super) fn read(path: &Path, election: &ElectionName) -> Result<Option<Stored>> {
    match open(path) {
        Ok(file) => read_file(&file, path, election).map(Some),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(failure("read", path, error)),
    }
}

/// As [`read`], from the file that was opened under `path`.
pub(super) fn read_file(file: &File, path: &Path, election: &ElectionName) -> Result<Stored> {
    let metadata = file.metadata().map_err(|error| failure("read", path, error))?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "a directory" } else { "a device or a pipe" };
        let text = format!("{} is {what}, not a plain file; move it away", path.display());
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    let mut bytes = Vec::new();
    file.take(LENGTH_MAX).read_to_end(&mut bytes).map_err(|error| failure("read", path, error))?;
    let fingerprint = fingerprint(&bytes, &metadata);
    decode(path, election, bytes, fingerprint)
}

fn decode(path: &Path, election: &ElectionName, mut bytes: Vec<u8>, fingerprint: u64) -> Result<Stored> {
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    let line = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    match serde_json::from_slice(&bytes[..line]) {
        Ok(Version { v }) if v > FORMAT => {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{} has format {v}, newer than {FORMAT}, which this release understands; update this program",
                    path.display()
                ),
            ));
        }
        _ => {}
    }
    match serde_json::from_slice::<Header>(&bytes[..line]) {
        Ok(header) if header.election == *election => {
            let body = bytes.split_off((line + 1).min(bytes.len()));
            Ok(Stored { version: header.version, token: header.token, body })
        }
        Ok(header) => Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "{} belongs to the election {}: it was copied, or this file system takes upper and lower case for the same; remove it, or choose another name",
                path.display(),
                header.election
            ),
        )),
        Err(_) => Ok(Stored { version: fingerprint, token: 0, body: bytes }),
    }
}

/// Differs where the bytes, or the file that holds them, differ (FNV-1a).
fn fingerprint(bytes: &[u8], metadata: &std::fs::Metadata) -> u64 {
    let file = [metadata.ino(), metadata.len(), metadata.mtime() as u64, metadata.mtime_nsec() as u64];
    let file = file.iter().flat_map(|number| number.to_le_bytes());
    bytes
        .iter()
        .copied()
        .chain(file)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// 64 random bits.
pub(super) fn random() -> Result<u64> {
    getrandom::u64().map_err(|error| {
        Error::new(ErrorKind::Internal, "the operating system gives no random numbers").with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> ElectionName {
        ElectionName::new(name).unwrap()
    }

    #[test]
    fn names_of_files_lead_back_to_their_election() {
        let dir = Path::new("");
        let nonce = Nonce(7);
        for election in ["a", "a.record", "a.lock", "a.00000000000000000000000000000007", "x.alive"] {
            let key = RecordKey { election: name(election), note: None };
            let path = record_path(dir, &key);
            assert_eq!(Named::parse(path.to_str().unwrap()), Some(Named::Record(election)));
            let path = alive_path(dir, &name(election), nonce);
            assert_eq!(Named::parse(path.to_str().unwrap()), Some(Named::Alive(election, nonce)));
        }
        let new = new_path(dir, &name("a")).unwrap();
        assert_eq!(Named::parse(new.to_str().unwrap()), Some(Named::New));
        for other in ["authority", "a.lock", "a.alive", "a.7.alive", "a.checkpoint"] {
            assert_eq!(Named::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let election = name("billing");
        let bytes = encode(&election, 5, 7, b"two\nlines").unwrap();
        let stored = decode(Path::new("x"), &election, bytes, 99).unwrap();
        assert_eq!((stored.version, stored.token, stored.body.as_slice()), (5, 7, &b"two\nlines"[..]));
    }

    #[test]
    fn unknown_fields_are_no_offence_and_a_newer_format_is() {
        let read = |text: &str| decode(Path::new("x"), &name("e"), text.as_bytes().to_vec(), 99);
        let stored = read(r#"{"v":1,"election":"e","version":5,"token":7,"new":[1]}"#).unwrap();
        assert_eq!((stored.version, stored.token), (5, 7));
        let error = read("{\"v\":2,\"what\":\"ever\"}\n{}").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("update this program"), "{error}");
    }

    #[test]
    fn garbage_keeps_its_bytes_and_gets_their_fingerprint() {
        for text in ["", "\n", "garbage", "{\"v\":1}\nbody", "{\"v\":\"x\"}"] {
            let stored = decode(Path::new("x"), &name("e"), text.as_bytes().to_vec(), 99).unwrap();
            assert_eq!((stored.version, stored.token, stored.body.as_slice()), (99, 0, text.as_bytes()));
        }
    }

    #[test]
    fn a_record_of_another_election_is_refused() {
        let bytes = encode(&name("Billing"), 5, 7, b"").unwrap();
        let error = decode(Path::new("x"), &name("billing"), bytes, 99).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}
