//! Peers that speak to each other at once, with disks that always work, in a time that is moved by hand.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use incumbent_core::peers::{
    Config, Durable, Envelope, Event, List, Loss, Output, Protocol, Refusal, Term, Words,
};
use incumbent_core::timing::PeerTiming;
use incumbent_core::{Authority, BootInstant, CandidateId};

pub(crate) const TTL: Duration = Duration::from_secs(1);
pub(crate) const LIST: u64 = 1;

pub(crate) fn id(name: &str) -> CandidateId {
    CandidateId::new(name).expect("a good name")
}

pub(crate) fn ms(count: u64) -> BootInstant {
    BootInstant::ZERO + Duration::from_millis(count)
}

pub(crate) fn config(name: &str, members: &[(&str, u8)]) -> Config {
    let members = members.iter().map(|(peer, priority)| (id(peer), *priority));
    Config {
        cluster: Authority::new("cluster-1"),
        id: id(name),
        list: List::new(LIST, members),
        timing: PeerTiming::new(TTL, 1_000).expect("intervals that fit"),
    }
}

/// The seeds of a simulation: `INCUMBENT_SIM_SEEDS`, as `FROM..TO`, or so many.
pub(crate) fn seeds(count: u64) -> std::ops::Range<u64> {
    let Ok(seeds) = std::env::var("INCUMBENT_SIM_SEEDS") else { return 0..count };
    let parts = seeds.split_once("..");
    let parsed = parts.and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    parsed.expect("INCUMBENT_SIM_SEEDS is FROM..TO")
}

/// What a peer has done since the last look.
#[derive(Debug)]
pub(crate) struct Said<M> {
    pub(crate) sent: Vec<(CandidateId, Term, M)>,
    pub(crate) elected: Vec<Term>,
    pub(crate) lost: Vec<Loss>,
}

/// One peer and its disk.
pub(crate) struct Node<P> {
    pub(crate) peer: P,
    pub(crate) disk: Durable,
}

impl<P: Protocol> Node<P> {
    /// Starts at `at` and wants to lead for ever.
    pub(crate) fn new(config: P::Config, peers: &Config, at: u64) -> Node<P> {
        let disk = Durable::new(peers.cluster.clone(), peers.id.clone());
        Node::start(config, disk, at)
    }

    pub(crate) fn start(config: P::Config, disk: Durable, at: u64) -> Node<P> {
        let mut peer = P::new(config, disk.clone(), 7, ms(at)).expect("a good start");
        peer.stand(ms(at), BootInstant::FAR_FUTURE);
        Node { peer, disk }
    }

    pub(crate) fn takes(
        &mut self,
        at: u64,
        from: &str,
        term: u64,
        message: P::Message,
    ) -> Result<Said<P::Message>, Refusal> {
        let config = self.peer.config();
        let (cluster, to) = (config.cluster.clone(), config.id.clone());
        let envelope = Envelope { cluster, list: LIST, from: id(from), to, term: Term(term), message };
        self.peer.handle_message(ms(at), envelope)?;
        Ok(self.drain(at))
    }

    pub(crate) fn hears(&mut self, at: u64, from: &str, term: u64, message: P::Message) -> Said<P::Message> {
        self.takes(at, from, term, message).expect("no refusal")
    }

    /// When it has something to do.
    pub(crate) fn due(&self) -> BootInstant {
        self.peer.poll_timeout().expect("something to do")
    }

    pub(crate) fn wakes(&mut self, at: u64) -> Said<P::Message> {
        self.peer.handle_timeout(ms(at));
        self.drain(at)
    }

    pub(crate) fn drain(&mut self, at: u64) -> Said<P::Message> {
        self.drain_at(ms(at))
    }

    fn drain_at(&mut self, now: BootInstant) -> Said<P::Message> {
        let mut said = Said { sent: Vec::new(), elected: Vec::new(), lost: Vec::new() };
        while let Some(output) = self.peer.poll_output() {
            match output {
                Output::Save(save) => {
                    let proof = save.with(|state| {
                        self.disk = state.clone();
                        Ok::<_, ()>(())
                    });
                    self.peer.handle_proof(now, proof.expect("a disk that works"));
                }
                Output::Invalidate(invalidate) => {
                    let proof = invalidate.with(|_, reason| said.lost.push(reason));
                    self.peer.handle_proof(now, proof);
                }
                Output::Send(envelope) => said.sent.push((envelope.to, envelope.term, envelope.message)),
                Output::Event(Event::Elected(trust)) => said.elected.push(trust.term),
                Output::Event(_) => {}
            }
        }
        said
    }
}

/// Several of them.
pub(crate) struct Net<P: Protocol> {
    pub(crate) nodes: BTreeMap<CandidateId, Node<P>>,
    pub(crate) now: BootInstant,
    queue: VecDeque<Envelope<P::Message>>,
    /// The messages that were sent, by kind.
    pub(crate) counts: BTreeMap<&'static str, usize>,
    /// Who lost its term why.
    pub(crate) lost: Vec<(CandidateId, Loss)>,
    /// Who spoke to whom.
    pub(crate) pairs: BTreeSet<(CandidateId, CandidateId)>,
    dead: BTreeSet<CandidateId>,
    /// The parts into which the network has fallen; none if it is whole.
    parts: Vec<BTreeSet<CandidateId>>,
}

impl<P: Protocol> Net<P> {
    pub(crate) fn new(configs: impl IntoIterator<Item = (Config, P::Config)>) -> Net<P> {
        let nodes = configs.into_iter().map(|(peers, config)| {
            let id = peers.id.clone();
            (id, Node::new(config, &peers, 0))
        });
        Net {
            nodes: nodes.collect(),
            now: BootInstant::ZERO,
            queue: VecDeque::new(),
            counts: BTreeMap::new(),
            lost: Vec::new(),
            pairs: BTreeSet::new(),
            dead: BTreeSet::new(),
            parts: Vec::new(),
        }
    }

    pub(crate) fn node(&mut self, name: &str) -> &mut Node<P> {
        self.nodes.get_mut(&id(name)).expect("a member")
    }

    /// Crashes for good.
    pub(crate) fn kill(&mut self, name: &str) {
        self.dead.insert(id(name));
    }

    /// Is back, from what is on its disk.
    pub(crate) fn revive(&mut self, name: &str, config: P::Config) {
        self.dead.remove(&id(name));
        let (now, node) = (self.now, self.node(name));
        let mut peer = P::new(config, node.disk.clone(), 8, now).expect("a good start");
        peer.stand(now, BootInstant::FAR_FUTURE);
        node.peer = peer;
    }

    pub(crate) fn split(&mut self, parts: &[&[&str]]) {
        self.parts = parts.iter().map(|part| part.iter().map(|name| id(name)).collect()).collect();
    }

    /// Takes what a peer wants done, without delivering it.
    pub(crate) fn collect(&mut self, of: &CandidateId) {
        let now = self.now;
        let node = self.nodes.get_mut(of).expect("a member");
        let (cluster, list) = (node.peer.config().cluster.clone(), node.peer.config().list.version);
        let said = node.drain_at(now);
        self.lost.extend(said.lost.into_iter().map(|loss| (of.clone(), loss)));
        for (to, term, message) in said.sent {
            *self.counts.entry(message.kind()).or_default() += 1;
            self.pairs.insert((of.clone(), to.clone()));
            let together = self.parts.iter().all(|part| part.contains(of) == part.contains(&to));
            if together && !self.dead.contains(&to) {
                let (cluster, from) = (cluster.clone(), of.clone());
                self.queue.push_back(Envelope { cluster, list, from, to, term, message });
            }
        }
    }

    /// Delivers all that is under way and what comes of it, first in, first out.
    pub(crate) fn deliver(&mut self) {
        while let Some(envelope) = self.queue.pop_front() {
            let to = envelope.to.clone();
            let node = self.nodes.get_mut(&to).expect("a member");
            node.peer.handle_message(self.now, envelope).expect("no refusal");
            self.collect(&to);
        }
    }

    /// Lets one peer see the time.
    pub(crate) fn wake(&mut self, name: &CandidateId) {
        let now = self.now;
        self.nodes.get_mut(name).expect("a member").peer.handle_timeout(now);
        self.collect(name);
    }

    /// Moves time on, and lets everybody do what is due.
    pub(crate) fn run(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        for name in self.nodes.keys().cloned().collect::<Vec<_>>() {
            self.collect(&name);
        }
        self.deliver();
        loop {
            let alive = self.nodes.iter().filter(|(name, _)| !self.dead.contains(*name));
            let due = alive.filter_map(|(name, node)| Some((node.peer.poll_timeout()?, name.clone()))).min();
            let Some((at, name)) = due.filter(|(at, _)| *at <= end) else { break };
            self.now = self.now.max(at);
            self.wake(&name);
            self.deliver();
        }
        self.now = end;
    }

    /// Who leads, and in which epoch.
    pub(crate) fn leaders(&self) -> Vec<(&str, u64)> {
        let alive = self.nodes.iter().filter(|(name, _)| !self.dead.contains(*name));
        let leading = alive.filter_map(|(name, node)| {
            let trust = node.peer.leadership().filter(|trust| self.now < trust.valid_until)?;
            Some((name.as_str(), trust.term.0))
        });
        leading.collect()
    }

    pub(crate) fn count(&self, kind: &str) -> usize {
        self.counts.get(kind).copied().unwrap_or(0)
    }
}
