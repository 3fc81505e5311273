//! `zookeeper://`: elections as queues of ephemeral nodes in ZooKeeper, shared with kazoo's `Election` and `Lock`.

mod campaign;
mod client;
mod dial;
mod failure;
mod hints;
mod jute;
mod link;
mod nodes;
mod session;
mod watches;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use incumbent_core::guarantees::{Exclusion, Expiry, Guarantees, Handover, Survives, TokenSource, Transfer};
use incumbent_core::{
    Acquired, Backend, BoxFuture, BoxStream, CandidateId, Claim, ElectionName, FencingToken, Grant, Note,
    Observation, Renewed, Result, Settings, Stored, Swapped,
};
use tokio::task::AbortHandle;

use self::client::{Client, Config};
use self::dial::{Credentials, Dialer};
use self::jute::{Acl, Mode, Write, code};
use self::nodes::{Nodes, parent};
use self::session::Shared;
use super::shown::Shown;
use super::{server, values};
use crate::clock;
use crate::thread::Factory;
use crate::url::{SERVER, StoreUrl, bad};

static SUMMARY: &str = "excludes all candidates of one ZooKeeper ensemble, as long as it keeps its data";

pub(crate) fn guarantees() -> Guarantees {
    Guarantees {
        exclusion: Exclusion::Consensus,
        expiry: Expiry::Server,
        token: TokenSource::Revision,
        transfer: Transfer::Targeted,
        // A server keeps no session shorter than two of its ticks, 4 s by default: a shorter ttl is raised by it.
        ttl_min: Duration::from_secs(2),
        // Each renewal asks for the session on a fresh connection.
        expiry_slack: Duration::ZERO,
        renew_spacing: Duration::ZERO,
        // A new leader of the ensemble gives each session its whole time again.
        takeover_ttls: 2,
        takeover_extra: Duration::from_secs(5),
        handover: Handover::Pushed,
        survives: Survives { crash: true, power_loss: true, failover: true },
        lists_candidates: true,
        summary: SUMMARY,
        not_applicable: &[],
    }
}

/// The port of ZooKeeper's clients, and the one that is customary for TLS.
const PORT: u16 = 2181;
const TLS_PORT: u16 = 2281;

pub(crate) fn open(url: &StoreUrl, settings: &Settings) -> Result<Factory> {
    url.only(&SERVER)?;
    if url.hosts.is_empty() {
        return Err(bad("zookeeper: needs a host; write zookeeper://127.0.0.1:2181"));
    }
    let credentials = match &url.user {
        Some(user) => {
            let password =
                url.secret()?.ok_or_else(|| bad("zookeeper: a user needs a password; use password_file="))?;
            Some(Credentials { user: user.clone(), password })
        }
        None if url.parameter("password_file").is_some() => {
            return Err(bad("zookeeper: password_file= needs a user; write zookeeper://USER@HOST"));
        }
        None => None,
    };
    let tls = server::tls(url)?;
    let port = if tls.is_some() { TLS_PORT } else { PORT };
    let dialer = |host: &crate::url::Host| Dialer {
        host: host.authority(port).into(),
        name: host.name.clone(),
        tls: tls.clone(),
        credentials: credentials.clone(),
    };
    let config = Config {
        dialers: url.hosts.iter().map(dialer).collect(),
        acl: if credentials.is_some() { Acl::Creator } else { Acl::Open },
        ttl: settings.ttl,
        limit: settings.ttl / 9,
        attach_limit: settings.ttl / 5,
    };
    let (nodes, ttl) = (Nodes::new(&url.path)?, settings.ttl);
    Ok(Box::new(move || Ok(Arc::new(ZookeeperBackend::new(Client::new(config), nodes, ttl)))))
}

/// A ZooKeeper ensemble as a backend.
struct ZookeeperBackend {
    shared: Arc<Shared>,
    guarantees: Guarantees,
    shown: Shown,
    tasks: [AbortHandle; 2],
}

impl ZookeeperBackend {
    /// Must be called within the runtime that the backend is to live on.
    fn new(client: Arc<Client>, nodes: Nodes, ttl: Duration) -> ZookeeperBackend {
        let shared = Shared::new(client, nodes, ttl);
        let tasks = [
            tokio::spawn(Arc::clone(&shared).run()).abort_handle(),
            tokio::spawn(Arc::clone(&shared).tidy()).abort_handle(),
        ];
        ZookeeperBackend { shared, guarantees: guarantees(), shown: Shown::default(), tasks }
    }
}

impl Drop for ZookeeperBackend {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.shared.client.stop();
    }
}

impl Backend for ZookeeperBackend {
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
        Box::pin(async move { self.shared.remove(&(claim.election.clone(), claim.nonce)).await })
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
        let shared = Arc::clone(&self.shared);
        Some(match campaign {
            Some(claim) => Box::pin(hints::of_campaign(shared, (election.clone(), claim.nonce))),
            None => Box::pin(hints::of_election(shared, election.clone())),
        })
    }

    fn read_note<'a>(
        &'a self,
        election: &'a ElectionName,
        note: Note,
    ) -> BoxFuture<'a, Result<Option<Stored>>> {
        Box::pin(self.shared.read_note(election, note))
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
            let client = &self.shared.client;
            let path = self.shared.nodes.note(election, note);
            let data = values::note(token, &body);
            let write = match expected {
                // The content's version begins anew if someone deletes the node; the transaction that wrote it is never
                // the same again.
                Some(stored) => match client.get(&path).await? {
                    Some((_, stat)) if stat.modified.unsigned_abs() == stored.version => {
                        Write::Set { path: path.clone(), data, version: Some(stat.version) }
                    }
                    _ => return Ok(Swapped::Conflict),
                },
                None => Write::Create { path: path.clone(), data, mode: Mode::Persistent },
            };
            let mut sent_at = clock::now();
            let mut done = client.write(&write).await?;
            if expected.is_none() && done.result == Err(code::NO_NODE) {
                client.make(parent(&path)).await?;
                sent_at = clock::now();
                done = client.write(&write).await?;
            }
            match done.result {
                Err(code::NODE_EXISTS | code::BAD_VERSION | code::NO_NODE) => Ok(Swapped::Conflict),
                _ => {
                    let version = done.settle(&write)?.stat.map_or(0, |stat| stat.modified.unsigned_abs());
                    Ok(Swapped::Done { version, token: token.0, sent_at })
                }
            }
        })
    }
}

impl fmt::Debug for ZookeeperBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZookeeperBackend")
            .field("client", &self.shared.client)
            .field("nodes", &self.shared.nodes)
            .finish_non_exhaustive()
    }
}
