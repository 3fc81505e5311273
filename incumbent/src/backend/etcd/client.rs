//! The calls to etcd: each is sent once, to one member, within a time limit, and says when it was sent.

use std::sync::Arc;
use std::time::Duration;

use incumbent_core::{BootInstant, ErrorKind, Result};
use tokio::time::{Instant, timeout_at};
use tonic::Request;

use super::connection::{Config, Connections, Link};
use super::failure::{self, Effect};
use super::proto::{
    Headed, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, RangeRequest, RangeResponse, Rpc, TxnRequest, TxnResponse,
};
use super::watch::{Watch, WatchKeys, Watches};
use crate::clock;

/// An answer of etcd, and what it proves.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Reply<T> {
    /// The answer itself.
    pub(super) body: T,
    /// Read on the boot clock before the first byte of the request left.
    pub(super) sent_at: BootInstant,
    /// Read on the boot clock after the answer came.
    pub(super) answered_at: BootInstant,
    /// Term of the last entry that the answering member had applied.
    pub(super) raft_term: u64,
    /// The store's revision at the answer.
    pub(super) revision: i64,
    /// The cluster that answered.
    pub(super) cluster_id: u64,
}

/// A client of one etcd cluster. Cheap to clone; all clones share one connection and one watch stream.
///
/// Every call goes to the member in use. If that fails or does not answer, the *next* call goes to another one: no call
/// is ever repeated, except after a refused token, where it is certain that it had no effect. Dropping the future of a
/// call leaves its outcome unknown. Errors are ambiguous exactly where the request may have taken effect.
#[derive(Clone, Debug)]
pub(super) struct Client {
    connections: Arc<Connections>,
    watches: Watches,
}

impl Client {
    /// A client that connects with its first call.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if an endpoint is not `host:port`.
    pub(super) fn new(config: Config) -> Result<Client> {
        let connections = Arc::new(Connections::new(config)?);
        Ok(Client { watches: Watches::new(Arc::clone(&connections)), connections })
    }

    /// Reads a key or a range of keys.
    pub(super) async fn range(&self, request: RangeRequest, limit: Duration) -> Result<Reply<RangeResponse>> {
        self.call(request, Effect::None, limit).await
    }

    /// Compares, then writes or reads, as one step.
    pub(super) async fn txn(&self, request: TxnRequest, limit: Duration) -> Result<Reply<TxnResponse>> {
        self.call(request, Effect::Write, limit).await
    }

    /// Makes a lease of at least `ttl_s` seconds. The server's answer may be higher, as *that* member sees it: trust the
    /// smaller of the two.
    pub(super) async fn lease_grant(&self, ttl_s: i64, limit: Duration) -> Result<Reply<LeaseGrantResponse>> {
        self.call(LeaseGrantRequest { ttl: ttl_s, id: 0 }, Effect::Write, limit).await
    }

    /// Ends a lease and deletes its keys.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such lease.
    pub(super) async fn lease_revoke(&self, id: i64, limit: Duration) -> Result<Reply<LeaseRevokeResponse>> {
        self.call(LeaseRevokeRequest { id }, Effect::Write, limit).await
    }

    /// Keeps a lease alive once. The answer alone is no proof that the lease still exists (rule R3).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such lease.
    pub(super) async fn lease_keep_alive_once(
        &self,
        id: i64,
        limit: Duration,
    ) -> Result<Reply<LeaseKeepAliveResponse>> {
        let reply = self.call(LeaseKeepAliveRequest { id }, Effect::Write, limit).await?;
        if reply.body.ttl <= 0 || reply.body.id != id {
            return Err(failure::error(
                ErrorKind::NotFound,
                "cluster",
                "the lease to keep alive does not exist",
            ));
        }
        Ok(reply)
    }

    /// Follows the changes of keys. Must be called within a tokio runtime, which then runs the shared stream.
    pub(super) fn watch(&self, keys: WatchKeys) -> Watch {
        self.watches.watch(keys)
    }

    /// The highest term that an answer has shown so far; 0 before the first.
    pub(super) fn term(&self) -> u64 {
        self.connections.term()
    }

    /// The cluster that answered first; `None` before.
    pub(super) fn cluster_id(&self) -> Option<u64> {
        self.connections.cluster_id()
    }

    pub(super) async fn call<R: Rpc>(
        &self,
        request: R,
        effect: Effect,
        limit: Duration,
    ) -> Result<Reply<R::Response>> {
        let until = Instant::now() + limit;
        let link = self.connections.link(limit).await?;
        match self.attempt(&link, request.clone(), effect, until).await? {
            Outcome::Reply(reply) => Ok(reply),
            Outcome::TokenRefused => match self.attempt(&link, request, effect, until).await? {
                Outcome::Reply(reply) => Ok(reply),
                Outcome::TokenRefused => Err(failure::error(
                    ErrorKind::Denied,
                    link.host(),
                    "a new token was refused at once; check the clocks and the token settings of the members",
                )),
            },
        }
    }

    async fn attempt<R: Rpc>(
        &self,
        link: &Link,
        request: R,
        effect: Effect,
        until: Instant,
    ) -> Result<Outcome<R::Response>> {
        let auth = self.connections.auth();
        let pass = match timeout_at(until, auth.pass(link)).await {
            Ok(Ok(pass)) => pass,
            Ok(Err(failure)) => {
                if failure.is_retryable() {
                    self.connections.give_up(link);
                }
                return Err(failure);
            }
            Err(_) => {
                self.connections.give_up(link);
                return Err(failure::unanswered(link.host(), Effect::None));
            }
        };
        let mut request = Request::new(request);
        pass.stamp(&mut request);
        let sent_at = clock::now();
        match timeout_at(until, link.send(request)).await {
            Ok(Ok(body)) => {
                let header = self.connections.check(link, body.header(), effect)?;
                Ok(Outcome::Reply(Reply {
                    sent_at,
                    answered_at: clock::now(),
                    raft_term: header.raft_term,
                    revision: header.revision,
                    cluster_id: header.cluster_id,
                    body,
                }))
            }
            Ok(Err(status)) if failure::is_token_refused(&status) && auth.refused(&pass) => {
                Ok(Outcome::TokenRefused)
            }
            Ok(Err(status)) => {
                let broken = failure::is_local(&status);
                let failure = failure::explain(status, link.host(), effect);
                if broken || failure.is_retryable() {
                    self.connections.give_up(link);
                }
                Err(failure)
            }
            Err(_) => {
                self.connections.give_up(link);
                Err(failure::unanswered(link.host(), effect))
            }
        }
    }
}

/// What one attempt came to, if it did not fail.
enum Outcome<T> {
    Reply(Reply<T>),
    /// The token had expired; the request had no effect.
    TokenRefused,
}
