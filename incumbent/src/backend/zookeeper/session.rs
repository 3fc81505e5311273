//! What all elections of one process share: one session, the rounds that prove its nodes, and the clearing away of what nobody
//! wants any more. What an answer proves is decided in [`incumbent_core::ephemeral`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use incumbent_core::{Authority, BootInstant, Error, ErrorKind, Result};
use tokio::sync::{Notify, OnceCell, watch};

use super::campaign::{Campaign, Name, Node};
use super::client::{Client, Done};
use super::jute::{Mode, Write, Wrote, code};
use super::nodes::{Nodes, parent};
use crate::backend::values;
use crate::clock;

/// Writes in one transaction: far below a server's limit of 1 MiB for one packet.
const MAX: usize = 100;

/// The session of one process with one ZooKeeper.
pub(super) struct Shared {
    pub(super) client: Arc<Client>,
    pub(super) nodes: Nodes,
    pub(super) ttl: Duration,
    state: Mutex<State>,
    authority: OnceCell<Authority>,
    /// When something is due may have changed.
    wanted: Notify,
    /// There is something to clear away.
    untidy: Notify,
    done: watch::Sender<Rounds>,
}

/// How the rounds went.
#[derive(Default)]
struct Rounds {
    count: u64,
    failure: Option<Error>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) campaigns: BTreeMap<Name, Campaign>,
    wanted: bool,
    running: bool,
    /// When the session was last known to be alive.
    touched_at: BootInstant,
    /// After a failure: not before this.
    pause_until: BootInstant,
    idle_since: Option<BootInstant>,
}

impl Shared {
    pub(super) fn new(client: Arc<Client>, nodes: Nodes, ttl: Duration) -> Arc<Shared> {
        Arc::new(Shared {
            client,
            nodes,
            ttl,
            state: Mutex::default(),
            authority: OnceCell::new(),
            wanted: Notify::new(),
            untidy: Notify::new(),
            done: watch::Sender::default(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What identifies this tree of nodes: ZooKeeper has no name of its own, so that a random one is put beside the elections.
    pub(super) async fn authority(&self) -> Result<Authority> {
        let find = async || {
            let path = self.nodes.authority();
            for _ in 0..3 {
                if let Some((name, _)) = self.client.get(&path).await? {
                    let name = String::from_utf8_lossy(&name).into_owned();
                    return Ok(Authority::new(format!("zookeeper:{name}:{}", self.nodes.prefix())));
                }
                let mut random = [0; 16];
                getrandom::fill(&mut random).map_err(|cause| {
                    Error::new(ErrorKind::Internal, "this system has no randomness").with_source(cause)
                })?;
                let name = format!("{:032x}", u128::from_be_bytes(random));
                let create =
                    Write::Create { path: path.clone(), data: name.into_bytes(), mode: Mode::Persistent };
                let done = self.client.write(&create).await?;
                match done.result {
                    Ok(_) | Err(code::NODE_EXISTS) => {}
                    Err(code::NO_NODE) => self.client.make(parent(&path)).await?,
                    Err(_) => drop(done.settle(&create)?),
                }
            }
            Err(Error::new(ErrorKind::Unavailable, "zookeeper: .incumbent/authority comes and goes"))
        };
        self.authority.get_or_try_init(find).await.cloned()
    }

    // ---- rounds ----

    /// Runs rounds as they are asked for and keeps the session alive, until it is dropped.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            let due = self.state().due(clock::now(), self.ttl, self.client.seen.watches.is_empty());
            tokio::select! {
                () = self.wanted.notified() => {}
                // One that was replaced ends too.
                () = self.client.seen.ended.notified() => {
                    if self.client.attachment().is_none() {
                        self.state().touched_at = BootInstant::ZERO;
                    }
                }
                () = sleep_until(due) => {}
            }
            let began = clock::now();
            let round = {
                let mut state = self.state();
                let due = state.due(began, self.ttl, self.client.seen.watches.is_empty());
                if due.is_none_or(|due| due > began) {
                    continue;
                }
                state.running = state.wanted;
                std::mem::take(&mut state.wanted)
            };
            let outcome = match round {
                true => self.prove_all().await,
                false => self.client.ping().await,
            };
            {
                let mut state = self.state();
                state.running = false;
                match &outcome {
                    Ok(()) => state.touched_at = began,
                    Err(failure) => {
                        tracing::debug!(%failure, round, "the session was not kept");
                        state.pause_until = clock::now() + self.ttl / 30;
                    }
                }
            }
            if round {
                self.done.send_modify(|done| {
                    done.count += 1;
                    done.failure = outcome.err();
                });
            }
        }
    }

    /// A node was created, so that there is something to keep alive.
    pub(super) fn created(&self) {
        self.wanted.notify_one();
    }

    /// Waits for the round under way, or for a new one if there is none.
    ///
    /// # Errors
    /// The round's. Some nodes may be proven nevertheless.
    pub(super) async fn round(&self) -> Result<()> {
        let mut done = self.done.subscribe();
        {
            let mut state = self.state();
            if !state.running {
                state.wanted = true;
                self.wanted.notify_one();
            }
        }
        if done.changed().await.is_err() {
            return Err(Error::new(ErrorKind::Internal, "the session has ended").with_backend("zookeeper"));
        }
        done.borrow().failure.clone().map_or(Ok(()), Err)
    }

    /// Asks for the session on a fresh connection and writes every led node through it. That fires the watches on those nodes,
    /// so that they are set again afterwards only.
    async fn prove_all(&self) -> Result<()> {
        let before = self.client.seen.zxid();
        let muted: BTreeSet<String> = self.led().into_iter().map(|(_, node)| node.path).collect();
        let attachment = self.client.attach_anew(|path| muted.contains(path)).await?;
        let led: Vec<_> =
            self.led().into_iter().filter(|(_, node)| node.session == attachment.session).collect();
        let chunks = led.chunks(MAX).map(|chunk| async move { (chunk, self.prove_chunk(chunk).await) });
        let (mut seen, mut failure) = (BTreeMap::new(), None);
        for (chunk, outcome) in join_all(chunks).await {
            match outcome {
                Ok(zxid) => seen.extend(chunk.iter().map(|(_, node)| (node.path.clone(), zxid))),
                Err(error) => failure = Some(error),
            }
        }
        let at: BTreeSet<i64> = muted.iter().map(|path| *seen.get(path).unwrap_or(&before)).collect();
        for zxid in at {
            self.client
                .unmute(zxid, |path| muted.contains(path) && *seen.get(path).unwrap_or(&before) == zxid);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Together, or each by itself if one of them is at fault. Gives the latest transaction that is known to be ours.
    async fn prove_chunk(&self, chunk: &[(Name, Node)]) -> Result<i64> {
        let writes: Vec<Write> = chunk.iter().map(|(_, node)| node.rewrite()).collect();
        let done = self.client.together(&writes).await?;
        if let Ok(Ok(all)) = &done.result {
            for ((name, node), wrote) in chunk.iter().zip(all) {
                self.took(name, node, &done, Ok(wrote));
            }
            return Ok(all.iter().filter_map(modified).max().unwrap_or(0));
        }
        let mut first = i64::MAX;
        let outcomes = join_all(writes.iter().map(|write| self.client.write(write))).await;
        for ((name, node), outcome) in chunk.iter().zip(outcomes) {
            let done = outcome?;
            first = first.min(done.result.as_ref().ok().and_then(modified).unwrap_or(i64::MAX));
            self.rewritten(name, node, done).await?;
        }
        Ok(first)
    }

    /// Notes what one write of an own node came to.
    ///
    /// # Errors
    /// It was refused for a reason that says nothing of the node.
    pub(super) async fn rewritten(&self, name: &Name, node: &Node, done: Done<Wrote>) -> Result<()> {
        match done.result {
            Ok(ref wrote) => self.took(name, node, &done, Ok(wrote)),
            Err(code::NO_NODE) => self.took(name, node, &done, Err(())),
            Err(code::BAD_VERSION) => {
                // A write of ours that was not answered, or somebody else's.
                let found = self.client.get(&node.path).await?;
                let ours = found.filter(|(value, stat)| {
                    stat.created == node.created
                        && stat.owner == node.session
                        && values::contender(value, "").0.nonce == Some(name.1)
                });
                match ours {
                    Some((_, stat)) => self.change(name, node, |node| node.version = stat.version),
                    None => self.took(name, node, &done, Err(())),
                }
            }
            Err(_) => drop(done.settle(&node.rewrite())?),
        }
        Ok(())
    }

    fn took<T>(&self, name: &Name, node: &Node, done: &Done<T>, outcome: Result<&Wrote, ()>) {
        let stat = outcome.ok().and_then(|wrote| wrote.stat);
        let written = stat.map(|stat| stat.written());
        match (stat, written) {
            (Some(stat), Some(written)) if done.attachment.owns(node.created, &written) => {
                let proof = done.attachment.proof(node.created, &written);
                self.change(name, node, |node| {
                    node.version = stat.version;
                    node.improve(proof);
                });
            }
            _ => self.change(name, node, |node| node.gone = true),
        }
    }

    /// Changes what is known of a node, if it still stands for its campaign.
    fn change(&self, name: &Name, node: &Node, change: impl FnOnce(&mut Node)) {
        let mut state = self.state();
        let known = state.campaigns.get_mut(name).and_then(|campaign| campaign.node.as_mut());
        if let Some(known) = known.filter(|known| known.created == node.created) {
            change(known);
        }
    }

    fn led(&self) -> Vec<(Name, Node)> {
        let state = self.state();
        let nodes = state.campaigns.iter().filter_map(|(name, campaign)| {
            let node = campaign.node.as_ref().filter(|node| node.led && !node.gone)?;
            Some((name.clone(), node.clone()))
        });
        nodes.collect()
    }

    // ---- clearing away ----

    /// Clears away what nobody wants any more, until it is dropped.
    pub(super) async fn tidy(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.untidy.notified() => {}
                () = tokio::time::sleep(self.ttl / 10) => {}
            }
            let leaving = self.state().leaving(clock::now(), self.ttl);
            join_all(leaving.iter().map(|name| self.clear(name))).await;
            let unused =
                || self.state().is_idle(clock::now(), self.ttl) && self.client.seen.watches.is_empty();
            if unused() {
                self.client.close_if(unused).await;
            }
        }
    }

    async fn clear(&self, name: &Name) {
        if let Err(failure) = self.remove(name).await {
            tracing::debug!(election = %name.0, %failure, "an abandoned node is still there");
        }
    }

    /// Deletes whatever a campaign may have left, and forgets the campaign.
    ///
    /// # Errors
    /// It is not certain that everything is gone; the campaign is leaving and will be tried again.
    pub(super) async fn remove(&self, name: &Name) -> Result<()> {
        let turn = {
            let mut state = self.state();
            let Some(campaign) = state.campaigns.get_mut(name) else { return Ok(()) };
            campaign.leave(clock::now());
            // Until it is forgotten, what is sent for it has to be confirmed.
            Arc::clone(&campaign.turn)
        };
        self.untidy.notify_one();
        let _turn = turn.lock().await;
        self.take_away(name).await?;
        self.state().campaigns.remove(name);
        Ok(())
    }

    /// Deletes the nodes of a campaign, by its name if it is known, else by its nonce.
    pub(super) async fn take_away(&self, name: &Name) -> Result<()> {
        let (node, unanswered) = {
            let state = self.state();
            let Some(campaign) = state.campaigns.get(name) else { return Ok(()) };
            (campaign.node.clone(), campaign.unanswered)
        };
        let doomed = match (node, unanswered) {
            (_, true) => self.own_nodes(name).await?,
            // What its own session's end takes away needs no deletion, but what was put in its place does.
            (Some(node), false) => vec![node.path],
            (None, false) => return Ok(()),
        };
        let deletions = doomed.into_iter().map(|path| async move {
            let write = Write::Delete { path };
            let done = self.client.write(&write).await?;
            match done.result {
                Ok(_) | Err(code::NO_NODE) => Ok(()),
                Err(_) => done.settle(&write).map(drop),
            }
        });
        join_all(deletions).await.into_iter().collect::<Result<()>>()?;
        let mut state = self.state();
        if let Some(campaign) = state.campaigns.get_mut(name) {
            campaign.node = None;
            campaign.unanswered = false;
        }
        Ok(())
    }

    /// Every node with a campaign's nonce, in their order. Nothing that was sent for it before this can appear afterwards: the
    /// session's writes are done in the order in which they were sent, those on a connection that was replaced not at all
    /// once another has written.
    pub(super) async fn own_nodes(&self, name: &Name) -> Result<Vec<String>> {
        self.client.write(&Write::Delete { path: self.nodes.nil() }).await?;
        let dir = self.nodes.election(&name.0)?;
        let queue = super::nodes::queue(self.client.children(&dir).await?);
        let own = queue.into_iter().filter(|child| child.is_of(name.1));
        Ok(own.map(|child| format!("{dir}/{}", child.name)).collect())
    }
}

impl State {
    /// When the session has to be heard of, or a round is wanted.
    fn due(&self, now: BootInstant, ttl: Duration, unwatched: bool) -> Option<BootInstant> {
        if self.wanted {
            return Some(now);
        }
        if unwatched && self.campaigns.values().all(|campaign| campaign.node.is_none()) {
            return None;
        }
        Some((self.touched_at + ttl / 3).max(self.pause_until))
    }

    pub(super) fn is_running(&self) -> bool {
        self.running
    }

    /// The campaigns to be removed: those that have ended, and those that nobody has asked about for a ttl.
    fn leaving(&mut self, now: BootInstant, ttl: Duration) -> Vec<Name> {
        for campaign in self.campaigns.values_mut() {
            if now >= campaign.asked_at + ttl {
                campaign.leave(now);
            }
        }
        let leaving = self.campaigns.iter().filter(|(_, campaign)| campaign.leaving.is_some());
        leaving.map(|(name, _)| name.clone()).collect()
    }

    /// A session without nodes is kept for the next campaign for a while.
    fn is_idle(&mut self, now: BootInstant, ttl: Duration) -> bool {
        if !self.campaigns.is_empty() {
            self.idle_since = None;
            return false;
        }
        now >= *self.idle_since.get_or_insert(now) + ttl / 3
    }
}

/// The transaction of a write.
fn modified(wrote: &Wrote) -> Option<i64> {
    wrote.stat.map(|stat| stat.modified)
}

async fn sleep_until(due: Option<BootInstant>) {
    match due {
        Some(due) => tokio::time::sleep(due.since(clock::now())).await,
        None => std::future::pending().await,
    }
}
