//! The calls to Consul: keys, transactions, sessions. Each is one request.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Method, StatusCode};
use incumbent_core::{BootInstant, Error, ErrorKind, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::failure::{self, Effect};
use super::http::{Answer, Ask, Config, Http};

/// The mark of a lock, as Consul's own client writes it.
pub(super) const LOCK_FLAG: u64 = 0x2ddc_cbc0_58a5_0c18;
/// The mark of a semaphore, as `consul lock -n` writes it.
pub(super) const SEMAPHORE_FLAG: u64 = 0xe0f6_9a2b_aa41_4de0;
/// Operations in one transaction, as Consul limits them.
pub(super) const OPS_MAX: usize = 64;

/// What may stand unescaped in the path of a key.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_').remove(b'~');

/// An answer of Consul, and when it was asked for.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Reply<T> {
    pub(super) body: T,
    /// Read on the boot clock before the first byte of the request left.
    pub(super) sent_at: BootInstant,
    /// Read on the boot clock after the answer came.
    pub(super) answered_at: BootInstant,
    /// The index at which the answer was true, for the next blocking query.
    pub(super) index: u64,
    /// Who answered.
    pub(super) host: Arc<str>,
}

/// A key as it stands in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: Vec<u8>,
    pub(super) flags: u64,
    /// The session that holds it.
    pub(super) session: Option<String>,
    /// Changes with every write, and is never used twice.
    pub(super) index: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Pair {
    key: String,
    #[serde(default)]
    flags: u64,
    value: Option<String>,
    #[serde(default)]
    session: Option<String>,
    modify_index: u64,
}

impl From<Pair> for Entry {
    fn from(pair: Pair) -> Entry {
        Entry {
            key: pair.key,
            value: STANDARD.decode(pair.value.unwrap_or_default()).unwrap_or_default(),
            flags: pair.flags,
            session: pair.session.filter(|session| !session.is_empty()),
            index: pair.modify_index,
        }
    }
}

/// One operation of a transaction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Op {
    verb: &'static str,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
}

impl Op {
    fn new(verb: &'static str, key: &str) -> Op {
        Op { verb, key: key.to_owned(), value: None, flags: None, index: None, session: None }
    }

    /// Fails unless the key was last written at `index`.
    pub(super) fn check_index(key: &str, index: u64) -> Op {
        Op { index: Some(index), ..Op::new("check-index", key) }
    }

    /// Locks a free key with `session` and writes it.
    pub(super) fn lock(key: &str, value: &[u8], session: &str) -> Op {
        Op { session: Some(session.to_owned()), ..Op::write("lock", key, value, LOCK_FLAG) }
    }

    /// Frees a key that `session` holds and writes it.
    pub(super) fn unlock(key: &str, value: &[u8], flags: u64, session: &str) -> Op {
        Op { session: Some(session.to_owned()), ..Op::write("unlock", key, value, flags) }
    }

    /// Writes the key if it was last written at `index` (0: if it is absent).
    pub(super) fn cas(key: &str, value: &[u8], flags: u64, index: u64) -> Op {
        Op { index: Some(index), ..Op::write("cas", key, value, flags) }
    }

    /// Reads every key that begins so; none is no failure.
    pub(super) fn get_tree(key: &str) -> Op {
        Op::new("get-tree", key)
    }

    fn write(verb: &'static str, key: &str, value: &[u8], flags: u64) -> Op {
        Op { value: Some(STANDARD.encode(value)), flags: Some(flags), ..Op::new(verb, key) }
    }
}

#[derive(Serialize)]
struct Item<'a> {
    #[serde(rename = "KV")]
    kv: &'a Op,
}

#[derive(Deserialize)]
struct TxnAnswer {
    #[serde(rename = "Results")]
    results: Option<Vec<TxnResult>>,
    #[serde(rename = "Errors")]
    errors: Option<Vec<Refusal>>,
}

#[derive(Deserialize)]
struct TxnResult {
    #[serde(rename = "KV")]
    kv: Option<Pair>,
}

/// Why an operation of a transaction was refused.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(super) struct Refusal {
    /// Which operation, from 0.
    #[serde(rename = "OpIndex")]
    pub(super) op: usize,
    #[serde(rename = "What")]
    pub(super) what: String,
}

impl Refusal {
    /// Another key can be as good as this one, but not this session.
    pub(super) fn is_session(&self) -> bool {
        self.what.contains("invalid session")
    }

    pub(super) fn is_lock_delay(&self) -> bool {
        self.what.contains("lock delay")
    }

    pub(super) fn is_denied(&self) -> bool {
        self.what.contains("Permission denied") || self.what.contains("ACL not found")
    }
}

/// What came of a transaction.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Txn {
    /// All of it was done; an entry for each operation that gives one.
    Done(Vec<Entry>),
    /// Nothing was done.
    Refused(Vec<Refusal>),
}

#[derive(Deserialize)]
struct Created {
    #[serde(rename = "ID")]
    id: String,
}

/// What a session is made of.
pub(super) struct NewSession<'a> {
    pub(super) node: &'a str,
    pub(super) ttl: Duration,
}

/// A client of one Consul. Cheap to clone; all clones share their connections.
#[derive(Clone, Debug)]
pub(super) struct Client {
    http: Arc<Http>,
}

impl Client {
    pub(super) fn new(config: Config) -> Client {
        Client { http: Arc::new(Http::new(config)) }
    }

    /// Reads a key. `consistent` asks a quorum whether the answer is the latest.
    pub(super) async fn get(
        &self,
        key: &str,
        consistent: bool,
        limit: Duration,
    ) -> Result<Reply<Option<Entry>>> {
        let path = format!("{}{}", path_of(key), if consistent { "?consistent" } else { "" });
        let reply = self.read(path, key, false, limit).await?;
        Ok(reply.map(|mut entries| entries.pop()))
    }

    /// Reads a key as soon as it was written after `index`, or after `wait`.
    pub(super) async fn follow(&self, key: &str, index: u64, wait: Duration) -> Result<Reply<Option<Entry>>> {
        let path = format!("{}?{}", path_of(key), blocking(index, wait));
        let reply = self.read(path, key, true, patience(wait)).await?;
        Ok(reply.map(|mut entries| entries.pop()))
    }

    /// Reads all keys under `prefix` as soon as one was written after `index`, or after `wait`.
    pub(super) async fn follow_all(
        &self,
        prefix: &str,
        index: u64,
        wait: Duration,
    ) -> Result<Reply<Vec<Entry>>> {
        let path = format!("{}?recurse&{}", path_of(prefix), blocking(index, wait));
        self.read(path, prefix, true, patience(wait)).await
    }

    async fn read(&self, path: String, key: &str, waits: bool, limit: Duration) -> Result<Reply<Vec<Entry>>> {
        let ask = Ask { method: Method::GET, path, body: Vec::new(), effect: Effect::None, waits };
        let answer = self.http.ask(ask, limit).await?;
        let index = answer.headers.get("X-Consul-Index").and_then(|index| index.to_str().ok()?.parse().ok());
        // Without an index it is no answer of Consul's to this question.
        match (answer.status, index) {
            (StatusCode::NOT_FOUND, Some(index)) => Ok(reply(&answer, Vec::new(), index)),
            (StatusCode::OK, Some(index)) => {
                let pairs: Vec<Pair> = self.parse(&answer, Effect::None)?;
                Ok(reply(&answer, pairs.into_iter().map(Entry::from).collect(), index))
            }
            (StatusCode::OK, None) => Err(self.garbled(&answer, Effect::None)),
            _ => Err(self.explain(&answer, Effect::None, &format!("key:read on {key:?}"))),
        }
    }

    /// All of these, or nothing.
    pub(super) async fn txn(&self, ops: &[Op], limit: Duration) -> Result<Reply<Txn>> {
        let items: Vec<Item<'_>> = ops.iter().map(|kv| Item { kv }).collect();
        let effect = if ops.iter().all(|op| op.verb == "get-tree") { Effect::None } else { Effect::Write };
        let answer = self.put("/v1/txn", &items, effect, limit).await?;
        let txn = match answer.status {
            StatusCode::OK => {
                let body: TxnAnswer = self.parse(&answer, effect)?;
                let entries = body.results.unwrap_or_default().into_iter().filter_map(|result| result.kv);
                Txn::Done(entries.map(Entry::from).collect())
            }
            StatusCode::CONFLICT => {
                let body: TxnAnswer = self.parse(&answer, effect)?;
                let refusals = body.errors.unwrap_or_default();
                if refusals.iter().any(Refusal::is_denied) {
                    self.http.forget_token();
                }
                Txn::Refused(refusals)
            }
            _ => {
                let key = ops.first().map(|op| op.key.as_str()).unwrap_or_default();
                return Err(self.explain(&answer, effect, &format!("key:write on {key:?}")));
            }
        };
        Ok(reply(&answer, txn, 0))
    }

    /// Makes a session without health checks on `node`. It lives at least its ttl from the send of this.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such node.
    pub(super) async fn create_session(
        &self,
        session: NewSession<'_>,
        limit: Duration,
    ) -> Result<Reply<String>> {
        let body = serde_json::json!({
            "Node": session.node,
            "Name": "incumbent",
            // Fencing tokens do what it is for.
            "LockDelay": "0s",
            "Behavior": "release",
            "TTL": format!("{}ms", session.ttl.as_millis()),
            // With a check a session can end before its ttl.
            "NodeChecks": [],
            "ServiceChecks": [],
        });
        let answer = self.put("/v1/session/create", &body, Effect::Write, limit).await?;
        if answer.status == StatusCode::OK {
            let created: Created = self.parse(&answer, Effect::Write)?;
            return Ok(reply(&answer, created.id, 0));
        }
        if String::from_utf8_lossy(&answer.body).contains("Missing node registration") {
            let text = format!("it has no node {:?}", session.node);
            return Err(failure::error(ErrorKind::NotFound, &answer.host, text));
        }
        Err(self.explain(&answer, Effect::Write, &format!("session:write on {:?}", session.node)))
    }

    /// Registers a node on which no agent runs, so that no failure of an agent or a server ends the sessions on it.
    pub(super) async fn register(&self, node: &str, limit: Duration) -> Result<()> {
        let body = serde_json::json!({ "Node": node, "Address": "127.0.0.1", "NodeMeta": { "made-by": "incumbent" } });
        let answer = self.put("/v1/catalog/register", &body, Effect::Write, limit).await?;
        match answer.status {
            StatusCode::OK => Ok(()),
            _ => Err(self.explain(&answer, Effect::Write, &format!("node:write on {node:?}"))),
        }
    }

    /// Ends a session and frees what it holds. That it does not exist is no failure.
    pub(super) async fn destroy_session(&self, node: &str, id: &str, limit: Duration) -> Result<()> {
        let path = format!("/v1/session/destroy/{}", utf8_percent_encode(id, IN_PATH));
        let ask = Ask { method: Method::PUT, path, body: Vec::new(), effect: Effect::Write, waits: false };
        let answer = self.http.ask(ask, limit).await?;
        match answer.status {
            StatusCode::OK => Ok(()),
            _ => Err(self.explain(&answer, Effect::Write, &format!("session:write on {node:?}"))),
        }
    }

    async fn put(
        &self,
        path: &str,
        body: &impl Serialize,
        effect: Effect,
        limit: Duration,
    ) -> Result<Answer> {
        let body = serde_json::to_vec(body).expect("strings and numbers can always be written");
        self.http
            .ask(Ask { method: Method::PUT, path: path.to_owned(), body, effect, waits: false }, limit)
            .await
    }

    fn parse<T: DeserializeOwned>(&self, answer: &Answer, effect: Effect) -> Result<T> {
        serde_json::from_slice(&answer.body).map_err(|_| self.garbled(answer, effect))
    }

    fn garbled(&self, answer: &Answer, effect: Effect) -> Error {
        self.http.give_up_named(&answer.host);
        failure::garbled(&answer.host, effect)
    }

    fn explain(&self, answer: &Answer, effect: Effect, right: &str) -> Error {
        let failure = failure::explain(answer.status, &answer.body, &answer.host, effect, right);
        match failure.kind() {
            ErrorKind::Denied => self.http.forget_token(),
            ErrorKind::Unavailable => self.http.give_up_named(&answer.host),
            _ => {}
        }
        failure
    }
}

impl<T> Reply<T> {
    fn map<U>(self, change: impl FnOnce(T) -> U) -> Reply<U> {
        let Reply { body, sent_at, answered_at, index, host } = self;
        Reply { body: change(body), sent_at, answered_at, index, host }
    }
}

fn reply<T>(answer: &Answer, body: T, index: u64) -> Reply<T> {
    let Answer { host, sent_at, answered_at, .. } = answer;
    Reply { body, sent_at: *sent_at, answered_at: *answered_at, index, host: Arc::clone(host) }
}

fn path_of(key: &str) -> String {
    format!("/v1/kv/{}", utf8_percent_encode(key, IN_PATH))
}

fn blocking(index: u64, wait: Duration) -> String {
    format!("index={index}&wait={}ms", wait.as_millis())
}

/// The server adds up to a sixteenth, so that not all come back at once.
fn patience(wait: Duration) -> Duration {
    wait + wait / 16 + Duration::from_secs(5)
}
