//! `consul://`: elections as locks in Consul's key-value store, shared with `consul lock`.

mod api;
mod batch;
mod campaign;
mod failure;
mod hints;
mod http;
mod keys;
mod session;
mod state;
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

use self::api::{Client, Op};
use self::batch::Outcome;
use self::http::{Config, Token};
use self::keys::Keys;
use self::session::Shared;
use super::server;
use super::shown::Shown;
use crate::thread::Factory;
use crate::url::{StoreUrl, bad};

static SUMMARY: &str = "excludes all candidates of one Consul datacenter, as long as it keeps its data and nobody deregisters the node that the sessions are on";

pub(crate) fn guarantees() -> Guarantees {
    Guarantees {
        exclusion: Exclusion::Consensus,
        expiry: Expiry::Server,
        token: TokenSource::Revision,
        transfer: Transfer::Targeted,
        // What the servers allow: session_ttl_min, which is 10 s unless it was lowered.
        ttl_min: Duration::from_secs(1),
        renew_spacing: Duration::ZERO,
        expiry_slack: Duration::ZERO,
        // A session lives for twice its ttl, and as long again if the servers elect a new leader meanwhile.
        takeover_ttls: 4,
        takeover_extra: Duration::from_secs(10),
        handover: Handover::Pushed,
        survives: Survives { crash: true, power_loss: true, failover: true },
        lists_candidates: false,
        summary: SUMMARY,
        not_applicable: &[],
    }
}

/// The ports of Consul's agents, for plain text and TLS.
const PORTS: (u16, u16) = (8500, 8501);
/// The node that sessions are on, unless the URL names one.
const NODE: &str = "incumbent";

pub(crate) fn open(url: &StoreUrl, settings: &Settings) -> Result<Factory> {
    url.only(&["tls", "ca", "cert", "key", "server_name", "node", "token", "token_file"])?;
    if url.hosts.is_empty() {
        return Err(bad("consul: needs a host; write consul://127.0.0.1:8500"));
    }
    if url.user.is_some() {
        return Err(bad("consul: has no users; give an ACL token with token_file="));
    }
    // Consul's HTTP server would take them for something else.
    if url.path.trim_end_matches('/').split('/').any(|part| matches!(part, "." | ".."))
        || url.path.contains("//")
    {
        return Err(bad("consul: the prefix may not have . or .. or nothing between two slashes"));
    }
    let token = match (url.parameter("token"), url.parameter("token_file")) {
        (Some(_), Some(_)) => {
            return Err(bad("the backend URL has a token= and a token_file=; leave one out"));
        }
        (Some(token), None) => Token::Given(token.to_owned()),
        (None, Some(path)) => {
            http::read_token(path.as_ref())?;
            Token::File(path.into())
        }
        (None, None) => Token::None,
    };
    let tls = server::tls(url)?;
    if let Some(tls) = &tls {
        // They are read again with each connection; what is wrong with them now is told at once.
        tls.config(&[])?;
        url.hosts.iter().try_for_each(|host| tls.server_name(&host.name).map(drop))?;
    }
    let port = if tls.is_some() { PORTS.1 } else { PORTS.0 };
    let node = url.parameter("node").unwrap_or(NODE).to_owned();
    if node.is_empty() {
        return Err(bad("consul: node= is empty; leave it out for the node incumbent"));
    }
    let config = Config {
        hosts: url.hosts.iter().map(|host| (host.name.clone(), host.authority(port))).collect(),
        tls,
        token,
        patience: (settings.ttl / 60).clamp(Duration::from_millis(50), Duration::from_millis(250)),
    };
    let (keys, ttl) = (Keys::new(url.path.trim_start_matches('/')), settings.ttl);
    let client = Client::new(config);
    Ok(Box::new(move || Ok(Arc::new(ConsulBackend::new(client, keys, node, ttl)))))
}

/// A Consul datacenter as a backend.
struct ConsulBackend {
    shared: Arc<Shared>,
    guarantees: Guarantees,
    shown: Shown,
    tasks: [AbortHandle; 2],
}

impl ConsulBackend {
    /// Must be called within the runtime that the backend is to live on.
    fn new(client: Client, keys: Keys, node: String, ttl: Duration) -> ConsulBackend {
        let shared = Shared::new(client, keys, node, ttl);
        let tasks = [
            tokio::spawn(Arc::clone(&shared).run()).abort_handle(),
            tokio::spawn(Arc::clone(&shared).tidy()).abort_handle(),
        ];
        ConsulBackend { shared, guarantees: guarantees(), shown: Shown::default(), tasks }
    }
}

impl Drop for ConsulBackend {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.shared.watches.close();
    }
}

impl Backend for ConsulBackend {
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
        next: Option<&'a CandidateId>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.shared.release(claim, next))
    }

    fn observe<'a>(&'a self, election: &'a ElectionName) -> BoxFuture<'a, Result<Observation>> {
        Box::pin(async move {
            let (seen, token) = self.shared.observe(election).await?;
            if let Some(token) = token {
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
        let campaign = campaign.map(|claim| (election.clone(), claim.nonce));
        Some(Box::pin(hints::of(Arc::clone(&self.shared), election, campaign)))
    }

    fn read_note<'a>(
        &'a self,
        election: &'a ElectionName,
        note: Note,
    ) -> BoxFuture<'a, Result<Option<Stored>>> {
        Box::pin(async move {
            let key = self.shared.keys.note(election, note);
            let entry = self.shared.client.get(&key, true, self.shared.limit).await?.body;
            entry.as_ref().map(keys::note).transpose()
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
            let version = expected.map_or(0, |stored| stored.version);
            let value = keys::note_value(token, version, &body);
            Ok(match self.shared.batcher.submit(vec![Op::cas(&key, &value, 0, version)]).await? {
                Outcome::Done { entries, sent_at, .. } => {
                    let version = entries.first().map_or(0, |entry| entry.index);
                    Swapped::Done { version, token: token.0, sent_at }
                }
                Outcome::Refused(refusals) => match refusals.iter().find(|refusal| refusal.is_denied()) {
                    Some(denied) => return Err(self.shared.denied(&key, &denied.what)),
                    None => Swapped::Conflict,
                },
            })
        })
    }
}

impl fmt::Debug for ConsulBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsulBackend")
            .field("client", &self.shared.client)
            .field("keys", &self.shared.keys)
            .finish_non_exhaustive()
    }
}
