//! The peers of a simulation, their clocks and disks, the network between them, and the faults.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::time::Duration;

use incumbent_core::peers::{
    Config, Durable, Envelope, Event, Invalidate, List, Loss, Output, Save, Term, Words,
};
use incumbent_core::timing::PeerTiming;
use incumbent_core::{Authority, BootInstant, CandidateId};

use super::subject::{Name, Subject};
use crate::dice::Dice;
use crate::net::{LIST, id};

const MS: u64 = 1_000_000;
const TTL: u64 = 1_000 * MS;
const DRIFT_PPM: i64 = 40_000;
/// The faults end.
pub(super) const HEAL: u64 = 40 * TTL;
/// By then a leader must be there, and stay.
pub(super) const ELECTED: u64 = HEAL + 10 * TTL;
pub(super) const END: u64 = ELECTED + 5 * TTL;

enum Happening<M> {
    Deliver(Envelope<M>),
    Wake {
        node: usize,
        planned: u64,
    },
    Saved {
        node: usize,
        life: u32,
        save: Save,
    },
    Marked {
        node: usize,
        life: u32,
        invalidate: Invalidate,
    },
    Restart {
        node: usize,
    },
    /// Somebody wants to lead here, and says so again and again.
    Stand {
        node: usize,
        life: u32,
    },
    Fault,
    Heal,
}

pub(super) struct Node<P> {
    pub(super) config: Config,
    peer: Option<P>,
    life: u32,
    disk: Durable,
    data_version: u64,
    /// Local time = offset + true time · (1 + rate/10⁶).
    rate_ppm: i64,
    offset: u64,
    frozen_until: u64,
    wake_at: Option<u64>,
    /// Nobody wants to lead here before then.
    vanished_until: u64,
    /// What its user holds.
    belief: Option<(Term, BootInstant)>,
}

impl<P> Node<P> {
    fn local(&self, at: u64) -> BootInstant {
        let at = i128::from(at);
        let local = i128::from(self.offset) + at + at * i128::from(self.rate_ppm) / 1_000_000;
        BootInstant::from_nanos(u64::try_from(local).expect("a time after boot"))
    }

    /// The first true time at which the clock shows `local`, or a little later.
    fn true_time(&self, local: BootInstant) -> u64 {
        let local = i128::from(local.as_nanos()) - i128::from(self.offset);
        let at = local * 1_000_000 / (1_000_000 + i128::from(self.rate_ppm)) + 2;
        u64::try_from(at.max(0)).unwrap_or(u64::MAX)
    }

    pub(super) fn believes(&self, at: u64) -> bool {
        self.belief.is_some_and(|(_, valid_until)| self.local(at) < valid_until)
    }
}

#[derive(Default, Debug)]
pub(super) struct Counts {
    pub(super) events: u64,
    pub(super) elected: u64,
    pub(super) expired: u64,
    pub(super) superseded: u64,
    pub(super) surrendered: u64,
    pub(super) crashes: u64,
    pub(super) freezes: u64,
    pub(super) cuts: u64,
    pub(super) frozen_believers: u64,
    /// Happenings at which several peers led.
    pub(super) overlaps: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.events += other.events;
        self.elected += other.elected;
        self.expired += other.expired;
        self.superseded += other.superseded;
        self.surrendered += other.surrendered;
        self.crashes += other.crashes;
        self.freezes += other.freezes;
        self.cuts += other.cuts;
        self.frozen_believers += other.frozen_believers;
        self.overlaps += other.overlaps;
    }
}

pub(super) struct World<P: Subject> {
    dice: Dice,
    setting: P::Setting,
    pub(super) nodes: Vec<Node<P>>,
    heap: BTreeMap<(u64, u64), Happening<P::Message>>,
    sequence: u64,
    pub(super) now: u64,
    cut: BTreeSet<(usize, usize)>,
    loss: u64,
    delay_max: u64,
    slow_disk: u64,
    fault_gap: u64,
    /// Who sent heartbeats in a term, in which of its lives.
    leader_of: BTreeMap<Term, (CandidateId, u32)>,
    elected: BTreeSet<Term>,
    /// To how many a peer, in one of its lives, has given a word that goes around.
    passed: BTreeMap<(usize, u32, Name), usize>,
    pub(super) counts: Counts,
}

impl<P: Subject> World<P> {
    pub(super) fn new(seed: u64, setting: P::Setting) -> World<P> {
        let mut dice = Dice(seed);
        let cluster = Authority::new("cluster-1");
        let count = 1 + dice.draw(5) as usize;
        let names = ["a", "b", "c", "d", "e"];
        let ranked = dice.percent(50);
        let members: BTreeMap<_, _> = (0..count)
            .map(|n| (id(names[n]), if ranked && n > 0 { dice.draw(4) as u8 } else { 3 }))
            .collect();
        let aged = dice.percent(30);
        // What the formulas promise is exact: the margin need only cover rounding.
        let margin = Duration::from_nanos(if dice.percent(80) { 10 } else { TTL / 10 });
        let timing = PeerTiming {
            ttl: Duration::from_nanos(TTL),
            heartbeat_interval: Duration::from_nanos(TTL / 10),
            margin,
            drift_ppm: DRIFT_PPM as u32,
        };
        let nodes = (0..count)
            .map(|n| {
                let list = List::new(LIST, members.clone());
                let config = Config { cluster: cluster.clone(), id: id(names[n]), list, timing };
                Node {
                    disk: Durable::new(config.cluster.clone(), config.id.clone()),
                    config,
                    peer: None,
                    life: 0,
                    data_version: if aged { dice.draw(3) } else { 0 },
                    rate_ppm: [-DRIFT_PPM, 0, DRIFT_PPM][dice.draw(3) as usize],
                    offset: TTL + dice.draw(1_000 * TTL),
                    frozen_until: 0,
                    wake_at: None,
                    vanished_until: 0,
                    belief: None,
                }
            })
            .collect();
        let mut world = World {
            loss: [0, 5, 30][dice.draw(3) as usize],
            delay_max: [10 * MS, 200 * MS, 3_000 * MS][dice.draw(3) as usize],
            slow_disk: [0, 10, 50][dice.draw(3) as usize],
            fault_gap: [TTL / 2, 2 * TTL, 6 * TTL][dice.draw(3) as usize],
            dice,
            setting,
            nodes,
            heap: BTreeMap::new(),
            sequence: 0,
            now: 0,
            cut: BTreeSet::new(),
            leader_of: BTreeMap::new(),
            elected: BTreeSet::new(),
            passed: BTreeMap::new(),
            counts: Counts::default(),
        };
        for node in 0..count {
            let at = world.dice.draw(TTL);
            world.at(at, Happening::Restart { node });
        }
        let first = TTL + world.dice.draw(3 * TTL);
        world.at(first, Happening::Fault);
        world.at(HEAL, Happening::Heal);
        world
    }

    fn at(&mut self, at: u64, happening: Happening<P::Message>) {
        self.sequence += 1;
        self.heap.insert((at.max(self.now), self.sequence), happening);
    }

    pub(super) fn run(&mut self, until: u64) {
        while let Some(entry) = self.heap.first_entry() {
            if entry.key().0 > until {
                break;
            }
            let ((at, _), happening) = entry.remove_entry();
            self.now = at;
            self.counts.events += 1;
            self.happens(happening);
            let believers: Vec<_> =
                self.nodes.iter().filter(|n| n.believes(at)).map(|n| (&n.config.id, n.belief)).collect();
            let several = believers.len() > 1;
            assert!(!several || !P::excludes(self.setting), "two valid leases at {at} ns: {believers:?}");
            self.counts.overlaps += u64::from(several);
        }
        self.now = until;
    }

    fn index(&self, name: &CandidateId) -> usize {
        self.nodes.iter().position(|node| node.config.id == *name).expect("a member")
    }

    fn happens(&mut self, happening: Happening<P::Message>) {
        let node = match &happening {
            Happening::Deliver(envelope) => self.index(&envelope.to),
            Happening::Wake { node, .. }
            | Happening::Saved { node, .. }
            | Happening::Marked { node, .. }
            | Happening::Stand { node, .. } => *node,
            Happening::Restart { node } => return self.restart(*node),
            Happening::Fault => return self.fault(),
            Happening::Heal => return self.heal(),
        };
        let thaw = self.nodes[node].frozen_until;
        if thaw > self.now {
            return self.at(thaw, happening);
        }
        let now = self.nodes[node].local(self.now);
        let life = self.nodes[node].life;
        let wake_at = self.nodes[node].wake_at;
        let vanished_until = self.nodes[node].vanished_until;
        let Some(peer) = &mut self.nodes[node].peer else { return };
        match happening {
            Happening::Deliver(envelope) => peer.handle_message(now, envelope).expect("no refusal"),
            Happening::Wake { planned, .. } => {
                if wake_at != Some(planned) {
                    return;
                }
                peer.handle_timeout(now);
                self.nodes[node].wake_at = None;
            }
            Happening::Saved { life: of, save, .. } if of == life => {
                let mut saved = None;
                let proof = save.with(|state| {
                    saved = Some(state.clone());
                    Ok::<_, ()>(())
                });
                peer.handle_proof(now, proof.expect("a disk that works"));
                self.nodes[node].disk = saved.expect("was called");
            }
            Happening::Marked { life: of, invalidate, .. } if of == life => {
                let mut lost = None;
                let proof = invalidate.with(|term, reason| lost = Some((term, reason)));
                peer.handle_proof(now, proof);
                let (term, reason) = lost.expect("was called");
                match reason {
                    Loss::Expired => self.counts.expired += 1,
                    Loss::Superseded => self.counts.superseded += 1,
                    Loss::Surrendered => self.counts.surrendered += 1,
                }
                assert_eq!(self.nodes[node].belief.take().map(|belief| belief.0), Some(term));
            }
            Happening::Stand { life: of, .. } if of == life => {
                if vanished_until <= self.now {
                    peer.stand(now, now + Duration::from_nanos(TTL));
                }
                self.at(self.now + TTL / 3, Happening::Stand { node, life });
            }
            _ => {}
        }
        self.outputs(node);
    }

    fn outputs(&mut self, node: usize) {
        let life = self.nodes[node].life;
        while let Some(output) = self.nodes[node].peer.as_mut().and_then(P::poll_output) {
            match output {
                Output::Send(envelope) => self.send(node, envelope),
                Output::Save(save) => {
                    let slow = self.dice.percent(self.slow_disk);
                    let at = self.now + self.dice.draw(if slow { 2 * TTL } else { 5 * MS });
                    self.at(at, Happening::Saved { node, life, save });
                }
                Output::Invalidate(invalidate) => {
                    let slow = self.dice.percent(self.slow_disk);
                    let at = self.now + self.dice.draw(if slow { TTL } else { MS });
                    self.at(at, Happening::Marked { node, life, invalidate });
                }
                Output::Event(Event::Elected(trust)) => {
                    let first = self.elected.insert(trust.term);
                    if P::excludes(self.setting) {
                        assert!(
                            !self.nodes[node].believes(self.now),
                            "elected while its last lease is valid"
                        );
                        assert!(first, "term {} twice", trust.term);
                    }
                    assert_eq!(trust.token, P::excludes(self.setting).then(|| trust.term.token()));
                    self.nodes[node].belief = Some((trust.term, trust.valid_until));
                    self.counts.elected += 1;
                }
                Output::Event(Event::Extended(trust)) => {
                    assert!(self.nodes[node].believes(self.now), "a lapsed term is revived");
                    let belief = self.nodes[node].belief.as_mut().expect("a leadership");
                    assert!(
                        trust.term == belief.0 && trust.valid_until > belief.1,
                        "no extension: {trust:?}"
                    );
                    belief.1 = trust.valid_until;
                }
                Output::Event(Event::LeaderChanged(_)) => {}
            }
        }
        let due = self.nodes[node].peer.as_ref().and_then(P::poll_timeout);
        if let Some(due) = due {
            let at = self.nodes[node].true_time(due).max(self.now + 1);
            if self.nodes[node].wake_at.is_none_or(|wake_at| at < wake_at) {
                self.nodes[node].wake_at = Some(at);
                self.at(at, Happening::Wake { node, planned: at });
            }
        }
    }

    fn send(&mut self, from: usize, envelope: Envelope<P::Message>) {
        let disk = &self.nodes[from].disk;
        // Raft's request promises nothing, and does not wait.
        let promises = envelope.message.kind() != "vote";
        assert!(
            !promises || disk.term >= envelope.term,
            "a message of a term that is not durable: {envelope:?}"
        );
        if P::votes(self.setting, &envelope) {
            let durable = disk.term > envelope.term || disk.voted_for.as_ref() == Some(&envelope.to);
            assert!(durable, "a vote that is not durable: {envelope:?}");
        }
        if P::leads(self.setting, &envelope.message) {
            let leader = (envelope.from.clone(), self.nodes[from].life);
            let first = self.leader_of.entry(envelope.term).or_insert_with(|| leader.clone());
            assert_eq!(*first, leader, "two leaders in term {}", envelope.term);
        }
        if let Some(word) = P::word(&envelope.message) {
            // On a ring that holds once; on one that is repaired, once to each other peer: n(n-1) messages for each attempt.
            let given = self.passed.entry((from, self.nodes[from].life, word)).or_default();
            *given += 1;
            assert!(*given < self.nodes.len(), "given to a peer twice: {envelope:?}");
        }
        let to = self.index(&envelope.to);
        if self.cut.contains(&(from, to)) {
            return;
        }
        for _ in 0..if self.dice.percent(self.loss / 2) { 2 } else { 1 } {
            if !self.dice.percent(self.loss) {
                let at = self.now + MS / 10 + self.dice.draw(self.delay_max);
                self.at(at, Happening::Deliver(envelope.clone()));
            }
        }
    }

    fn restart(&mut self, n: usize) {
        let seed = u128::from(self.dice.draw(u64::MAX));
        let node = &mut self.nodes[n];
        if node.peer.is_none() {
            let now = node.local(self.now);
            let config = P::configure(self.setting, node.config.clone());
            let mut peer = P::new(config, node.disk.clone(), seed, now).expect("a good start");
            peer.set_data_version(node.data_version);
            node.peer = Some(peer);
            node.wake_at = None;
            let life = node.life;
            self.at(self.now, Happening::Stand { node: n, life });
            self.outputs(n);
        }
    }

    fn fault(&mut self) {
        if self.now >= HEAL {
            return;
        }
        let count = self.nodes.len() as u64;
        let mut n = self.dice.draw(count) as usize;
        if let Some(leader) = self.nodes.iter().position(|node| node.believes(self.now))
            && self.dice.percent(50)
        {
            n = leader;
        }
        let other = self.dice.draw(count) as usize;
        match self.dice.draw(11) {
            0 | 1 => {
                self.counts.crashes += 1;
                let node = &mut self.nodes[n];
                (node.peer, node.frozen_until) = (None, 0);
                node.life += 1;
                let at = self.now + self.dice.draw(if self.dice.0 & 1 == 0 { TTL / 10 } else { 3 * TTL });
                self.at(at, Happening::Restart { node: n });
            }
            2 => {
                self.counts.freezes += 1;
                self.counts.frozen_believers += u64::from(self.nodes[n].believes(self.now));
                self.nodes[n].frozen_until = self.now + self.dice.draw(3 * TTL);
            }
            3 => {
                self.counts.cuts += 1;
                self.cut.insert((n, other));
            }
            4 => {
                self.counts.cuts += 1;
                let out = self.dice.percent(50);
                for peer in 0..self.nodes.len() {
                    self.cut.insert(if out { (n, peer) } else { (peer, n) });
                }
            }
            5..8 => self.cut.clear(),
            10 => self.nodes[n].vanished_until = self.now + self.dice.draw(5 * TTL),
            8 => self.delay_max = [10 * MS, 200 * MS, 3_000 * MS][self.dice.draw(3) as usize],
            _ => {
                let now = self.nodes[n].local(self.now);
                if self.nodes[n].frozen_until <= self.now
                    && let Some(peer) = &mut self.nodes[n].peer
                {
                    peer.surrender(now, None).expect("nobody is named");
                    self.outputs(n);
                }
            }
        }
        let next = self.now + self.dice.draw(self.fault_gap);
        self.at(next, Happening::Fault);
    }

    fn heal(&mut self) {
        self.cut.clear();
        (self.loss, self.delay_max, self.slow_disk) = (0, 10 * MS, 0);
        for n in 0..self.nodes.len() {
            (self.nodes[n].frozen_until, self.nodes[n].vanished_until) = (0, 0);
            self.restart(n);
        }
    }

    /// Whether anybody can lead: one that may, and whose data, where that counts, is behind no more than a minority.
    pub(super) fn electable(&self) -> bool {
        self.nodes.iter().any(|node| {
            let up_to_date =
                |voter: &&Node<P>| !P::heeds_data(self.setting) || voter.data_version <= node.data_version;
            let votes = self.nodes.iter().filter(up_to_date).count();
            let needed = if P::excludes(self.setting) { self.nodes.len() / 2 + 1 } else { 1 };
            node.config.list.members[&node.config.id].priority > 0 && votes >= needed
        })
    }
}
