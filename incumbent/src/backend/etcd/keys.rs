//! What stands in etcd: the names of keys and the form of values.
//!
//! A candidate's key is `<prefix><election>/<lease in hex>` as other clients write it, by the lease that it was created with;
//! `.<n>` is put behind it for the n-th further key of one process in one election, so that no name is ever used twice.
//! Nothing but candidates stands under `<prefix><election>/`; everything else is under `<prefix>.incumbent/`, which no election
//! name can reach, since it does not begin with a dot.

use incumbent_core::session::LeaseId;
use incumbent_core::{Contender, ElectionName, FencingToken, Leader, Note, Observation, Result, Stored};

use super::proto::{KeyValue, prefix_end};
use crate::backend::values;

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

/// Whether `key`, which stands in the queue of `own`, belongs to an election further down. etcdctl and Go count it in, so
/// that leaving it out would be another order than theirs.
pub(super) fn is_deeper(key: &[u8], own: &str) -> bool {
    let slashes = |key: &[u8]| key.iter().filter(|byte| **byte == b'/').count();
    slashes(key) > slashes(own.as_bytes())
}

/// The candidate whose key this is, and since when it leads.
fn parse(kv: &KeyValue) -> (Contender, Option<u64>) {
    values::contender(&kv.value, &String::from_utf8_lossy(&kv.key))
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

/// The note in `kv`.
///
/// # Errors
/// [`Corrupt`](incumbent_core::ErrorKind::Corrupt) if it cannot be understood or a newer release wrote it.
pub(super) fn note(kv: &KeyValue) -> Result<Stored> {
    let key = format!("the etcd key {}", String::from_utf8_lossy(&kv.key));
    values::read_note(&kv.value, kv.mod_revision as u64, &key).map_err(|error| error.with_backend("etcd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_another_election_further_down_is_told_from_a_candidates() {
        assert!(is_deeper(b"team/billing/eu/1f", "team/billing/1f"));
        for key in ["team/billing/2f", "team/billing/2f.1", "team/billing/any name"] {
            assert!(!is_deeper(key.as_bytes(), "team/billing/1f"), "{key}");
        }
    }

    #[test]
    fn an_election_shares_its_place_with_other_clients() {
        for (path, prefix) in [("", ""), ("team/a", "team/a/"), ("team/a/", "team/a/")] {
            let keys = Keys::new(path);
            assert_eq!(keys.prefix(), prefix);
            let election = ElectionName::new("billing").expect("a name");
            assert_eq!(keys.candidate(&election, 0x1f, 0), format!("{prefix}billing/1f"));
            assert_eq!(keys.candidate(&election, 0x1f, 2), format!("{prefix}billing/1f.2"));
            let (first, end) = keys.election(&election);
            assert_eq!(
                (first, end),
                (format!("{prefix}billing/").into(), format!("{prefix}billing0").into())
            );
            assert_eq!(
                keys.note(&election, Note::Checkpoint),
                format!("{prefix}.incumbent/checkpoint/billing")
            );
        }
    }
}
