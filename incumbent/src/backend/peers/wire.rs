//! What goes over a connection between peers: frames with their length in front, at most 1 MiB, in the format of `postcard`.

use incumbent_core::peers::register::{Ask, Reply};
use incumbent_core::peers::{Envelope, List, members};
use incumbent_core::{Contender, ElectionName, Error, ErrorKind, FencingToken, Leader, Note, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio_util::bytes::Bytes;
use tokio_util::codec::LengthDelimitedCodec;

/// The longest frame. A checkpoint has up to 128 KiB.
pub(super) const FRAME_MAX: usize = 1 << 20;

pub(super) fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(FRAME_MAX).new_codec()
}

/// From who dialed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Forth<M> {
    /// A message of the election's protocol; only from a member.
    Say(Say<M>),
    /// A message about the list of peers; only from a member.
    List(Envelope<members::Message>),
    /// A question, which is answered by [`Back::Answer`] with its number.
    Ask { number: u64, question: Question },
}

/// A message of the protocol, and who stands for election at its sender.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Say<M> {
    pub(super) election: ElectionName,
    pub(super) notice: Option<Notice>,
    pub(super) envelope: Envelope<M>,
}

/// The candidate of a peer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Notice {
    pub(super) contender: Contender,
    /// If it leads: its token, and the wall-clock milliseconds of its election.
    pub(super) leads: Option<(Option<FencingToken>, Option<u64>)>,
}

impl Notice {
    /// As the store shows a leader.
    pub(super) fn leader(&self) -> Option<Leader> {
        let (token, since_unix_ms) = self.leads?;
        Some(Leader { contender: self.contender.clone(), token, since_unix_ms })
    }
}

/// What is asked of a peer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Question {
    /// Who stands at you, and do you lead?
    Look(ElectionName),
    /// Tell of changes from now on, as [`Back::Changed`].
    Watch(ElectionName),
    /// A step of the register's protocol under the list of this version; only from a member.
    Register(u64, Register, Ask),
    /// Which notes have you, if the list of this version is in force at you? Only from a member.
    Survey(u64),
    /// Which list is in force at you, and what does a change of it wait for?
    List,
    /// Change the list.
    Change(members::Change),
    /// Read a note, by a majority.
    Read(Register),
    /// Swap a note, by a majority.
    Swap { register: Register, expected: Option<(u64, u64)>, token: u64, body: Vec<u8> },
}

/// Which note.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub(super) struct Register {
    pub(super) election: ElectionName,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub(super) enum Kind {
    Checkpoint,
    Handover,
}

impl Register {
    pub(super) fn new(election: &ElectionName, note: Note) -> Register {
        let kind = match note {
            Note::Checkpoint => Kind::Checkpoint,
            Note::Handover => Kind::Handover,
        };
        Register { election: election.clone(), kind }
    }
}

/// To who dialed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Back {
    Answer {
        number: u64,
        answer: core::result::Result<Answer, Failure>,
    },
    Changed(ElectionName),
    /// The last frame: why the connection is cut.
    Cut(String),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Look(Option<Notice>),
    Watching,
    Register(Reply),
    Read(Option<(u64, u64, Vec<u8>)>),
    Survey(Vec<Register>),
    List(List, Option<members::Awaited>),
    /// This list is durable at majorities of itself and of the one before; `None`: another change was made instead.
    Changed(Option<List>),
    /// The new version; `None`: something else stands there.
    Swapped(Option<u64>),
}

/// An error, as it goes over a connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Failure {
    kind: Failed,
    ambiguous: bool,
    text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Failed {
    Unavailable,
    TimedOut,
    Denied,
    ReadOnly,
    Corrupt,
    InvalidConfig,
    NotFound,
    Other,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Failure {
        let kind = match error.kind() {
            ErrorKind::Unavailable => Failed::Unavailable,
            ErrorKind::TimedOut => Failed::TimedOut,
            ErrorKind::Denied => Failed::Denied,
            ErrorKind::ReadOnly => Failed::ReadOnly,
            ErrorKind::Corrupt => Failed::Corrupt,
            ErrorKind::InvalidConfig => Failed::InvalidConfig,
            ErrorKind::NotFound => Failed::NotFound,
            _ => Failed::Other,
        };
        Failure { kind, ambiguous: error.is_ambiguous(), text: error.to_string() }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let kind = match failure.kind {
            Failed::Unavailable => ErrorKind::Unavailable,
            Failed::TimedOut => ErrorKind::TimedOut,
            Failed::Denied => ErrorKind::Denied,
            Failed::ReadOnly => ErrorKind::ReadOnly,
            Failed::Corrupt => ErrorKind::Corrupt,
            Failed::InvalidConfig => ErrorKind::InvalidConfig,
            Failed::NotFound => ErrorKind::NotFound,
            Failed::Other => ErrorKind::Internal,
        };
        Error::new(kind, failure.text).ambiguous(failure.ambiguous)
    }
}

/// The bytes of a frame, without its length.
pub(super) fn encode<T: Serialize>(frame: &T) -> Result<Bytes> {
    let bytes = postcard::to_allocvec(frame)
        .map_err(|error| Error::new(ErrorKind::Internal, "a frame cannot be encoded").with_source(error))?;
    if bytes.len() > FRAME_MAX {
        let text = format!("a message of {} bytes to a peer is longer than {FRAME_MAX}", bytes.len());
        return Err(Error::new(ErrorKind::InvalidConfig, text));
    }
    Ok(bytes.into())
}

/// The frame, which must fill its bytes.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((frame, [])) => Ok(frame),
        _ => Err(Error::new(
            ErrorKind::Corrupt,
            format!("a frame of {} bytes cannot be understood", bytes.len()),
        )),
    }
}
