//! What stands in a Lease and what a record says, turned into each other. No calls, no clocks.
//!
//! The fields of the Lease's spec are for everybody; what only this library needs stands in one annotation, which names the
//! holder, the acquisition and the object that it was written for. Under any other it is ignored: another client may change the spec
//! and leave the annotation as it was.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use incumbent_core::record::{Foreign, Holder, Record, TokenRule};
use incumbent_core::{Error, ErrorKind, FencingToken, Result, Stored};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// What only this library needs of an election.
const TERM: &str = "incumbent-rs.github.io/term";
/// What was asked of the leader.
pub(super) const HANDOVER: &str = "incumbent-rs.github.io/handover";
/// What a leader left for its successor, in a Lease of its own.
pub(super) const CHECKPOINT: &str = "incumbent-rs.github.io/checkpoint";

/// The least step of `renewTime`: what client-go compares has whole seconds.
const RENEW_STEP: SignedDuration = SignedDuration::from_secs(1);
/// A `renewTime` further ahead of the clock than this is somebody's mistake.
const AHEAD_MAX: SignedDuration = SignedDuration::from_hours(24);
/// Up to here a note that is text stays readable.
const READABLE: usize = 1024;

/// A Lease as the API server sent it, with all that others have put into it.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    object: Value,
    version: u64,
    uid: String,
}

#[derive(Serialize, Deserialize)]
struct Term {
    token: u64,
    holder: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    acquired: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    record: Value,
}

#[derive(Serialize, Deserialize)]
struct NoteBody {
    /// The Lease's version before the note was written into it, so that no two writes of a note are equal.
    over: u64,
    token: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

impl Lease {
    /// Understands an object of the API.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it has no uid, or a resourceVersion that does not count.
    pub(super) fn new(object: Value) -> Result<Lease> {
        let metadata = &object["metadata"];
        let uid = metadata["uid"].as_str().unwrap_or_default().to_owned();
        let version = metadata["resourceVersion"].as_str().unwrap_or_default();
        let counts = version.bytes().all(|b| b.is_ascii_digit()) && !version.starts_with('0');
        match version.parse() {
            Ok(version) if counts && !uid.is_empty() => Ok(Lease { version, uid, object }),
            _ => Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "the API server sent a Lease with uid {uid:?} and resourceVersion {version:?}, which must be a whole number"
                ),
            )),
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    fn spec(&self, field: &str) -> &Value {
        &self.object["spec"][field]
    }

    fn holder(&self) -> &str {
        self.spec("holderIdentity").as_str().unwrap_or_default()
    }

    fn annotation(&self, name: &str) -> Option<&str> {
        self.object["metadata"]["annotations"][name].as_str()
    }

    /// The annotation, if it belongs to what the spec says now.
    fn term(&self) -> Option<Term> {
        let term: Term = serde_json::from_str(self.annotation(TERM)?).ok()?;
        let same_object = term.uid.as_deref().is_none_or(|uid| uid == self.uid);
        // What carries a token was acquired, and an acquisition always knows the object.
        let complete = term.token == 0 || (term.uid.is_some() && term.acquired.is_some());
        let same =
            term.holder == self.holder() && term.acquired.as_deref() == self.spec("acquireTime").as_str();
        (same && same_object && complete).then_some(term)
    }

    /// The record of the election. `own_ttl` is for a Lease that names no duration.
    ///
    /// The token of what another client wrote is not known; the version stands for it, which is greater than any token
    /// before and not above the next one.
    pub(super) fn record(&self, own_ttl: Duration) -> Stored {
        if let Some(term) = self.term() {
            let body = serde_json::to_vec(&term.record).unwrap_or_default();
            return Stored { version: self.version, token: term.token, body };
        }
        let seconds = self.spec("leaseDurationSeconds").as_u64().filter(|seconds| *seconds > 0);
        let ttl = seconds.map_or(own_ttl, Duration::from_secs);
        let (record, token) = match self.holder() {
            "" => {
                (Record::unheld(ttl, None), if self.spec("renewTime").is_string() { self.version } else { 0 })
            }
            id => {
                let since_unix_ms =
                    time(self.spec("acquireTime")).and_then(|at| at.as_millisecond().try_into().ok());
                (Record::foreign(Foreign { id: id.to_owned(), since_unix_ms }, ttl), self.version)
            }
        };
        Stored { version: self.version, token, body: record.encode() }
    }

    /// The note in an annotation. A hand-over request shares the election's Lease, whose version changes with every renewal, so that
    /// the note has one of its own.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the annotation is garbage.
    pub(super) fn note(&self, annotation: &str) -> Result<Option<Stored>> {
        let Some(text) = self.annotation(annotation) else { return Ok(None) };
        let garbage = || {
            Error::new(
                ErrorKind::Corrupt,
                format!("the annotation {annotation} of a Lease cannot be read; remove it"),
            )
        };
        let note: NoteBody = serde_json::from_str(text).map_err(|_| garbage())?;
        let body = match (note.text, note.base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(base64)) => BASE64.decode(base64).map_err(|_| garbage())?,
            _ => return Err(garbage()),
        };
        let version = if annotation == HANDOVER { note.over } else { self.version };
        Ok(Some(Stored { version, token: note.token, body }))
    }

    /// The object to put in place of this one so that it says `record`, and the token that stands beside it then. What others have
    /// put into it stays.
    pub(super) fn with_record(
        &self,
        record: &Record,
        token: u64,
        rule: TokenRule,
        now: Timestamp,
    ) -> (Value, u64) {
        let mut object = self.writable();
        let acquiring = rule == TokenRule::Raise;
        let token = match rule {
            TokenRule::Keep => token,
            TokenRule::Raise => self.version,
            TokenRule::Set(token) => token.0,
        };
        let spec = fields(&mut object, "spec");
        if acquiring {
            let before = time(self.spec("acquireTime"));
            let after = before.and_then(|before| before.checked_add(SignedDuration::from_micros(1)).ok());
            spec.insert("acquireTime".to_owned(), text(after.map_or(now, |after| after.max(now))).into());
            let transitions = self.spec("leaseTransitions").as_i64().unwrap_or(0);
            spec.insert(
                "leaseTransitions".to_owned(),
                (transitions.max(0) + 1).min(i64::from(i32::MAX)).into(),
            );
        }
        let holder = record.holder.as_ref().map(identity).unwrap_or_default();
        spec.insert("holderIdentity".to_owned(), holder.as_str().into());
        spec.insert("leaseDurationSeconds".to_owned(), whole_seconds(record.ttl()).into());
        spec.insert("renewTime".to_owned(), text(raised(time(self.spec("renewTime")), now)).into());
        let acquired = spec.get("acquireTime").and_then(Value::as_str).map(str::to_owned);
        annotate(&mut object, TERM, &term(token, holder, acquired, Some(self.uid.clone()), record));
        (object, token)
    }

    /// The object to put in place of this one with a note in it.
    pub(super) fn with_note(&self, annotation: &str, token: FencingToken, body: &[u8]) -> Value {
        let mut object = self.writable();
        annotate(&mut object, annotation, &note(self.version, token, body));
        object
    }

    /// With what makes a PUT a compare-and-swap: resourceVersion *and* uid are in the metadata.
    fn writable(&self) -> Value {
        let mut object = self.object.clone();
        // Absent, the API server keeps its own.
        fields(&mut object, "metadata").remove("managedFields");
        object
    }
}

/// A Lease to create for an election, held by nobody: creation is never an acquisition.
pub(super) fn unheld(name: &str, record: &Record) -> Value {
    let mut object = empty(name);
    fields(&mut object, "spec").insert("leaseDurationSeconds".to_owned(), whole_seconds(record.ttl()).into());
    annotate(&mut object, TERM, &term(0, String::new(), None, None, record));
    object
}

/// A Lease to create for a note.
pub(super) fn with_note(name: &str, annotation: &str, token: FencingToken, body: &[u8]) -> Value {
    let mut object = empty(name);
    annotate(&mut object, annotation, &note(0, token, body));
    object
}

/// A Lease that says nothing.
pub(super) fn empty(name: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": name },
        "spec": { "holderIdentity": "" },
    })
}

/// What other clients see of a holder: the id for people, the nonce because no two campaigns may share a name.
fn identity(holder: &Holder) -> String {
    format!("{}_{}", holder.id, holder.nonce)
}

fn term(
    token: u64,
    holder: String,
    acquired: Option<String>,
    uid: Option<String>,
    record: &Record,
) -> String {
    let record = serde_json::to_value(record).unwrap_or_default();
    serde_json::to_string(&Term { token, holder, acquired, uid, record }).unwrap_or_default()
}

fn note(over: u64, token: FencingToken, body: &[u8]) -> String {
    let readable = std::str::from_utf8(body).ok().filter(|text| text.len() <= READABLE).map(str::to_owned);
    let base64 = readable.is_none().then(|| BASE64.encode(body));
    serde_json::to_string(&NoteBody { over, token: token.0, text: readable, base64 }).unwrap_or_default()
}

/// Never less than asked for, and at least what the API accepts.
fn whole_seconds(ttl: Duration) -> u64 {
    ttl.as_nanos().div_ceil(1_000_000_000).max(1).try_into().unwrap_or(u64::MAX).min(i32::MAX as u64)
}

/// A time that every client sees to differ from `stored`, whatever happened to this machine's clock.
fn raised(stored: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let far = now.checked_add(AHEAD_MAX).unwrap_or(now);
    match stored.filter(|stored| *stored < far).and_then(|stored| stored.checked_add(RENEW_STEP).ok()) {
        Some(next) => next.max(now),
        None => now,
    }
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// As the API writes it: RFC 3339 with microseconds.
fn text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

fn annotate(object: &mut Value, name: &str, text: &str) {
    let metadata = fields(object, "metadata");
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    if !annotations.is_object() {
        *annotations = json!({});
    }
    annotations[name] = text.into();
}

fn fields<'a>(object: &'a mut Value, name: &str) -> &'a mut Map<String, Value> {
    if !object[name].is_object() {
        object[name] = json!({});
    }
    object[name].as_object_mut().expect("it was just made an object")
}

#[cfg(test)]
mod tests;
