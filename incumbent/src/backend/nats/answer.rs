//! What JetStream answers to a write and to a read.

use async_nats::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use incumbent_core::{Error, ErrorKind, Result, Stored};
use serde::Deserialize;

use super::failure::{self, Effect, Refusal};
use super::keys::Keys;

/// The token stands beside the record in this header, so that the value is the record alone.
const TOKEN: &str = "Incumbent-Token";
/// Who renewed the record, where it was a renewal: no news to himself.
const RENEWED_BY: &str = "Incumbent-Renewed-By";
/// The revision that must be the key's latest: what makes a write a compare-and-swap.
const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";

/// The headers of a write that replaces `expected` (0: nothing). No message id goes along: a repeated one would be acknowledged
/// without being written.
pub(super) fn headers(expected: u64, keys: &Keys, token: u64, renewed_by: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(EXPECTED, expected.to_string());
    headers.insert(EXPECTED_STREAM, keys.stream());
    headers.insert(TOKEN, token.to_string());
    if let Some(mark) = renewed_by {
        headers.insert(RENEWED_BY, mark);
    }
    headers
}

/// Who renewed the record, if these are the headers of a renewal.
pub(super) fn renewed_by(headers: Option<&HeaderMap>) -> Option<&str> {
    Some(headers?.get(RENEWED_BY)?.as_str())
}

#[derive(Deserialize)]
struct Acknowledgement {
    error: Option<Refusal>,
    stream: Option<String>,
    seq: Option<u64>,
    #[serde(default)]
    duplicate: bool,
}

/// The revision that a write expecting `expected` was stored as; `None` if something else stood there.
///
/// # Errors
/// Any answer that does not prove that this very write was stored.
pub(super) fn written(answer: &[u8], expected: u64, host: &str, keys: &Keys) -> Result<Option<u64>> {
    let garbage = || failure::garbage(host, Effect::Write);
    let answer: Acknowledgement = serde_json::from_slice(answer).map_err(|_| garbage())?;
    match answer {
        Acknowledgement { error: Some(refusal), .. } if refusal.is_conflict() => Ok(None),
        Acknowledgement { error: Some(refusal), .. } => Err(refusal.explain(host, keys, Effect::Write)),
        Acknowledgement { duplicate: true, .. } => {
            Err(unproven(host, "it takes the write for one that it has seen before (duplicate)"))
        }
        Acknowledgement { stream: Some(stream), .. } if stream != keys.stream() => {
            Err(unproven(host, &format!("the stream {stream} took the write, not the bucket's")))
        }
        Acknowledgement { stream: Some(_), seq: Some(seq), .. } if seq > expected => Ok(Some(seq)),
        Acknowledgement { seq: Some(seq), .. } => {
            Err(unproven(host, &format!("it acknowledges revision {seq} after {expected}")))
        }
        Acknowledgement { .. } => Err(garbage()),
    }
}

fn unproven(host: &str, what: &str) -> Error {
    let text = format!("{what}, which proves nothing; does something rewrite messages of the bucket?");
    failure::error(ErrorKind::StoreRegressed, host, text).ambiguous(true)
}

/// The latest message of a key.
#[derive(Debug)]
pub(super) struct Latest {
    /// As others see it; `None` if it says that the key was deleted.
    pub(super) stored: Option<Stored>,
    /// Its revision.
    pub(super) revision: u64,
}

#[derive(Deserialize)]
struct Found {
    error: Option<Refusal>,
    message: Option<Message>,
}

#[derive(Deserialize)]
struct Message {
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

/// What a key holds; `None` if it holds nothing.
pub(super) fn latest(answer: &[u8], host: &str, keys: &Keys) -> Result<Option<Latest>> {
    let garbage = || failure::garbage(host, Effect::None);
    let answer: Found = serde_json::from_slice(answer).map_err(|_| garbage())?;
    let message = match answer {
        Found { error: Some(refusal), .. } if refusal.is_absence() => return Ok(None),
        Found { error: Some(refusal), .. } => return Err(refusal.explain(host, keys, Effect::None)),
        Found { message: Some(message), .. } => message,
        Found { .. } => return Err(garbage()),
    };
    let head = STANDARD.decode(&message.hdrs).map_err(|_| garbage())?;
    let head = String::from_utf8_lossy(&head);
    let header = |wanted: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim())
    };
    let is_deleted = matches!(header("KV-Operation"), Some("DEL" | "PURGE"));
    let stored = Stored {
        version: message.seq,
        token: header(TOKEN).and_then(|token| token.parse().ok()).unwrap_or(0),
        body: STANDARD.decode(&message.data).map_err(|_| garbage())?,
    };
    Ok(Some(Latest { revision: message.seq, stored: Some(stored).filter(|_| !is_deleted) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::new("elections").expect("a path")
    }

    #[test]
    fn only_an_acknowledgement_of_this_very_write_proves_it() {
        let written = |answer: &str| super::written(answer.as_bytes(), 7, "h", &keys());
        assert_eq!(written(r#"{"stream":"KV_elections","seq":9}"#), Ok(Some(9)));
        for conflict in [10071, 10164] {
            let text = format!(
                r#"{{"error":{{"code":400,"err_code":{conflict},"description":"wrong last sequence"}},"stream":"KV_elections","seq":0}}"#
            );
            assert_eq!(written(&text), Ok(None));
        }
        for (answer, words) in [
            (r#"{"stream":"KV_elections","seq":9,"duplicate":true}"#, "duplicate"),
            (r#"{"stream":"KV_other","seq":9}"#, "KV_other"),
            (r#"{"stream":"KV_elections","seq":7}"#, "revision 7 after 7"),
            (r#"{"stream":"KV_elections"}"#, "cannot be understood"),
            (r#"{"seq":9}"#, "revision 9 after 7"),
            ("", "cannot be understood"),
            (r#"{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"}}"#, "limits"),
        ] {
            let error = written(answer).expect_err(answer);
            assert!(error.to_string().contains(words) && error.is_ambiguous(), "{answer}: {error:?}");
        }
    }
}
