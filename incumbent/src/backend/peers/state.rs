//! What a peer keeps on its disk, and how it is written: a whole new file, fsync, rename, fsync of the folder.
//!
//! A file is `INCPSTAT`, the version of the format, the kind, the length of the body, the body in the format of `postcard`, and the
//! SHA-256 of all of it. Nothing but `incumbent peer init` makes a state: a peer that has lost what it promised must not begin anew
//! under its name.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use incumbent_core::peers::members::Membership;
use incumbent_core::peers::register::Acceptor;
use incumbent_core::peers::{Durable, Term};
use incumbent_core::{Authority, CandidateId, ElectionName, Error, ErrorKind, Nonce, Result};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::wire::{Kind, Register};

const MAGIC: &[u8; 8] = b"INCPSTAT";
/// 2: the list of peers stands in the state.
const VERSION: u16 = 2;
/// The state of a peer, and a note that it keeps.
const STATE: u16 = 1;
const NOTE: u16 = 2;
/// Magic, version, kind and length.
const HEAD: usize = 8 + 2 + 2 + 8;
/// Longer than 10 000 elections or a checkpoint; a file that is longer is none of ours.
const FILE_MAX: u64 = 64 << 20;

/// How many elections one peer takes part in. What it promised in one it must remember for ever.
pub(super) const ELECTIONS_MAX: usize = 10_000;

/// All that a peer must remember.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(super) cluster: Authority,
    pub(super) name: CandidateId,
    /// Drawn when the state was made: it tells this peer from another one of its name.
    pub(super) nonce: Nonce,
    /// The other members, as they were met first.
    pub(super) known: BTreeMap<CandidateId, Nonce>,
    pub(super) elections: BTreeMap<ElectionName, Vote>,
    /// The list of peers and this peer's part in its changes. `None` before the first start: then it is the URL's.
    pub(super) membership: Option<Membership>,
}

/// A state of format 1.
#[derive(Deserialize)]
struct StateOne {
    cluster: Authority,
    name: CandidateId,
    nonce: Nonce,
    known: BTreeMap<CandidateId, Nonce>,
    elections: BTreeMap<ElectionName, Vote>,
}

impl From<StateOne> for State {
    fn from(one: StateOne) -> State {
        let StateOne { cluster, name, nonce, known, elections } = one;
        State { cluster, name, nonce, known, elections, membership: None }
    }
}

/// What a peer must remember of one election.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Vote {
    term: Term,
    voted_for: Option<CandidateId>,
}

impl State {
    /// What the peer must remember of `election`, in the form of the protocols.
    pub(super) fn durable(&self, election: &ElectionName) -> Durable {
        let mut durable = Durable::new(self.cluster.clone(), self.name.clone());
        if let Some(vote) = self.elections.get(election) {
            durable.term = vote.term;
            durable.voted_for.clone_from(&vote.voted_for);
        }
        durable
    }

    /// The greatest term in any election.
    pub(super) fn highest_term(&self) -> Term {
        self.elections.values().map(|vote| vote.term).max().unwrap_or(Term(0))
    }

    /// The bytes of the state's file.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        encode(STATE, self)
    }

    pub(super) fn set(&mut self, election: ElectionName, durable: &Durable) {
        let vote = Vote { term: durable.term, voted_for: durable.voted_for.clone() };
        self.elections.insert(election, vote);
    }
}

/// A peer's folder, which no other process uses.
#[derive(Debug)]
pub(super) struct Folder {
    dir: PathBuf,
    /// Held as long as this lives.
    lock: File,
}

impl Folder {
    /// Makes the state of a new peer.
    ///
    /// # Errors
    /// If there is one already, or the folder cannot be written.
    pub(super) fn init(dir: &Path, state: &State) -> Result<()> {
        fs::create_dir_all(dir.join("notes")).map_err(|error| unwritable(dir, error))?;
        let folder = Folder { dir: dir.to_owned(), lock: lock(dir)? };
        if folder.state_file().exists() {
            let text = format!(
                "{} is the state of a peer already; it is kept as it is, since a peer that forgets what it promised can make two leaders",
                folder.state_file().display()
            );
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        folder.write_state(&state.encode()?)?;
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_folder(parent).map_err(|error| unwritable(parent, error))?;
        }
        Ok(())
    }

    /// Takes the folder and reads its state.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] with what to do; [`ErrorKind::NotFound`] if there is no state.
    pub(super) fn open(dir: &Path) -> Result<(Folder, State)> {
        let path = dir.join("state");
        if !path.exists() {
            return Err(missing(&path));
        }
        let folder = Folder { dir: dir.to_owned(), lock: lock(dir)? };
        let state = read::<State>(&path)?;
        let state = state.ok_or_else(|| corrupt(&path, "it vanished"))?;
        Ok((folder, state))
    }

    /// Says in the lock which run of the peer holds it, for [`look`].
    pub(super) fn sign(&self, run: Nonce) {
        // Without it nothing is missing but a check of who looks.
        let _ = self.lock.set_len(0).and_then(|()| (&self.lock).write_all(&run.0.to_le_bytes()));
    }

    pub(super) fn write_state(&self, bytes: &[u8]) -> Result<()> {
        self.write(&self.state_file(), bytes)
    }

    /// The note as it stands on this disk.
    pub(super) fn read_note(&self, register: &Register) -> Result<Acceptor> {
        Ok(read::<Acceptor>(&self.note_file(register))?.unwrap_or_default())
    }

    /// The notes that stand on this disk.
    pub(super) fn notes(&self) -> Result<Vec<Register>> {
        let dir = self.dir.join("notes");
        let unreadable = |error: io::Error| corrupt(&dir, &error.to_string());
        let mut notes = Vec::new();
        for entry in fs::read_dir(&dir).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name();
            let found = name.to_str().and_then(|name| name.rsplit_once('.')).and_then(|(election, kind)| {
                let kind = match kind {
                    "checkpoint" => Kind::Checkpoint,
                    "handover" => Kind::Handover,
                    _ => return None,
                };
                Some(Register { election: ElectionName::new(election).ok()?, kind })
            });
            notes.extend(found);
        }
        Ok(notes)
    }

    pub(super) fn write_note(&self, register: &Register, acceptor: &Acceptor) -> Result<()> {
        self.write(&self.note_file(register), &encode(NOTE, acceptor)?)
    }

    fn state_file(&self) -> PathBuf {
        self.dir.join("state")
    }

    fn note_file(&self, register: &Register) -> PathBuf {
        let kind = match register.kind {
            Kind::Checkpoint => "checkpoint",
            Kind::Handover => "handover",
        };
        self.dir.join("notes").join(format!("{}.{kind}", register.election))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let new = self.dir.join("new");
        let written = || -> io::Result<()> {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&new, path)?;
            sync_folder(path.parent().unwrap_or(&self.dir))
        };
        written().map_err(|error| unwritable(path, error))
    }
}

/// Who uses a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum User {
    Nobody,
    /// This run of the peer, in another process.
    Run(Nonce),
    /// A process that has not said which run it is.
    Somebody,
}

/// Reads a state that this process does not take. `None`: this user must not read it.
///
/// # Errors
/// As [`Folder::open`], of what it reads.
pub(super) fn look(dir: &Path) -> Result<Option<(State, User)>> {
    let path = dir.join("state");
    if File::open(&path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
        return Ok(None);
    }
    let state = read::<State>(&path)?.ok_or_else(|| missing(&path))?;
    let user = match File::open(dir.join("lock")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => User::Nobody,
        Err(_) => User::Somebody,
        // Given back at once; a peer that starts just now tries for longer.
        Ok(lock) if lock.try_lock_shared().is_ok() => User::Nobody,
        Ok(mut lock) => {
            let mut run = [0; 16];
            let signed = lock.read_exact(&mut run).is_ok();
            if signed { User::Run(Nonce(u128::from_le_bytes(run))) } else { User::Somebody }
        }
    };
    Ok(Some((state, user)))
}

fn missing(path: &Path) -> Error {
    let text = format!(
        "{} is not there: a new peer's state is made with incumbent peer init; if this peer has taken part before, its state is lost, and it must not come back under its name",
        path.display()
    );
    Error::new(ErrorKind::InvalidConfig, text)
}

fn lock(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(|error| unwritable(&path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => {
            let text = format!(
                "another process is this peer: it uses {}; run one process on each state",
                dir.display()
            );
            Err(Error::new(ErrorKind::Unavailable, text))
        }
        Err(fs::TryLockError::Error(error)) => Err(unwritable(&path, error)),
    }
}

fn sync_folder(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn unwritable(path: &Path, error: io::Error) -> Error {
    let text = format!("{} cannot be written: {error}", path.display());
    Error::new(ErrorKind::ReadOnly, text).with_source(error)
}

fn corrupt(path: &Path, why: &str) -> Error {
    let text = format!(
        "{} cannot be used: {why}; let the peer come back under another name, never with an older state: it may have promised more since",
        path.display()
    );
    Error::new(ErrorKind::Corrupt, text)
}

fn read<T: Kept>(path: &Path) -> Result<Option<T>> {
    match fs::metadata(path) {
        Ok(found) if found.len() > FILE_MAX => return Err(corrupt(path, "it is too long")),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(corrupt(path, &error.to_string())),
    }
    let bytes = fs::read(path).map_err(|error| corrupt(path, &error.to_string()))?;
    decode(&bytes).map(Some).map_err(|why| corrupt(path, &why))
}

fn encode<T: Serialize>(kind: u16, value: &T) -> Result<Vec<u8>> {
    let body = postcard::to_allocvec(value)
        .map_err(|error| Error::new(ErrorKind::Internal, "a state cannot be encoded").with_source(error))?;
    let mut bytes = Vec::with_capacity(HEAD + body.len() + SHA256_OUTPUT_LEN);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&body);
    let sum = digest(&SHA256, &bytes);
    bytes.extend_from_slice(sum.as_ref());
    Ok(bytes)
}

/// What every release has written so far: of a note format 1 and 2 are the same.
trait Kept: DeserializeOwned {
    const KIND: u16;

    fn of(version: u16, body: &[u8]) -> core::result::Result<Self, String>;
}

impl Kept for State {
    const KIND: u16 = STATE;

    fn of(version: u16, body: &[u8]) -> core::result::Result<State, String> {
        if version == 1 { understand::<StateOne>(body).map(State::from) } else { understand(body) }
    }
}

impl Kept for Acceptor {
    const KIND: u16 = NOTE;

    fn of(_version: u16, body: &[u8]) -> core::result::Result<Acceptor, String> {
        understand(body)
    }
}

fn decode<T: Kept>(bytes: &[u8]) -> core::result::Result<T, String> {
    let (version, body) = unseal(T::KIND, bytes)?;
    T::of(version, body)
}

/// The body, and the version of its format.
fn unseal(kind: u16, bytes: &[u8]) -> core::result::Result<(u16, &[u8]), String> {
    let cut = || "it is cut short or not a peer's state".to_owned();
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(cut)?;
    let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(cut)?;
    let version = u16::from_le_bytes(*version);
    if version > VERSION {
        return Err(format!(
            "a newer release wrote it (format {version}, this one knows {VERSION}); upgrade this peer"
        ));
    }
    let (found, rest) = rest.split_first_chunk::<2>().ok_or_else(cut)?;
    let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| cut())?;
    let (body, sum) = rest.split_at_checked(length).ok_or_else(cut)?;
    if digest(&SHA256, &bytes[..HEAD + length]).as_ref() != sum {
        return Err("its checksum does not match".to_owned());
    }
    if version == 0 || u16::from_le_bytes(*found) != kind {
        return Err("it is another kind of file".to_owned());
    }
    Ok((version, body))
}

fn understand<T: DeserializeOwned>(body: &[u8]) -> core::result::Result<T, String> {
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        _ => Err("its content cannot be understood".to_owned()),
    }
}

/// Reads bytes as if they were files; for the tests that feed it anything. True if they were understood.
pub(super) fn is_state(bytes: &[u8]) -> bool {
    decode::<State>(bytes).is_ok() || decode::<Acceptor>(bytes).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let name = CandidateId::new("node-1").expect("a name");
        let mut state = State {
            cluster: Authority::new("test"),
            name: name.clone(),
            nonce: Nonce(7),
            known: BTreeMap::new(),
            elections: BTreeMap::new(),
            membership: None,
        };
        let mut durable = Durable::new(state.cluster.clone(), name.clone());
        durable.term.0 = 3;
        durable.voted_for = Some(name);
        state.set(ElectionName::new("billing").expect("a name"), &durable);
        state
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().expect("a folder");
        let dir = dir.path().join("peer");
        Folder::init(&dir, &state()).expect("made");
        let (folder, read) = Folder::open(&dir).expect("opened");
        assert_eq!(read, state());
        let again = Folder::open(&dir).expect_err("two processes").to_string();
        assert!(again.contains("another process is this peer"), "{again}");
        let seen = |user| assert_eq!(look(&dir).expect("readable"), Some((state(), user)));
        seen(User::Somebody);
        folder.sign(Nonce(5));
        seen(User::Run(Nonce(5)));
        drop(folder);
        seen(User::Nobody);
        let again = Folder::init(&dir, &state()).expect_err("made twice").to_string();
        assert!(again.contains("already"), "{again}");
    }

    #[test]
    fn a_state_that_is_cut_changed_newer_or_gone_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let dir = dir.path().join("peer");
        Folder::init(&dir, &state()).expect("made");
        let path = dir.join("state");
        let good = fs::read(&path).expect("a file");
        for length in 0..good.len() {
            assert!(decode::<State>(&good[..length]).is_err(), "{length}");
        }
        for place in 0..good.len() {
            let mut changed = good.clone();
            changed[place] ^= 0x10;
            assert!(decode::<State>(&changed).is_err(), "{place}");
        }
        let mut newer = good.clone();
        newer[8] = 3;
        fs::write(&path, newer).expect("written");
        let error = Folder::open(&dir).expect_err("newer").to_string();
        assert!(error.contains("upgrade this peer"), "{error}");
        fs::remove_file(&path).expect("removed");
        let error = Folder::open(&dir).expect_err("gone").to_string();
        assert!(error.contains("incumbent peer init"), "{error}");
    }

    /// A state of the release before lists could change has none: the peer begins with the URL's.
    #[test]
    fn a_state_of_format_1_is_read() {
        let State { cluster, name, nonce, known, elections, .. } = state();
        let mut bytes =
            encode(STATE, &(&cluster, &name, nonce, &known, &elections)).expect("a state that is small");
        bytes[8] = 1;
        let sealed = bytes.len() - SHA256_OUTPUT_LEN;
        let sum = digest(&SHA256, &bytes[..sealed]);
        bytes[sealed..].copy_from_slice(sum.as_ref());
        assert_eq!(decode::<State>(&bytes), Ok(state()));
    }
}
