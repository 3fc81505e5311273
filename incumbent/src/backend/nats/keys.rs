//! What the keys of a bucket are called.

use incumbent_core::record::RecordKey;
use incumbent_core::{ElectionName, Error, ErrorKind, Note, Result};

use crate::url::bad;

/// A bucket, and what stands before the names of elections in it.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// The bucket's name.
    pub(super) bucket: String,
    /// Empty, or with a slash behind it.
    prefix: String,
}

/// A kind of record, by what stands between the prefix and the election's name.
const KINDS: [(Option<Note>, &str); 3] = [
    (None, ""),
    (Some(Note::Checkpoint), "_incumbent/checkpoint/"),
    (Some(Note::Handover), "_incumbent/handover/"),
];

impl Keys {
    /// The path of a URL: `BUCKET` or `BUCKET/PREFIX`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] with the rule that it breaks.
    pub(super) fn new(path: &str) -> Result<Keys> {
        let path = path.trim_end_matches('/');
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        if bucket.is_empty() {
            return Err(bad("nats: needs a bucket; write nats://HOST/BUCKET"));
        }
        if !bucket.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
            return Err(bad(format!("{bucket:?} can be no bucket of NATS; its name is of A-Z a-z 0-9 _ -")));
        }
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-/_=.".contains(&byte);
        if !prefix.bytes().all(allowed) || !has_whole_words(&prefix) {
            return Err(bad(format!(
                "{prefix:?} can be no prefix of keys of NATS, which are of A-Z a-z 0-9 - / _ = . without a dot beside a dot or at an end"
            )));
        }
        Ok(Keys { bucket: bucket.to_owned(), prefix })
    }

    /// The stream that holds the bucket.
    pub(super) fn stream(&self) -> String {
        format!("KV_{}", self.bucket)
    }

    /// The subject of every key.
    pub(super) fn all(&self) -> String {
        format!("$KV.{}.>", self.bucket)
    }

    /// The subject of one key.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] if NATS can have no key of that name.
    pub(super) fn subject(&self, key: &RecordKey) -> Result<String> {
        let election = key.election.as_str();
        if !has_whole_words(election) {
            return Err(Error::new(
                ErrorKind::InvalidName,
                format!(
                    "NATS can have no key {election:?}: a name has no dot beside a dot or at its end there; choose another name for the election"
                ),
            ));
        }
        let kind = KINDS.iter().find(|(note, _)| *note == key.note).map_or("", |(_, kind)| kind);
        Ok(format!("$KV.{}.{}{kind}{election}", self.bucket, self.prefix))
    }

    /// The record that a subject belongs to, if it can be one of ours.
    pub(super) fn record(&self, subject: &str) -> Option<RecordKey> {
        let key = subject.strip_prefix("$KV.")?.strip_prefix(self.bucket.as_str())?.strip_prefix('.')?;
        let key = key.strip_prefix(self.prefix.as_str())?;
        // The election's own key has no kind in front, so it comes last.
        let (note, kind) = KINDS.iter().rev().find(|(_, kind)| key.starts_with(kind))?;
        let election = ElectionName::new(&key[kind.len()..]).ok()?;
        Some(RecordKey { election, note: *note })
    }
}

/// True without an empty word between dots.
fn has_whole_words(text: &str) -> bool {
    text.is_empty() || text.split('.').all(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_names_a_record_and_back() {
        for path in ["elections", "elections/", "elections/app", "e-1_/a=b/c.d"] {
            let keys = Keys::new(path).expect("a path");
            for note in [None, Some(Note::Checkpoint), Some(Note::Handover)] {
                let election = ElectionName::new("billing.eu-1").expect("a name");
                let key = RecordKey { election, note };
                let subject = keys.subject(&key).expect("a subject");
                assert_eq!(keys.record(&subject), Some(key), "{subject}");
            }
        }
        let keys = Keys::new("elections/app").expect("a path");
        let election = ElectionName::new("billing").expect("a name");
        let subject = keys.subject(&RecordKey { election, note: None }).expect("a subject");
        assert_eq!(subject, "$KV.elections.app/billing");
        for foreign in ["$KV.elections.billing", "$KV.other.app/billing", "$KV.elections.app/_kv", "app/x"] {
            assert_eq!(keys.record(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn what_nats_cannot_have_is_refused() {
        for path in ["", "/", "a.b", "a b", "a/.b", "a/b..c", "a/b c", "a/b*", "a/b>"] {
            assert!(Keys::new(path).is_err(), "{path}");
        }
        let keys = Keys::new("elections").expect("a path");
        for name in ["a.", "a..b"] {
            let election = ElectionName::new(name).expect("a name elsewhere");
            let refused = keys.subject(&RecordKey { election, note: None }).expect_err("no key");
            assert_eq!(refused.kind(), ErrorKind::InvalidName);
        }
    }
}
