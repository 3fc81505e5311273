//! The peers of one election, their disks and clocks, the network between them, and true time.

mod broken;
mod happenings;

use std::collections::{BTreeMap, BTreeSet};

use incumbent_core::peers::{Config, Durable, Envelope, Event, Invalidate, List, Output, Save, Words};
use incumbent_core::{Authority, BootInstant, CandidateId, FencingToken};

use super::Simulated;
use super::options::Options;
use crate::clock::{Clock, MS, Nanos};
use crate::history::{Core, History, Promises, Stamp};
use crate::network::{Network, Weather};
use crate::outcome::{Outcome, Shown};
use crate::plan::Plan;
use crate::queue::Queue;
use crate::random::Random;

/// What happens at its time.
#[derive(Debug)]
pub(super) enum Happening<M> {
    /// A message reaches a peer.
    Deliver {
        to: usize,
        envelope: Box<Envelope<M>>,
    },
    /// A peer looks at its clock.
    Wake {
        node: usize,
    },
    /// Its user wants to lead, for a while.
    Stand {
        node: usize,
        life: u32,
    },
    /// A barrier is done.
    Saved {
        node: usize,
        life: u32,
        save: Box<Save>,
    },
    Marked {
        node: usize,
        life: u32,
        invalidate: Box<Invalidate>,
    },
    /// The work checks and begins to write; what it wrote reaches the resource.
    Check {
        node: usize,
        term: u32,
    },
    Write {
        node: usize,
        term: u32,
        stamp: Stamp,
    },
    Arrived {
        stamp: Stamp,
    },
    Start {
        node: usize,
        life: u32,
    },
    Fault {
        number: usize,
    },
    FaultEnds {
        number: usize,
        node: usize,
    },
    Heal,
    /// A node that is not of the healthy core is cut off, or comes back.
    Flap {
        node: usize,
    },
}

/// A peer's machine.
#[derive(Debug)]
pub(super) struct Node<P> {
    id: CandidateId,
    clock: Clock,
    disk: Durable,
    /// `None`: its process is down.
    peer: Option<P>,
    life: u32,
    frozen_until: Nanos,
    slow_until: Nanos,
    wake_at: Nanos,
    belief: Option<Belief>,
    /// Counts its leaderships.
    term: u32,
    /// A fault keeps it from being heard.
    hit_until: Nanos,
}

/// What its user holds: valid until this deadline by the boot clock, unless it is marked invalid.
#[derive(Clone, Copy, Debug)]
struct Belief {
    token: Option<FencingToken>,
    valid_until: BootInstant,
    /// Where this leadership stands in the history.
    hold: usize,
}

#[derive(Debug)]
pub(super) struct World<'a, P: Simulated> {
    plan: &'a Plan<Options>,
    now: Nanos,
    queue: Queue<Happening<P::Message>>,
    random: Random,
    network: Network,
    calm: Weather,
    nodes: Vec<Node<P>>,
    cluster: Authority,
    list: List,
    slow_saves: u32,
    healed: bool,
    core: Vec<bool>,
    active_faults: u32,
    /// The groups of the splits that last, by the fault's number.
    splits: BTreeMap<usize, BTreeSet<usize>>,
    messages: BTreeMap<&'static str, u64>,
    history: History,
}

impl<'a, P: Simulated> World<'a, P> {
    pub(super) fn new(plan: &'a Plan<Options>, shown: Shown) -> World<'a, P> {
        let options = &plan.options;
        // What was drawn for the plan shall not move what is drawn in the run, nor the other way round.
        let mut random = Random::new(plan.seed ^ 0x5eed_0fa1).fork();
        let calm = Weather {
            delay_min: MS / 10,
            delay_max: MS / 10 + if options.lock_step { 0 } else { options.delay_ms * MS },
            loss: options.loss,
            doubled: options.doubled,
        };
        let cluster = Authority::new("sim");
        let id = |node: usize| CandidateId::new(format!("n{node:02}")).expect("a valid id");
        let nodes: Vec<Node<P>> = (0..options.peers)
            .map(|node| Node {
                id: id(node),
                clock: Clock::new(&mut random, options.rates_ppm[node]),
                disk: Durable::new(cluster.clone(), id(node)),
                peer: None,
                life: 0,
                frozen_until: 0,
                slow_until: 0,
                wake_at: Nanos::MAX,
                belief: None,
                term: 0,
                hit_until: 0,
            })
            .collect();
        let members = nodes.iter().map(|node| node.id.clone()).zip(options.priorities.iter().copied());
        let mut world = World {
            now: 0,
            queue: Queue::new(),
            network: Network::new(options.peers, calm),
            calm,
            list: List::new(1, members),
            slow_saves: options.slow_saves,
            healed: false,
            core: vec![true; options.peers],
            active_faults: 0,
            splits: BTreeMap::new(),
            messages: BTreeMap::new(),
            history: History::new(shown, cluster.clone()),
            plan,
            random,
            nodes,
            cluster,
        };
        for node in 0..world.nodes.len() {
            let at = if options.lock_step { 0 } else { world.random.below(options.ttl()) };
            world.queue.push(at, Happening::Start { node, life: 0 });
        }
        for (number, fault) in plan.faults.iter().enumerate() {
            world.queue.push(fault.at_ns, Happening::Fault { number });
        }
        if plan.has_heal() {
            world.queue.push(plan.heal_at_ns, Happening::Heal);
        }
        world
    }

    pub(super) fn run(mut self) -> Outcome {
        while let Some((at, happening)) = self.queue.pop(self.plan.end_at_ns) {
            self.now = at;
            self.happens(happening);
        }
        self.now = self.plan.end_at_ns;
        for node in 0..self.nodes.len() {
            self.close(node);
        }
        self.judge()
    }

    fn local(&self, node: usize) -> BootInstant {
        self.nodes[node].clock.boot(self.now)
    }

    fn believes(&self, node: usize) -> bool {
        self.nodes[node].belief.is_some_and(|belief| self.local(node) < belief.valid_until)
    }

    fn leader(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|node| self.believes(*node))
    }

    /// The node's leadership is over by now at the latest.
    fn close(&mut self, node: usize) {
        if let Some(belief) = self.nodes[node].belief {
            self.history.close(belief.hold, self.now);
        }
    }

    fn say(&mut self, node: usize, line: impl FnOnce() -> String) {
        let life = self.nodes[node].life;
        self.history.trace.say(self.now, || format!("n{node}.{life}: {}", line()));
    }

    fn note(&mut self, what: u64, node: usize) {
        self.history.trace.note(self.now, what << 32 | node as u64);
    }

    // ---- processes ----

    fn start(&mut self, node: usize) {
        if self.nodes[node].peer.is_some() {
            return;
        }
        let common = Config {
            cluster: self.cluster.clone(),
            id: self.nodes[node].id.clone(),
            list: self.list.clone(),
            timing: self.plan.options.timing(),
        };
        let config = P::configure(common, &self.plan.options);
        let (seed, now) = (self.random.seed(), self.local(node));
        let mut peer = P::new(config, self.nodes[node].disk.clone(), seed, now).expect("a good start");
        peer.set_data_version(self.plan.options.data_versions[node]);
        self.nodes[node].peer = Some(peer);
        self.say(node, || "starts".to_owned());
        self.stand(node);
    }

    fn crash(&mut self, node: usize) {
        self.close(node);
        if self.believes(node) {
            self.history.stopwatch.lost(self.now);
        }
        let node_state = &mut self.nodes[node];
        node_state.peer = None;
        node_state.life += 1;
        node_state.term += 1;
        (node_state.frozen_until, node_state.wake_at, node_state.belief) = (0, Nanos::MAX, None);
        self.history.painter.view(node, self.now, None);
        self.say(node, || "crashes".to_owned());
    }

    // ---- the end ----

    fn judge(mut self) -> Outcome {
        let (sent, most) = (self.messages.values().sum::<u64>(), self.messages_max());
        if sent > most {
            let what = format!("{sent} messages were sent, more than {most}");
            self.history.violated("P5", self.now, what);
        }
        let majority = self.plan.options.majority;
        let promises = Promises { excludes: majority, orders: majority };
        let core = Core { members: &self.core, bound: self.plan.takeover_bound() };
        let core = self.is_electable().then_some(core);
        self.history.judge(self.plan, promises, core, self.messages)
    }

    /// In each ttl a leader's rounds, and from each peer a few attempts. One takes n(n-1) messages at worst, by Bully as on a ring
    /// that has to be repaired everywhere, and as many confirmations.
    fn messages_max(&self) -> u64 {
        let (peers, ttls) = (self.nodes.len() as u64, self.plan.end_at_ns.div_ceil(self.plan.options.ttl()));
        ttls * (4 * peers.pow(3) + 40 * peers)
    }

    /// Whether one of the core can get the votes: it may lead, and, where that counts, is behind no more than a minority of all.
    fn is_electable(&self) -> bool {
        let options = &self.plan.options;
        let needed = if options.majority { self.nodes.len() / 2 + 1 } else { 1 };
        let core = || (0..self.nodes.len()).filter(|node| self.core[*node]);
        core().any(|node| {
            let newest = options.data_versions[node];
            let follows = |voter: &usize| !P::heeds_data(options) || options.data_versions[*voter] <= newest;
            options.priorities[node] > 0 && core().filter(follows).count() >= needed
        })
    }
}
