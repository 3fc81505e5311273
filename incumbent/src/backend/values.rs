//! What stores that queue candidates keep in their keys: the form of a candidate's entry and of a note.

use incumbent_core::{Claim, Contender, Error, ErrorKind, FencingToken, Nonce, Result, Stored};
use serde::{Deserialize, Serialize};

/// The version of the stored formats.
const FORMAT: u32 = 1;
/// The longest text of another client that is shown as a name.
const FOREIGN_MAX: usize = 128;

/// A candidate's entry.
#[derive(Serialize, Deserialize)]
struct Entry {
    v: u32,
    id: String,
    nonce: Nonce,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since_unix_ms: Option<u64>,
}

/// The entry of `claim`; `since_unix_ms` once it leads.
pub(super) fn candidate(claim: &Claim, since_unix_ms: Option<u64>) -> Vec<u8> {
    let Claim { id, nonce, address, .. } = claim;
    let entry =
        Entry { v: FORMAT, id: id.to_string(), nonce: *nonce, address: address.clone(), since_unix_ms };
    serde_json::to_vec(&entry).expect("strings and numbers can always be written")
}

/// The candidate whose entry this is, and since when it leads. One of another client is called by what it wrote, or by `key`.
pub(super) fn contender(entry: &[u8], key: &str) -> (Contender, Option<u64>) {
    if let Ok(entry) = serde_json::from_slice::<Entry>(entry) {
        let contender = Contender { id: entry.id, nonce: Some(entry.nonce), address: entry.address };
        return (contender, entry.since_unix_ms);
    }
    let shown = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).ok()?;
        let fits = !text.is_empty() && text.len() <= FOREIGN_MAX && !text.chars().any(char::is_control);
        fits.then(|| text.to_owned())
    };
    (Contender { id: shown(entry).unwrap_or_else(|| key.to_owned()), nonce: None, address: None }, None)
}

/// The head of a note: one line, then the body as it is.
#[derive(Serialize, Deserialize)]
struct NoteHead {
    v: u32,
    token: u64,
}

/// A note as it is stored.
pub(super) fn note(token: FencingToken, body: &[u8]) -> Vec<u8> {
    let head = NoteHead { v: FORMAT, token: token.0 };
    let mut value = serde_json::to_vec(&head).expect("numbers can always be written");
    value.push(b'\n');
    value.extend_from_slice(body);
    value
}

/// The note stored as `value` under `key`, in this `version`.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if it cannot be understood or a newer release wrote it.
pub(super) fn read_note(value: &[u8], version: u64, key: &str) -> Result<Stored> {
    let unreadable =
        || Error::new(ErrorKind::Corrupt, format!("{key} cannot be read; delete it if nobody needs it"));
    let newline = value.iter().position(|byte| *byte == b'\n').ok_or_else(unreadable)?;
    let head: NoteHead = serde_json::from_slice(&value[..newline]).map_err(|_| unreadable())?;
    if head.v > FORMAT {
        let text = format!("{key} has format {}, newer than {FORMAT}; update this program", head.v);
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    Ok(Stored { version, token: head.token, body: value[newline + 1..].to_vec() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use incumbent_core::ElectionName;

    use super::*;

    #[test]
    fn candidates_are_read_back_and_foreign_ones_shown_as_they_are() {
        let claim = Claim {
            election: ElectionName::new("billing").expect("a name"),
            id: "pod-7".parse().expect("an id"),
            nonce: Nonce(0xabc),
            address: Some("10.0.0.7:80".to_owned()),
            ttl: Duration::from_secs(15),
        };
        let ours =
            Contender { id: "pod-7".into(), nonce: Some(Nonce(0xabc)), address: Some("10.0.0.7:80".into()) };
        assert_eq!(contender(&candidate(&claim, Some(5)), "k"), (ours, Some(5)));
        for (entry, id) in [(&b"host-3"[..], "host-3"), (b"", "k"), (b"\xff\xfe", "k"), (b"a\nb", "k")] {
            assert_eq!(contender(entry, "k").0, Contender { id: id.into(), nonce: None, address: None });
        }
        let newer = br#"{"v":2,"id":"x","nonce":"00000000000000000000000000000001","more":1}"#;
        assert_eq!(contender(newer, "k").0.id, "x");
    }

    #[test]
    fn notes_are_read_back_whatever_their_body() {
        for body in [&b""[..], b"{}\n", &[0, 10, 255]] {
            let stored = read_note(&note(FencingToken(7), body), 12, "k").expect("a note");
            assert_eq!((stored.version, stored.token, &stored.body[..]), (12, 7, body));
        }
        for value in [&b"no head"[..], b"{\"v\":1}\n", b"{\"v\":2,\"token\":1}\n"] {
            assert_eq!(read_note(value, 1, "k").expect_err("unreadable").kind(), ErrorKind::Corrupt);
        }
    }
}
