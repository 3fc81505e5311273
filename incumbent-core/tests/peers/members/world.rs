//! Five peers of which three are members at first, with an election by Raft, and the faults.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use incumbent_core::peers::members::{Change, Members, Membership, Message as ListMessage, News};
use incumbent_core::peers::raft::{Message, Raft};
use incumbent_core::peers::{
    Config, Durable, Envelope, Event, List, Output, Place, Protocol, Refusal, Save, Term,
};
use incumbent_core::timing::PeerTiming;
use incumbent_core::{Authority, BootInstant, CandidateId};

use crate::dice::Dice;
use crate::net::id;

const MS: u64 = 1_000_000;
const TTL: u64 = 1_000 * MS;
const DRIFT_PPM: i64 = 40_000;
const END: u64 = 60 * TTL;
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

enum Happening {
    Votes(Envelope<Message>),
    Lists(Envelope<ListMessage>),
    Wake { node: usize, life: u32 },
    Saved { node: usize, life: u32, save: Save },
    ListSaved { node: usize, life: u32, save: Save<Membership> },
    Restart { node: usize },
    Fault,
}

struct Node {
    members: Option<Members>,
    raft: Option<Raft>,
    life: u32,
    vote_disk: Durable,
    list_disk: Membership,
    rate_ppm: i64,
    offset: u64,
    frozen_until: u64,
    belief: Option<(Term, BootInstant)>,
}

impl Node {
    fn local(&self, at: u64) -> BootInstant {
        let at = i128::from(at);
        let local = i128::from(self.offset) + at + at * i128::from(self.rate_ppm) / 1_000_000;
        BootInstant::from_nanos(u64::try_from(local).expect("a time after boot"))
    }

    fn true_time(&self, local: BootInstant) -> u64 {
        let local = i128::from(local.as_nanos()) - i128::from(self.offset);
        let at = local * 1_000_000 / (1_000_000 + i128::from(self.rate_ppm)) + 2;
        u64::try_from(at.max(0)).unwrap_or(u64::MAX)
    }
}

#[derive(Default, Debug)]
pub(super) struct Counts {
    pub(super) elected: u64,
    /// Lists after the first one.
    pub(super) changes: u64,
    pub(super) settled: u64,
    /// Messages of peers with another list.
    pub(super) refused: u64,
}

pub(super) struct World {
    dice: Dice,
    timing: PeerTiming,
    nodes: Vec<Node>,
    heap: BTreeMap<(u64, u64), Happening>,
    sequence: u64,
    now: u64,
    cut: BTreeSet<(usize, usize)>,
    loss: u64,
    delay_max: u64,
    fault_gap: u64,
    /// Nothing but leaders that are cut off with one other peer, and changes by those that are left.
    attack: bool,
    /// The one list of each version.
    lists: BTreeMap<u64, List>,
    /// Who led in a term. Over lists, too, a token is given once.
    tokens: BTreeMap<Term, (usize, u64)>,
    /// Under which lists a vote in a term, or the acknowledgement of a round, was asked for.
    asked: BTreeMap<(usize, Term, Option<u64>), BTreeSet<u64>>,
    counts: Counts,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut dice = Dice(seed);
        let cluster = Authority::new("cluster-1");
        let timing = PeerTiming {
            ttl: Duration::from_nanos(TTL),
            heartbeat_interval: Duration::from_nanos(TTL / 10),
            margin: Duration::from_nanos(10),
            drift_ppm: DRIFT_PPM as u32,
        };
        let first = List::new(1, NAMES[..3].iter().map(|name| (id(name), 1)));
        let nodes = NAMES.iter().enumerate().map(|(n, name)| {
            let list = List { version: u64::from(n < 3), ..first.clone() };
            Node {
                members: None,
                raft: None,
                life: 0,
                vote_disk: Durable::new(cluster.clone(), id(name)),
                list_disk: Membership::new(cluster.clone(), id(name), list),
                rate_ppm: [-DRIFT_PPM, 0, DRIFT_PPM][dice.draw(3) as usize],
                offset: TTL + dice.draw(1_000 * TTL),
                frozen_until: 0,
                belief: None,
            }
        });
        let nodes = nodes.collect();
        let mut world = World {
            timing,
            nodes,
            heap: BTreeMap::new(),
            sequence: 0,
            now: 0,
            cut: BTreeSet::new(),
            loss: [0, 5, 20][dice.draw(3) as usize],
            delay_max: [5 * MS, 50 * MS, 500 * MS][dice.draw(3) as usize],
            fault_gap: [TTL / 4, TTL, 3 * TTL][dice.draw(3) as usize],
            attack: dice.percent(50),
            lists: BTreeMap::from([(1, first)]),
            tokens: BTreeMap::new(),
            asked: BTreeMap::new(),
            counts: Counts::default(),
            dice,
        };
        for node in 0..NAMES.len() {
            world.at(0, Happening::Restart { node });
        }
        world.at(TTL, Happening::Fault);
        world
    }

    fn at(&mut self, at: u64, happening: Happening) {
        self.sequence += 1;
        self.heap.insert((at.max(self.now), self.sequence), happening);
    }

    pub(super) fn run(mut self) -> Counts {
        self.run_until(END);
        self.counts
    }

    /// Nothing goes wrong but what the script says: a leader is cut off with one follower, the others add a member and remove
    /// that follower. Their majority and the leader's have nobody in common any more.
    pub(super) fn leader_cut_off_with_a_follower(seed: u64) {
        let mut world = World::new(seed);
        (world.loss, world.delay_max) = (0, 5 * MS);
        world.heap.retain(|_, happening| !matches!(happening, Happening::Fault));
        world.run_until(5 * TTL);
        let leader = world.leader().expect("a leader");
        let (follower, other) = ((leader + 1) % 3, (leader + 2) % 3);
        for peer in (0..NAMES.len()).filter(|peer| *peer != follower && *peer != leader) {
            world.cut.extend([(leader, peer), (peer, leader)]);
        }
        world.run_until(7 * TTL);
        assert_eq!(world.leader(), Some(leader), "one follower is enough");
        let place = Place { priority: 1, address: String::new() };
        world.propose(other, &Change::Add(id(NAMES[3]), place));
        world.run_until(10 * TTL);
        world.propose(other, &Change::Remove(id(NAMES[follower])));
        world.run_until(15 * TTL);
        assert_eq!((world.counts.changes, world.counts.settled), (2, 2));
        assert!(world.leader().is_some_and(|leader| leader == other || leader == 3));
    }

    fn leader(&self) -> Option<usize> {
        let leads = |node: &Node| node.belief.is_some_and(|(_, until)| node.local(self.now) < until);
        self.nodes.iter().position(leads)
    }

    fn run_until(&mut self, end: u64) {
        while self.heap.first_key_value().is_some_and(|((at, _), _)| *at <= end)
            && let Some(((at, _), happening)) = self.heap.pop_first()
        {
            self.now = at;
            self.happens(happening);
            let believes = |node: &&Node| node.belief.is_some_and(|(_, until)| node.local(at) < until);
            let believers: Vec<_> = self.nodes.iter().filter(believes).collect();
            let told =
                believers.iter().map(|node| (&node.list_disk.id, node.belief, node.list_disk.list.version));
            assert!(believers.len() <= 1, "two valid leases at {at} ns: {:?}", told.collect::<Vec<_>>());
        }
        self.now = end;
    }

    fn index(&self, name: &CandidateId) -> usize {
        self.nodes.iter().position(|node| node.list_disk.id == *name).expect("a peer")
    }

    fn happens(&mut self, happening: Happening) {
        let n = match &happening {
            Happening::Votes(envelope) => self.index(&envelope.to),
            Happening::Lists(envelope) => self.index(&envelope.to),
            Happening::Wake { node, .. }
            | Happening::Saved { node, .. }
            | Happening::ListSaved { node, .. }
            | Happening::Restart { node } => *node,
            Happening::Fault => return self.fault(),
        };
        if self.nodes[n].frozen_until > self.now {
            return self.at(self.nodes[n].frozen_until, happening);
        }
        let now = self.nodes[n].local(self.now);
        if let Happening::Restart { .. } = happening {
            return self.restart(n);
        }
        let node = &mut self.nodes[n];
        let Some(members) = &mut node.members else { return };
        members.saw(node.raft.as_ref().map_or(node.vote_disk.term, Raft::term));
        match happening {
            Happening::Votes(envelope) => {
                let Some(raft) = &mut node.raft else { return };
                let (from, list) = (envelope.from.clone(), envelope.list);
                match raft.handle_message(now, envelope) {
                    Ok(()) => {}
                    Err(Refusal::OlderList | Refusal::NewerList | Refusal::UnknownSender) => {
                        self.counts.refused += 1;
                        members.reconcile(&from, list);
                    }
                    Err(refusal) => panic!("{n} refuses: {refusal}"),
                }
            }
            Happening::Lists(envelope) => {
                // A peer that is to be added may be unknown, or one that was removed.
                let _ = members.handle_message(now, envelope);
            }
            Happening::Saved { life, save, .. } if life == node.life => {
                let Some(raft) = &mut node.raft else { return };
                let proof = save.with(|state| {
                    node.vote_disk = state.clone();
                    Ok::<_, ()>(())
                });
                raft.handle_proof(now, proof.expect("a disk that works"));
            }
            Happening::ListSaved { life, save, .. } if life == node.life => {
                let proof = save.with(|state| {
                    node.list_disk = state.clone();
                    Ok::<_, ()>(())
                });
                members.handle_proof(now, proof.expect("a disk that works"));
            }
            Happening::Wake { life, .. } if life == node.life => {
                members.handle_timeout(now);
                if let Some(raft) = &mut node.raft {
                    raft.handle_timeout(now);
                }
            }
            _ => return,
        }
        self.outputs(n);
    }

    fn outputs(&mut self, n: usize) {
        let now = self.nodes[n].local(self.now);
        let life = self.nodes[n].life;
        // First the list: it is in force before anything else happens.
        while let Some(output) = self.nodes[n].members.as_mut().and_then(Members::poll_output) {
            match output {
                Output::Save(save) => {
                    let at = self.now + self.dice.draw(5 * MS);
                    self.at(at, Happening::ListSaved { node: n, life, save });
                }
                Output::Send(envelope) => {
                    let to = self.index(&envelope.to);
                    if let Some(at) = self.arrival(n, to) {
                        self.at(at, Happening::Lists(envelope));
                    }
                }
                Output::Event(News::Adopted(list)) => {
                    let first = self.lists.entry(list.version).or_insert_with(|| {
                        self.counts.changes += 1;
                        list.clone()
                    });
                    assert_eq!(*first, list, "two lists of one version");
                    match &mut self.nodes[n].raft {
                        Some(raft) => raft.set_list(now, list),
                        None => self.join(n, list),
                    }
                }
                Output::Event(News::Settled(_)) => self.counts.settled += 1,
                Output::Invalidate(_) => unreachable!("nothing is led by a list"),
            }
        }
        while let Some(output) = self.nodes[n].raft.as_mut().and_then(Raft::poll_output) {
            match output {
                Output::Save(save) => {
                    let at = self.now + self.dice.draw(5 * MS);
                    self.at(at, Happening::Saved { node: n, life, save });
                }
                Output::Send(envelope) => {
                    let to = self.index(&envelope.to);
                    self.heed(n, to, &envelope);
                    if let Some(at) = self.arrival(n, to) {
                        self.at(at, Happening::Votes(envelope));
                    }
                }
                Output::Invalidate(invalidate) => {
                    let proof = invalidate.with(|_, _| self.nodes[n].belief = None);
                    if let Some(raft) = &mut self.nodes[n].raft {
                        raft.handle_proof(now, proof);
                    }
                }
                Output::Event(Event::Elected(trust)) => {
                    self.counts.elected += 1;
                    let list = self.nodes[n].list_disk.list.version;
                    if let Some((last, (of, under))) = self.tokens.last_key_value() {
                        assert!(
                            *last < trust.term,
                            "tokens do not rise: {of} led in {last} under list {under}, then {n} in {} under list {list}",
                            trust.term
                        );
                    }
                    self.tokens.insert(trust.term, (n, list));
                    self.nodes[n].belief = Some((trust.term, trust.valid_until));
                }
                Output::Event(Event::Extended(trust)) => {
                    self.nodes[n].belief = Some((trust.term, trust.valid_until));
                }
                Output::Event(Event::LeaderChanged(_)) => {}
            }
        }
        let node = &self.nodes[n];
        let due = node.members.as_ref().and_then(Members::poll_timeout).into_iter();
        let due = due.chain(node.raft.as_ref().and_then(Raft::poll_timeout)).min();
        if let Some(due) = due {
            let at = node.true_time(due).max(self.now + 1);
            self.at(at, Happening::Wake { node: n, life });
        }
    }

    /// Rule 1: no vote and no acknowledgement for who asked under an older list, or under one more than a step newer.
    fn heed(&mut self, from: usize, to: usize, envelope: &Envelope<Message>) {
        let own = envelope.list;
        let granted = match &envelope.message {
            Message::Vote(_) => {
                self.asked.entry((from, envelope.term, None)).or_default().insert(own);
                return;
            }
            Message::Heartbeat { round } => {
                self.asked.entry((from, envelope.term, Some(*round))).or_default().insert(own);
                return;
            }
            Message::VoteAnswer { asked, granted: true } => (to, *asked, None),
            Message::HeartbeatAnswer(answer) if answer.asked == envelope.term => {
                (to, answer.asked, Some(answer.round))
            }
            _ => return,
        };
        let lists = self.asked.get(&granted).expect("an answer to what was asked");
        assert!(
            lists.iter().any(|list| *list == own || *list == own + 1),
            "{from}, under list {own}, grants what was asked under {lists:?}: {envelope:?}"
        );
    }

    /// When a message arrives, if it does.
    fn arrival(&mut self, from: usize, to: usize) -> Option<u64> {
        let lost = self.cut.contains(&(from, to)) || self.dice.percent(self.loss);
        let at = self.now + MS / 10 + self.dice.draw(self.delay_max);
        (!lost).then_some(at)
    }

    /// Takes part in the election, if it is a member.
    fn join(&mut self, n: usize, list: List) {
        let seed = u128::from(self.dice.draw(u64::MAX));
        let node = &mut self.nodes[n];
        let now = node.local(self.now);
        let (cluster, id) = (node.list_disk.cluster.clone(), node.list_disk.id.clone());
        if list.version > 0 && list.members.contains_key(&id) {
            let config = Config { cluster, id, list, timing: self.timing };
            // Whoever has never voted has promised nothing.
            let never = node.vote_disk.term == Term(0);
            let silent_from = if never { BootInstant::ZERO } else { now };
            let mut raft =
                Raft::new(config, node.vote_disk.clone(), seed, silent_from).expect("a good start");
            raft.stand(now, BootInstant::FAR_FUTURE);
            node.raft = Some(raft);
        }
    }

    fn restart(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        if node.members.is_none() {
            let now = node.local(self.now);
            node.members = Some(Members::new(self.timing, node.list_disk.clone(), now));
            self.join(n, self.nodes[n].list_disk.list.clone());
            self.outputs(n);
        }
    }

    fn fault(&mut self) {
        let count = self.nodes.len() as u64;
        let leader = self.leader();
        let n = self.dice.draw(count) as usize;
        let other = self.dice.draw(count) as usize;
        let kind = match self.dice.draw(12) {
            kind if !self.attack => kind,
            _ if self.cut.is_empty() => 3,
            0 => 4,
            _ => 5,
        };
        match kind {
            0 => {
                let node = &mut self.nodes[n];
                (node.members, node.raft, node.frozen_until) = (None, None, 0);
                node.life += 1;
                let at = self.now + self.dice.draw(3 * TTL);
                self.at(at, Happening::Restart { node: n });
            }
            1 => self.nodes[n].frozen_until = self.now + self.dice.draw(2 * TTL),
            2 => {
                self.cut.insert((n, other));
                self.cut.insert((other, n));
            }
            3 => {
                // All but one link of it, or of the leader.
                let n = leader.filter(|_| self.dice.percent(75)).unwrap_or(n);
                for peer in 0..self.nodes.len() {
                    if peer != other && peer != n {
                        self.cut.insert((n, peer));
                        self.cut.insert((peer, n));
                    }
                }
            }
            4 => self.cut.clear(),
            _ => {
                let subject = self.nodes[other].list_disk.id.clone();
                if self.nodes[n].frozen_until <= self.now
                    && let Some(members) = &self.nodes[n].members
                {
                    let list = members.list();
                    if !list.members.contains_key(&subject) {
                        let place = Place { priority: 1, address: String::new() };
                        self.propose(n, &Change::Add(subject, place));
                    } else if list.members.len() > 2 {
                        self.propose(n, &Change::Remove(subject));
                    }
                }
            }
        }
        let mut next = self.now + self.dice.draw(self.fault_gap);
        if self.attack && kind == 3 {
            // Until the others are not bound any more.
            next += 3 * TTL / 2;
        }
        self.at(next, Happening::Fault);
    }

    fn propose(&mut self, n: usize, change: &Change) {
        let now = self.nodes[n].local(self.now);
        let Some(members) = &mut self.nodes[n].members else { return };
        members.withdraw();
        let base = members.list().version;
        let _ = members.propose(now, base, change);
        self.outputs(n);
    }
}
