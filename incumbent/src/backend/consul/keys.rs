//! What stands in Consul: the names of keys and the form of values.
//!
//! An election's lock is `<prefix><election>/.lock`, where `consul lock` has it. Nothing else stands under `<prefix><election>/`;
//! everything else is under `<prefix>.incumbent/`, which no election name can reach, since it does not begin with a dot.

use std::time::Duration;

use incumbent_core::record::Holder;
use incumbent_core::{
    CandidateId, Claim, Contender, ElectionName, Error, ErrorKind, FencingToken, Leader, Nonce, Note,
    Observation, Result, Stored,
};
use serde::{Deserialize, Serialize};

use super::api::{Entry, SEMAPHORE_FLAG};

/// The version of the stored formats.
const FORMAT: u32 = 1;
/// The longest text of another client that is shown as a name.
const FOREIGN_MAX: usize = 128;

/// The names of all keys under one prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    /// `prefix` is the path of the URL; what is not empty gets a slash behind it.
    pub(super) fn new(prefix: &str) -> Keys {
        let prefix = prefix.trim_end_matches('/');
        Keys { prefix: if prefix.is_empty() { String::new() } else { format!("{prefix}/") } }
    }

    /// The prefix with its slash.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The lock of an election.
    pub(super) fn lock(&self, election: &ElectionName) -> String {
        format!("{}{election}/.lock", self.prefix)
    }

    /// What tells this store from all others.
    pub(super) fn authority(&self) -> String {
        format!("{}.incumbent/authority", self.prefix)
    }

    /// Where the hand-over requests of all elections are.
    pub(super) fn handovers(&self) -> String {
        format!("{}.incumbent/handover/", self.prefix)
    }

    /// The key of a note.
    pub(super) fn note(&self, election: &ElectionName, note: Note) -> String {
        match note {
            Note::Checkpoint => format!("{}.incumbent/checkpoint/{election}", self.prefix),
            Note::Handover => format!("{}{election}", self.handovers()),
        }
    }
}

/// The value of a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Value {
    v: u32,
    /// Of the latest grant; 0 before the first.
    pub(super) token: u64,
    /// Who holds it, or held it when its session ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) holder: Option<Holder>,
    /// For how long `next` is waited for, in milliseconds.
    pub(super) ttl_ms: u64,
    /// Who shall be preferred for one ttl after a release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<CandidateId>,
}

impl Value {
    /// A lock that `claim` holds with `token`.
    pub(super) fn held(claim: &Claim, token: u64, since_unix_ms: Option<u64>) -> Value {
        let Claim { id, nonce, address, .. } = claim;
        let holder =
            Holder { id: id.clone(), nonce: *nonce, address: address.clone(), since_unix_ms, liveness: None };
        Value { v: FORMAT, token, holder: Some(holder), ttl_ms: millis(claim.ttl), next: None }
    }

    /// A lock that nobody holds after the grant with `token`.
    pub(super) fn free(token: u64, ttl: Duration, next: Option<CandidateId>) -> Value {
        Value { v: FORMAT, token, holder: None, ttl_ms: millis(ttl), next }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers can always be written")
    }

    /// True if this campaign wrote it when it won.
    pub(super) fn is_of(&self, nonce: Nonce) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.nonce == nonce)
    }
}

fn millis(span: Duration) -> u64 {
    span.as_millis().try_into().unwrap_or(u64::MAX)
}

/// The value of a lock, if it is one of ours.
pub(super) fn value(entry: &Entry) -> Option<Value> {
    serde_json::from_slice(&entry.value).ok().filter(|value: &Value| value.v <= FORMAT)
}

/// Refuses a free lock that is not to be taken: a newer release's, or a semaphore.
///
/// # Errors
/// [`ErrorKind::Corrupt`] or [`ErrorKind::InvalidConfig`] with what to do.
pub(super) fn check_free(entry: &Entry) -> Result<()> {
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    let error = |kind, text: String| Err(Error::new(kind, text).with_backend("consul"));
    if entry.flags == SEMAPHORE_FLAG {
        let text = format!(
            "the consul key {} is a semaphore (of consul lock -n, say); choose another name",
            entry.key
        );
        return error(ErrorKind::InvalidConfig, text);
    }
    match serde_json::from_slice(&entry.value) {
        Ok(Version { v }) if v > FORMAT => {
            let text = format!(
                "the consul key {} has format {v}, newer than {FORMAT}; update this program",
                entry.key
            );
            error(ErrorKind::Corrupt, text)
        }
        _ => Ok(()),
    }
}

/// Who leads, by the election's lock.
pub(super) fn observation(entry: Option<&Entry>) -> Observation {
    let leader = entry.and_then(|entry| {
        let session = entry.session.as_ref()?;
        Some(match value(entry) {
            Some(Value { token, holder: Some(holder), .. }) => Leader {
                contender: Contender {
                    id: holder.id.to_string(),
                    nonce: Some(holder.nonce),
                    address: holder.address,
                },
                token: Some(FencingToken(token)),
                since_unix_ms: holder.since_unix_ms,
            },
            _ => foreign(entry, session),
        })
    });
    Observation { leader, candidates: None }
}

fn foreign(entry: &Entry, session: &str) -> Leader {
    let text = std::str::from_utf8(&entry.value).unwrap_or_default();
    let fits = !text.is_empty() && text.len() <= FOREIGN_MAX && !text.chars().any(char::is_control);
    let id = if fits { text.to_owned() } else { format!("session {session}") };
    Leader { contender: Contender { id, nonce: None, address: None }, token: None, since_unix_ms: None }
}

/// The head of a note's value: one line, then the body as it is.
#[derive(Serialize, Deserialize)]
struct NoteHead {
    v: u32,
    token: u64,
    /// What it was written over. Consul gives a write that changes nothing no new index; this way each changes something.
    #[serde(default)]
    after: u64,
}

/// The value of a note that is written over the one of index `after`.
pub(super) fn note_value(token: FencingToken, after: u64, body: &[u8]) -> Vec<u8> {
    let head = NoteHead { v: FORMAT, token: token.0, after };
    let mut value = serde_json::to_vec(&head).expect("numbers can always be written");
    value.push(b'\n');
    value.extend_from_slice(body);
    value
}

/// The note in `entry`.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if it cannot be understood or a newer release wrote it.
pub(super) fn note(entry: &Entry) -> Result<Stored> {
    let corrupt = |text: String| Error::new(ErrorKind::Corrupt, text).with_backend("consul");
    let unreadable =
        || corrupt(format!("the consul key {} cannot be read; delete it if nobody needs it", entry.key));
    let newline = entry.value.iter().position(|byte| *byte == b'\n').ok_or_else(unreadable)?;
    let head: NoteHead = serde_json::from_slice(&entry.value[..newline]).map_err(|_| unreadable())?;
    if head.v > FORMAT {
        let text = format!(
            "the consul key {} has format {}, newer than {FORMAT}; update this program",
            entry.key, head.v
        );
        return Err(corrupt(text));
    }
    Ok(Stored { version: entry.index, token: head.token, body: entry.value[newline + 1..].to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::consul::api::LOCK_FLAG;

    fn claim() -> Claim {
        Claim {
            election: ElectionName::new("billing").expect("a name"),
            id: "pod-7".parse().expect("an id"),
            nonce: Nonce(0xabc),
            address: Some("10.0.0.7:80".to_owned()),
            ttl: Duration::from_secs(15),
        }
    }

    fn entry(value: &[u8], session: Option<&str>) -> Entry {
        Entry {
            key: "billing/.lock".to_owned(),
            value: value.to_vec(),
            flags: LOCK_FLAG,
            session: session.map(str::to_owned),
            index: 12,
        }
    }

    #[test]
    fn an_election_shares_its_place_with_consul_lock() {
        for (path, prefix) in [("", ""), ("team/a", "team/a/"), ("team/a/", "team/a/")] {
            let keys = Keys::new(path);
            assert_eq!(keys.lock(&claim().election), format!("{prefix}billing/.lock"));
            let note = keys.note(&claim().election, Note::Checkpoint);
            assert_eq!(note, format!("{prefix}.incumbent/checkpoint/billing"));
        }
    }

    #[test]
    fn who_holds_the_lock_is_shown_and_who_held_it_is_not() {
        let held = Value::held(&claim(), 9, Some(5)).encode();
        let shown = observation(Some(&entry(&held, Some("s")))).leader.expect("a leader");
        assert_eq!((shown.token, shown.since_unix_ms), (Some(FencingToken(9)), Some(5)));
        let contender =
            Contender { id: "pod-7".into(), nonce: Some(Nonce(0xabc)), address: Some("10.0.0.7:80".into()) };
        assert_eq!(shown.contender, contender);
        assert_eq!(observation(Some(&entry(&held, None))).leader, None, "its session has ended");
        assert_eq!(observation(None).leader, None);
        for (value, id) in [(&b"host-3"[..], "host-3"), (b"", "session s"), (b"\xff", "session s")] {
            let shown = observation(Some(&entry(value, Some("s")))).leader.expect("a leader");
            assert_eq!((shown.contender.id.as_str(), shown.token), (id, None));
            assert!(shown.contender.is_foreign());
        }
    }

    #[test]
    fn a_semaphore_and_a_newer_format_are_not_taken() {
        let semaphore = Entry { flags: SEMAPHORE_FLAG, ..entry(b"{}", None) };
        assert_eq!(check_free(&semaphore).expect_err("a semaphore").kind(), ErrorKind::InvalidConfig);
        let newer = entry(b"{\"v\":2,\"else\":1}", None);
        assert_eq!(check_free(&newer).expect_err("newer").kind(), ErrorKind::Corrupt);
        for value in [&b""[..], b"text", &Value::free(3, Duration::from_secs(1), None).encode()] {
            assert!(check_free(&entry(value, None)).is_ok());
        }
    }

    #[test]
    fn notes_are_read_back_whatever_their_body_and_no_two_writes_are_equal() {
        for body in [&b""[..], b"{}\n", &[0, 10, 255]] {
            let stored = note(&entry(&note_value(FencingToken(7), 3, body), None)).expect("a note");
            assert_eq!((stored.version, stored.token, &stored.body[..]), (12, 7, body));
        }
        assert_ne!(note_value(FencingToken(7), 3, b"x"), note_value(FencingToken(7), 4, b"x"));
        for value in [&b"no head"[..], b"{\"v\":1}\n", b"{\"v\":2,\"token\":1}\n"] {
            assert_eq!(note(&entry(value, None)).expect_err("unreadable").kind(), ErrorKind::Corrupt);
        }
    }
}
