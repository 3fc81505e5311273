//! `raft://`, `bully://`, `ring://`: elections among the peers themselves, without a store. The protocols are the core's; here are the connections, the
//! state on the disk, and the adapter that makes a [`Backend`] of them.

mod ask;
mod config;
mod data;
mod disk;
mod handshake;
#[cfg(test)]
mod hostile;
mod known;
mod link;
mod listen;
mod membership;
mod node;
mod notes;
pub(crate) mod public;
mod roster;
mod seat;
mod state;
mod trial;
mod wire;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use incumbent_core::guarantees::{Exclusion, Expiry, Guarantees, Handover, Survives, TokenSource, Transfer};
use incumbent_core::peers::bully::Bully;
use incumbent_core::peers::raft::Raft;
use incumbent_core::peers::register::{Change, Outcome};
use incumbent_core::peers::ring::Ring;
use incumbent_core::{
    Acquired, Backend, BoxFuture, BoxStream, CandidateId, Claim, ElectionName, Error, ErrorKind,
    FencingToken, Grant, Note, Observation, Renewed, Result, Settings, Stored, Swapped,
};
use tokio::sync::{Mutex, watch};

use self::ask::Asker;
use self::config::{Algorithm, Config};
use self::listen::{unexpected, unknown};
use self::node::{Call, Node, even};
use self::wire::Register;
use super::shown::Shown;
use crate::clock;
use crate::thread::Factory;
use crate::url::StoreUrl;

/// What Raft among the peers promises.
pub(crate) fn raft() -> Guarantees {
    Guarantees {
        exclusion: Exclusion::Consensus,
        expiry: Expiry::Peers,
        token: TokenSource::Term,
        transfer: Transfer::Targeted,
        ttl_min: Duration::from_millis(100),
        expiry_slack: Duration::ZERO,
        renew_spacing: Duration::ZERO,
        // The promises to the old leader end, then come a random wait of up to ttl/4 and, if votes are split, others.
        takeover_ttls: 2,
        takeover_extra: Duration::from_secs(1),
        handover: Handover::Pushed,
        survives: Survives { crash: true, power_loss: true, failover: true },
        lists_candidates: true,
        summary: "excludes all candidates of these peers, as long as each keeps its state",
        not_applicable: &[],
    }
}

/// What Bully and elections on a ring promise with `majority=true`.
fn by_majority() -> Guarantees {
    Guarantees { token: TokenSource::Epoch, ..raft() }
}

/// What they promise without it.
pub(crate) fn alone() -> Guarantees {
    Guarantees {
        exclusion: Exclusion::None,
        token: TokenSource::None,
        // Without a token nobody can say which term shall be handed over.
        transfer: Transfer::NextInLine,
        survives: Survives { crash: false, power_loss: false, failover: false },
        summary: "excludes nobody: in every part of a network that falls apart one leads; majority=true excludes all candidates of these peers, with the epoch as token",
        ..raft()
    }
}

impl Config {
    fn guarantees(&self) -> Guarantees {
        match self.algorithm {
            Algorithm::Raft => raft(),
            Algorithm::Bully | Algorithm::Ring(_) if self.majority => by_majority(),
            Algorithm::Bully | Algorithm::Ring(_) => alone(),
        }
    }
}

pub(crate) fn open(url: &StoreUrl, settings: &Settings) -> Result<Factory> {
    let config = Arc::new(Config::new(url, settings)?);
    if let Some(tls) = &config.tls {
        // What is wrong with the files is told before anybody waits.
        tls.config(&[])?;
        tls.server_config()?;
    }
    Ok(Box::new(move || {
        Ok(Arc::new(PeersBackend {
            guarantees: config.guarantees(),
            config,
            shown: Shown::default(),
            node: watch::Sender::new(None),
            joining: Mutex::new(()),
            asker: OnceLock::new(),
        }))
    }))
}

/// The peers as a backend.
struct PeersBackend {
    config: Arc<Config>,
    guarantees: Guarantees,
    shown: Shown,
    /// This peer, once it has joined.
    node: watch::Sender<Option<Arc<Node>>>,
    joining: Mutex<()>,
    asker: OnceLock<Asker>,
}

async fn join(config: &Arc<Config>) -> Result<Arc<Node>> {
    let config = Arc::clone(config);
    match config.algorithm {
        Algorithm::Raft => Node::join::<Raft>(config, |_, rules| rules).await,
        Algorithm::Bully => Node::join::<Bully>(config, Config::bully).await,
        Algorithm::Ring(_) => Node::join::<Ring>(config, Config::ring).await,
    }
}

impl PeersBackend {
    fn joined(&self) -> Option<Arc<Node>> {
        self.node.borrow().clone()
    }

    /// Joins with the first candidate.
    async fn node(&self) -> Result<Arc<Node>> {
        let _one = self.joining.lock().await;
        if let Some(node) = self.joined() {
            return Ok(node);
        }
        let node = join(&self.config).await?;
        self.node.send_replace(Some(Arc::clone(&node)));
        Ok(node)
    }

    /// Made where it is used: in the runtime that this backend lives on.
    fn asker(&self) -> &Asker {
        self.asker.get_or_init(|| Asker::new(Arc::clone(&self.config)))
    }

    async fn note(&self, register: Register, change: Change) -> Result<Outcome> {
        match self.joined() {
            Some(node) => node.call(|answer| Call::Note(register, change, answer)).await,
            None => self.asker().note(&register, change).await,
        }
    }
}

impl Backend for PeersBackend {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Acquired>> {
        Box::pin(async move {
            let node = self.node().await?;
            node.call(|answer| Call::Acquire(claim.clone(), answer)).await
        })
    }

    fn renew<'a>(&'a self, claim: &'a Claim, grant: &'a Grant) -> BoxFuture<'a, Result<Renewed>> {
        Box::pin(async move {
            let node = self.node().await?;
            node.call(|answer| Call::Renew(claim.clone(), grant.clone(), answer)).await
        })
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        _grant: Option<&'a Grant>,
        next: Option<&'a CandidateId>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            // Who has not joined has nothing.
            let Some(node) = self.joined() else { return Ok(()) };
            let next = next.cloned();
            node.call(|answer| Call::Release(claim.election.clone(), claim.nonce, next, answer)).await
        })
    }

    fn observe<'a>(&'a self, election: &'a ElectionName) -> BoxFuture<'a, Result<Observation>> {
        Box::pin(async move {
            let seen = self.asker().look(election).await?;
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
        if campaign.is_none() && self.joined().is_none() {
            return Some(self.asker().watch(election));
        }
        // A campaign that is just beginning joins.
        let mut node = self.node.subscribe();
        let changes = async move {
            let node = node.wait_for(Option::is_some).await.ok().and_then(|node| node.clone());
            match node {
                Some(node) => node.signals.subscribe(election.as_str()).left_stream(),
                None => futures_util::stream::empty().right_stream(),
            }
        };
        Some(Box::pin(futures_util::stream::once(changes).flatten()))
    }

    fn advice(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async move {
            let Some(node) = self.joined() else {
                let mut advice = self.asker().advice().await;
                advice.extend(trial::run(&self.config).await?);
                self.asker().refresh().await?;
                advice.extend(self.config.behind());
                let count = self.config.roster.get().members.len();
                advice.extend(count.is_multiple_of(2).then(|| even(count)));
                return Ok(advice);
            };
            node.call(Call::Advice).await
        })
    }

    fn read_note<'a>(
        &'a self,
        election: &'a ElectionName,
        note: Note,
    ) -> BoxFuture<'a, Result<Option<Stored>>> {
        Box::pin(async move {
            if !self.guarantees.has_tokens() {
                // Nobody can have written one.
                return Ok(None);
            }
            match self.note(Register::new(election, note), Change::Read).await? {
                Outcome::Read(found) => Ok(found.map(|entry| Stored {
                    version: entry.version,
                    token: entry.token,
                    body: entry.body,
                })),
                _ => Err(unexpected()),
            }
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
            if !self.guarantees.has_tokens() {
                let text = "without majority=true a term has no token, under which a note could be written";
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
            let sent_at = clock::now();
            let expected = expected.map(|stored| (stored.version, stored.token));
            let change = Change::Swap { expected, token: token.0, body };
            match self.note(Register::new(election, note), change).await? {
                Outcome::Swapped(version) => Ok(Swapped::Done { version, token: token.0, sent_at }),
                Outcome::Conflict => Ok(Swapped::Conflict),
                Outcome::Unknown => Err(unknown()),
                Outcome::Read(_) => Err(unexpected()),
            }
        })
    }
}

impl fmt::Debug for PeersBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeersBackend").field("config", &self.config).finish_non_exhaustive()
    }
}
