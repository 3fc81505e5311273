//! What stands in etcd: the names of keys and the form of values.
//!
//! A candidate's key is `<prefix><election>/<lease in hex>` as other clients write it, by the lease that it was created with;
//! `.<n>` is put behind it for the n-th further key of one process in one election, so that no name is ever used twice.
//! Nothing but candidates stands under `<prefix><election>/`; everything else is under `<prefix>.incumbent/`, which no election
//! name can reach, since it does not begin with a dot.

use incumbent_core::session::LeaseId;
use incumbent_core::{Claim, Contender, ElectionName, Error, ErrorKind, Leader, Nonce, Note, Result, Stored};
use incumbent_core::{FencingToken, Observation};
use serde::{Deserialize, Serialize};

use super::proto::{KeyValue, prefix_end};

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

    /// The first key of an election and the end of its range.
    pub(super) fn election(&self, election: &ElectionName) -> (Vec<u8>, Vec<u8>) {
        let first = format!("{}{election}/", self.prefix).into_bytes();
        let end = prefix_end(&first);
        (first, end)
    }

    /// The key that a process creates as its `turn`-th (from 0) with this lease in this election.
    pub(super) fn candidate(&self, election: &ElectionName, lease: LeaseId, turn: u32) -> String {
        match turn {
            0 => format!("{}{election}/{lease:x}", self.prefix),
            _ => format!("{}{election}/{lease:x}.{turn}", self.prefix),
        }
    }

    /// A key that never exists: to delete it goes the way of a write and changes nothing.
    pub(super) fn nil(&self) -> String {
        format!("{}.incumbent/nil", self.prefix)
    }

    /// The key of a note.
    pub(super) fn note(&self, election: &ElectionName, note: Note) -> String {
        let kind = match note {
            Note::Checkpoint => "checkpoint",
            Note::Handover => "handover",
        };
        format!("{}.incumbent/{kind}/{election}", self.prefix)
    }
}

/// The value of a candidate's key.
#[derive(Serialize, Deserialize)]
struct Value {
    v: u32,
    id: String,
    nonce: Nonce,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since_unix_ms: Option<u64>,
}

/// The value of the key of `claim`; `since_unix_ms` once it leads.
pub(super) fn candidate_value(claim: &Claim, since_unix_ms: Option<u64>) -> Vec<u8> {
    let Claim { id, nonce, address, .. } = claim;
    let value =
        Value { v: FORMAT, id: id.to_string(), nonce: *nonce, address: address.clone(), since_unix_ms };
    serde_json::to_vec(&value).expect("strings and numbers can always be written")
}

/// The candidate whose key this is, and since when it leads.
fn parse(kv: &KeyValue) -> (Contender, Option<u64>) {
    if let Ok(value) = serde_json::from_slice::<Value>(&kv.value) {
        let contender = Contender { id: value.id, nonce: Some(value.nonce), address: value.address };
        return (contender, value.since_unix_ms);
    }
    let shown = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).ok()?;
        let fits = !text.is_empty() && text.len() <= FOREIGN_MAX && !text.chars().any(char::is_control);
        fits.then(|| text.to_owned())
    };
    let id = shown(&kv.value).unwrap_or_else(|| String::from_utf8_lossy(&kv.key).into_owned());
    (Contender { id, nonce: None, address: None }, None)
}

/// The candidate whose key this is.
pub(super) fn contender(kv: &KeyValue) -> Contender {
    parse(kv).0
}

/// The leader, if this is the first key of the queue.
pub(super) fn leader(kv: &KeyValue) -> Leader {
    let (contender, since_unix_ms) = parse(kv);
    Leader { contender, token: Some(FencingToken(kv.create_revision as u64)), since_unix_ms }
}

/// What a whole queue, in its order, shows.
pub(super) fn observation(queue: &[KeyValue]) -> Observation {
    Observation { leader: queue.first().map(leader), candidates: Some(queue.iter().map(contender).collect()) }
}

/// The head of a note's value: one line, then the body as it is.
#[derive(Serialize, Deserialize)]
struct NoteHead {
    v: u32,
    token: u64,
}

/// The value of a note.
pub(super) fn note_value(token: FencingToken, body: &[u8]) -> Vec<u8> {
    let head = NoteHead { v: FORMAT, token: token.0 };
    let mut value = serde_json::to_vec(&head).expect("numbers can always be written");
    value.push(b'\n');
    value.extend_from_slice(body);
    value
}

/// The note in `kv`.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if it cannot be understood or a newer release wrote it.
pub(super) fn note(kv: &KeyValue) -> Result<Stored> {
    let unreadable = || {
        let key = String::from_utf8_lossy(&kv.key).into_owned();
        Error::new(
            ErrorKind::Corrupt,
            format!("the etcd key {key} cannot be read; delete it if nobody needs it"),
        )
        .with_backend("etcd")
    };
    let newline = kv.value.iter().position(|byte| *byte == b'\n').ok_or_else(unreadable)?;
    let head: NoteHead = serde_json::from_slice(&kv.value[..newline]).map_err(|_| unreadable())?;
    if head.v > FORMAT {
        let text = format!("the etcd key has format {}, newer than {FORMAT}; update this program", head.v);
        return Err(Error::new(ErrorKind::Corrupt, text).with_backend("etcd"));
    }
    Ok(Stored { version: kv.mod_revision as u64, token: head.token, body: kv.value[newline + 1..].to_vec() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn claim() -> Claim {
        Claim {
            election: ElectionName::new("billing").expect("a name"),
            id: "pod-7".parse().expect("an id"),
            nonce: Nonce(0xabc),
            address: Some("10.0.0.7:80".to_owned()),
            ttl: Duration::from_secs(15),
        }
    }

    fn kv(value: &[u8]) -> KeyValue {
        KeyValue {
            key: b"billing/1f".to_vec(),
            value: value.to_vec(),
            create_revision: 9,
            mod_revision: 12,
            ..Default::default()
        }
    }

    #[test]
    fn an_election_shares_its_place_with_other_clients() {
        for (path, prefix) in [("", ""), ("team/a", "team/a/"), ("team/a/", "team/a/")] {
            let keys = Keys::new(path);
            assert_eq!(keys.prefix(), prefix);
            let election = claim().election;
            assert_eq!(keys.candidate(&election, 0x1f, 0), format!("{prefix}billing/1f"));
            assert_eq!(keys.candidate(&election, 0x1f, 2), format!("{prefix}billing/1f.2"));
            let (first, end) = keys.election(&claim().election);
            assert_eq!(
                (first, end),
                (format!("{prefix}billing/").into(), format!("{prefix}billing0").into())
            );
            assert_eq!(
                keys.note(&claim().election, Note::Checkpoint),
                format!("{prefix}.incumbent/checkpoint/billing")
            );
        }
    }

    #[test]
    fn candidates_are_read_back_and_foreign_ones_shown_as_they_are() {
        let shown = leader(&kv(&candidate_value(&claim(), Some(5))));
        assert_eq!((shown.token, shown.since_unix_ms), (Some(FencingToken(9)), Some(5)));
        assert_eq!(
            shown.contender,
            Contender { id: "pod-7".into(), nonce: Some(Nonce(0xabc)), address: Some("10.0.0.7:80".into()) }
        );
        for (value, id) in [
            (&b"host-3"[..], "host-3"),
            (b"", "billing/1f"),
            (b"\xff\xfe", "billing/1f"),
            (b"a\nb", "billing/1f"),
        ] {
            assert_eq!(contender(&kv(value)), Contender { id: id.into(), nonce: None, address: None });
        }
        assert_eq!(
            contender(&kv(br#"{"v":2,"id":"x","nonce":"00000000000000000000000000000001","more":1}"#)).id,
            "x"
        );
    }

    #[test]
    fn notes_are_read_back_whatever_their_body() {
        for body in [&b""[..], b"{}\n", &[0, 10, 255]] {
            let stored = note(&kv(&note_value(FencingToken(7), body))).expect("a note");
            assert_eq!((stored.version, stored.token, &stored.body[..]), (12, 7, body));
        }
        for value in [&b"no head"[..], b"{\"v\":1}\n", b"{\"v\":2,\"token\":1}\n"] {
            assert_eq!(note(&kv(value)).expect_err("unreadable").kind(), ErrorKind::Corrupt);
        }
    }
}
