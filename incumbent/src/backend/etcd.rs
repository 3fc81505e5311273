//! `etcd://`: elections as queues of keys in etcd v3, shared with `etcdctl elect`, `etcdctl lock` and Go's `concurrency` package.

mod auth;
mod batch;
mod campaign;
mod client;
mod connection;
mod dial;
mod failure;
mod hints;
mod keys;
mod proto;
mod session;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use incumbent_core::guarantees::{Exclusion, Expiry, Guarantees, Handover, Survives, TokenSource, Transfer};
use incumbent_core::{
    Acquired, Backend, BoxFuture, BoxStream, CandidateId, Claim, ElectionName, FencingToken, Grant, Note,
    Observation, Renewed, Result, Settings, Stored, Swapped,
};
use tokio::task::AbortHandle;

use self::auth::Credentials;
use self::client::Client;
use self::connection::Config;
use self::keys::Keys;
use self::proto::compare::TargetUnion;
use self::proto::{Compare, PutRequest, RangeRequest, TxnRequest};
use self::session::Shared;
use super::server;
use super::shown::Shown;
use super::values;
use crate::thread::Factory;
use crate::url::{SERVER, StoreUrl, bad};

static SUMMARY: &str = "excludes all candidates of one etcd cluster, as long as it keeps its data";

pub(crate) fn guarantees() -> Guarantees {
    Guarantees {
        exclusion: Exclusion::Consensus,
        expiry: Expiry::Server,
        token: TokenSource::Revision,
        transfer: Transfer::Targeted,
        // etcd counts whole seconds and keeps no lease shorter than one and a half election timeouts (of 1 s).
        ttl_min: Duration::from_secs(2),
        expiry_slack: Duration::ZERO,
        // A new leader of the cluster gives each lease its whole time again.
        renew_spacing: Duration::ZERO,
        takeover_ttls: 2,
        takeover_extra: Duration::from_secs(5),
        handover: Handover::Pushed,
        survives: Survives { crash: true, power_loss: true, failover: true },
        lists_candidates: true,
        summary: SUMMARY,
        not_applicable: &[],
    }
}

/// The port of etcd's clients.
const PORT: u16 = 2379;

pub(crate) fn open(url: &StoreUrl, settings: &Settings) -> Result<Factory> {
    url.only(&SERVER)?;
    if url.hosts.is_empty() {
        return Err(bad("etcd: needs a host; write etcd://127.0.0.1:2379"));
    }
    let config = Config {
        endpoints: url.hosts.iter().map(|host| host.authority(PORT)).collect(),
        tls: server::tls(url)?,
        credentials: match &url.user {
            Some(user) => {
                let password =
                    url.secret()?.ok_or_else(|| bad("etcd: a user needs a password; use password_file="))?;
                Some(Credentials { user: user.clone(), password })
            }
            None if url.parameter("password_file").is_some() => {
                return Err(bad("etcd: password_file= needs a user; write etcd://USER@HOST"));
            }
            None => None,
        },
        patience: (settings.ttl / 60).clamp(Duration::from_millis(50), Duration::from_millis(250)),
    };
    let (keys, ttl) = (Keys::new(&url.path), settings.ttl);
    let client = Client::new(config)?;
    Ok(Box::new(move || Ok(Arc::new(EtcdBackend::new(client, keys, ttl)))))
}

/// An etcd cluster as a backend.
struct EtcdBackend {
    shared: Arc<Shared>,
    guarantees: Guarantees,
    shown: Shown,
    tasks: [AbortHandle; 2],
}

impl EtcdBackend {
    /// Must be called within the runtime that the backend is to live on.
    fn new(client: Client, keys: Keys, ttl: Duration) -> EtcdBackend {
        let shared = Shared::new(client, keys, ttl);
        let tasks = [
            tokio::spawn(Arc::clone(&shared).run()).abort_handle(),
            tokio::spawn(Arc::clone(&shared).tidy()).abort_handle(),
        ];
        EtcdBackend { shared, guarantees: guarantees(), shown: Shown::default(), tasks }
    }
}

impl Drop for EtcdBackend {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Backend for EtcdBackend {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Acquired>> {
        Box::pin(self.shared.acquire(claim))
    }

    fn renew<'a>(&'a self, claim: &'a Claim, grant: &'a Grant) -> BoxFuture<'a, Result<Renewed>> {
        Box::pin(self.shared.extend(claim, grant))
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        _grant: Option<&'a Grant>,
        _next: Option<&'a CandidateId>,
    ) -> BoxFuture<'a, Result<()>> {
        // Who is next has been settled by then: those before the named candidate have queued anew.
        Box::pin(self.shared.release(claim))
    }

    fn observe<'a>(&'a self, election: &'a ElectionName) -> BoxFuture<'a, Result<Observation>> {
        Box::pin(async move {
            let seen = self.shared.look_at(election).await?;
            if let Some(token) = seen.leader.as_ref().and_then(|leader| leader.token) {
                self.shown.pass(election, token)?;
            }
            Ok(seen)
        })
    }

    fn watch<'a>(
        &'a self,
        election: &'a ElectionName,
        campaign: Option<&'a Claim>,
    ) -> Option<BoxStream<'a, Result<()>>> {
        Some(match campaign {
            Some(claim) => {
                Box::pin(hints::of_campaign(Arc::clone(&self.shared), (election.clone(), claim.nonce)))
            }
            None => Box::pin(hints::of_election(&self.shared, election)),
        })
    }

    fn read_note<'a>(
        &'a self,
        election: &'a ElectionName,
        note: Note,
    ) -> BoxFuture<'a, Result<Option<Stored>>> {
        Box::pin(async move {
            let key = self.shared.keys.note(election, note).into();
            let request = RangeRequest { key, ..Default::default() };
            let reply = self.shared.client.range(request, self.shared.limit).await?;
            reply.body.kvs.first().map(keys::note).transpose()
        })
    }

    fn swap_note<'a>(
        &'a self,
        election: &'a ElectionName,
        note: Note,
        expected: Option<&'a Stored>,
        token: FencingToken,
        body: Vec<u8>,
    ) -> BoxFuture<'a, Result<Swapped>> {
        Box::pin(async move {
            let key = self.shared.keys.note(election, note);
            let version = expected.map_or(0, |stored| stored.version as i64);
            let value = values::note(token, &body);
            let request = TxnRequest {
                compare: vec![Compare::equal(key.as_str(), TargetUnion::ModRevision(version))],
                success: vec![PutRequest { key: key.into(), value, ..Default::default() }.into()],
                failure: Vec::new(),
            };
            let reply = self.shared.client.txn(request, self.shared.limit).await?;
            Ok(match reply.body.succeeded {
                true => {
                    Swapped::Done { version: reply.revision as u64, token: token.0, sent_at: reply.sent_at }
                }
                false => Swapped::Conflict,
            })
        })
    }
}

impl fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdBackend")
            .field("client", &self.shared.client)
            .field("keys", &self.shared.keys)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_parameters_without_tls_are_refused() {
        for name in ["ca", "cert", "key", "server_name"] {
            let url = StoreUrl::parse(&format!("etcd://127.0.0.1?tls=off&{name}=x")).expect("a URL");
            let Err(error) = open(&url, &Settings::default()) else { panic!("{name} was taken") };
            assert!(error.to_string().contains("means nothing with tls=off"), "{error}");
        }
    }
}
