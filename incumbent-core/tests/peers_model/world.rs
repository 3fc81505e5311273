//! The peers, the network between them, true time, and what may deviate.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use incumbent_core::peers::{Config, Durable, Envelope, Event, Output, Protocol, Term, Words};
use incumbent_core::{BootInstant, CandidateId};
use stateright::{Model, Property};

/// The property that must not fail.
pub(crate) const OVERLAP: &str = "no two lead";

/// One tick of a clock, in nanoseconds: fine enough for a protocol's random waits, which end with the tick.
pub(crate) const TICK: u64 = 1_000;

pub(crate) trait Subject: Protocol<Message: Sync, Config: Sync> + Sync + Eq + Hash {}
impl<P: Protocol<Message: Sync, Config: Sync> + Sync + Eq + Hash> Subject for P {}

/// What is examined.
#[derive(Clone)]
pub(crate) struct Setting<P: Protocol> {
    pub(crate) configs: Vec<(Config, P::Config)>,
    /// A majority decides.
    pub(crate) exclusive: bool,
    /// The rate of each clock, ticks that it shows in so many ticks of true time; the last one is that of all others.
    pub(crate) rates: Vec<(u64, u64)>,
    /// So long nothing deviates: peers that start are silent then.
    pub(crate) quiet: u64,
    /// How long true time runs.
    pub(crate) horizon: u64,
    /// Nothing deviates but the network, which falls apart.
    pub(crate) only_cuts: bool,
    /// How many deviations there may be in one run, of any kinds.
    pub(crate) deviations: u8,
}

/// The whole state.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct World<P: Subject> {
    now: u64,
    nodes: Vec<Arc<Node<P>>>,
    /// In the order of their sends.
    network: VecDeque<Flight<P::Message>>,
    /// The part of the network that is cut off, as bits, and since when.
    cut: Option<(u8, u64)>,
    deviations_left: u8,
    elected: BTreeMap<Term, usize>,
    /// Two were elected in one term.
    twice: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Node<P> {
    /// `None`: crashed.
    peer: Option<P>,
    disk: Durable,
    /// Its next save does not come to an end.
    hangs: bool,
    lives: u8,
    /// Frozen or crashed, since this moment.
    away_since: Option<u64>,
    /// What its user holds, by its own clock.
    belief: Option<(Term, BootInstant)>,
    extended: bool,
    gave_up: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Flight<M> {
    envelope: Envelope<M>,
    /// Is late, since this moment: it may come at any later one, or never.
    late: Option<u64>,
}

/// One step. The first six are no deviations; time passes when all is done that is not late and whose peer is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Tick,
    Wake(usize),
    /// The first message that is not late.
    Deliver,
    DeliverLate(usize),
    /// From a freeze or a crash.
    Return(usize),
    Heal,
    Overtake(usize),
    Delay(usize),
    Double(usize),
    Freeze(usize),
    Crash(usize),
    Hang(usize),
    GiveUp(usize),
    Unwanted(usize),
    Cut(u8),
}

impl<P: Subject> Setting<P> {
    fn clock(&self, node: usize, now: u64) -> BootInstant {
        let last = self.rates.len() - 1;
        let (shown, passed) = self.rates[node.min(last)];
        BootInstant::from_nanos(TICK * now * shown / passed)
    }

    fn leads(&self, world: &World<P>, node: usize) -> bool {
        world.nodes[node].belief.is_some_and(|(_, until)| self.clock(node, world.now) < until)
    }

    fn leaders(&self, world: &World<P>) -> Vec<usize> {
        (0..world.nodes.len()).filter(|node| self.leads(world, *node)).collect()
    }

    fn name(&self, node: usize) -> &CandidateId {
        &self.configs[node].0.id
    }

    fn index(&self, name: &CandidateId) -> usize {
        self.configs.iter().position(|(config, _)| config.id == *name).expect("a member")
    }

    fn start(&self, node: &mut Node<P>, n: usize, now: u64) {
        node.lives += 1;
        let (_, config) = &self.configs[n];
        let now = self.clock(n, now);
        // The waits of all peers have the same length in ticks, so the seed makes no difference.
        let mut peer = P::new(config.clone(), node.disk.clone(), 1, now).expect("a good start");
        peer.stand(now, BootInstant::FAR_FUTURE);
        node.peer = Some(peer);
    }

    /// Lets a peer do something, and does what it wants done.
    fn act(&self, world: &mut World<P>, n: usize, act: impl FnOnce(&mut P, BootInstant)) {
        let now = self.clock(n, world.now);
        let node = Arc::make_mut(&mut world.nodes[n]);
        let Some(peer) = &mut node.peer else { return };
        act(peer, now);
        let mut sent = Vec::new();
        while let Some(output) = peer.poll_output() {
            match output {
                Output::Save(_) if node.hangs => {}
                Output::Save(save) => {
                    let proof = save.with(|state| {
                        node.disk = state.clone();
                        Ok::<_, ()>(())
                    });
                    peer.handle_proof(now, proof.expect("a disk that works"));
                }
                Output::Invalidate(invalidate) => {
                    let proof = invalidate.with(|_, _| node.belief = None);
                    node.gave_up = true;
                    peer.handle_proof(now, proof);
                }
                Output::Send(envelope) => sent.push(envelope),
                Output::Event(Event::Elected(trust)) => {
                    node.belief = Some((trust.term, trust.valid_until));
                    let first = *world.elected.entry(trust.term).or_insert(n);
                    world.twice |= first != n;
                }
                Output::Event(Event::Extended(trust)) => {
                    node.belief = Some((trust.term, trust.valid_until));
                    node.extended = true;
                }
                Output::Event(Event::LeaderChanged(_)) => {}
            }
        }
        for envelope in sent {
            let to = self.index(&envelope.to);
            let apart = world.cut.is_some_and(|(part, _)| (part >> n ^ part >> to) & 1 == 1);
            if !apart {
                world.network.push_back(Flight { envelope, late: None });
            }
        }
    }

    fn deliver(&self, world: &mut World<P>, envelope: Envelope<P::Message>) {
        let to = self.index(&envelope.to);
        self.act(world, to, |peer, now| {
            let taken = peer.handle_message(now, envelope);
            assert!(taken.is_ok(), "{taken:?}");
        });
    }

    /// Tells a run, without what is the same in each.
    pub(crate) fn tell(&self, steps: Vec<Step>) -> Vec<String> {
        let mut world = self.init_states().remove(0);
        let mut told = vec![self.to_string()];
        let names = |part: &dyn Fn(usize) -> bool| {
            let names = (0..self.configs.len()).filter(|n| part(*n)).map(|n| self.name(n).as_str());
            names.collect::<Vec<_>>().join(", ")
        };
        for step in steps {
            let flight = |index: usize| {
                let Envelope { from, to, term, message, .. } = &world.network[index].envelope;
                format!("{} {term} from {from} to {to}", message.kind())
            };
            let line = match step {
                Step::Tick => None,
                Step::Wake(n) => Some(format!("{} sees that a wait is over", self.name(n))),
                Step::Deliver => world.first().map(flight),
                Step::DeliverLate(index) => Some(format!("late: {}", flight(index))),
                Step::Return(n) => Some(format!("{} is back", self.name(n))),
                Step::Heal => Some("the network is whole again".to_owned()),
                Step::Overtake(index) => Some(format!("overtaking: {}", flight(index))),
                Step::Delay(index) => Some(format!("held up: {}", flight(index))),
                Step::Double(index) => Some(format!("doubled: {}", flight(index))),
                Step::Freeze(n) => Some(format!("{} freezes", self.name(n))),
                Step::Crash(n) => Some(format!("{} crashes", self.name(n))),
                Step::Hang(n) => Some(format!("the disk of {} hangs", self.name(n))),
                Step::GiveUp(n) => Some(format!("{} gives up", self.name(n))),
                Step::Unwanted(n) => Some(format!("nobody wants {} to lead", self.name(n))),
                Step::Cut(part) => {
                    let inside = |n: usize| part >> n & 1 == 1;
                    let parts = (names(&inside), names(&|n| !inside(n)));
                    Some(format!("the network falls apart: {} | {}", parts.0, parts.1))
                }
            };
            let before = self.leaders(&world);
            world = self.next_state(&world, step).expect("a step of the run");
            told.extend(line.map(|line| format!("  tick {}: {line}", world.now)));
            let after = self.leaders(&world);
            if after != before {
                let leading = after.iter().map(|n| {
                    let term = world.nodes[*n].belief.map_or(Term(0), |(term, _)| term);
                    format!("{} in {term}", self.name(*n))
                });
                let leading = leading.collect::<Vec<_>>().join(" AND ");
                let leading = if leading.is_empty() { "nobody".to_owned() } else { leading };
                told.push(format!("    leads: {leading}"));
            }
        }
        told
    }
}

impl<P: Protocol> fmt::Display for Setting<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setting { configs, exclusive, rates, horizon, deviations, .. } = self;
        let decided = if *exclusive { "by a majority" } else { "by nobody else" };
        write!(f, "{} peers, decided {decided}, {horizon} ticks, {deviations} deviations", configs.len())?;
        if rates.len() > 1 {
            write!(f, ", clocks {rates:?}")?;
        }
        Ok(())
    }
}

impl<P: Subject> Model for Setting<P> {
    type State = World<P>;
    type Action = Step;

    fn init_states(&self) -> Vec<World<P>> {
        let nodes = self.configs.iter().enumerate().map(|(n, (config, _))| {
            let disk = Durable::new(config.cluster.clone(), config.id.clone());
            let mut node = Node {
                peer: None,
                disk,
                hangs: false,
                lives: 0,
                away_since: None,
                belief: None,
                extended: false,
                gave_up: false,
            };
            self.start(&mut node, n, 0);
            Arc::new(node)
        });
        vec![World {
            now: 0,
            nodes: nodes.collect(),
            network: VecDeque::new(),
            cut: None,
            deviations_left: self.deviations,
            elected: BTreeMap::new(),
            twice: false,
        }]
    }

    fn actions(&self, world: &World<P>, steps: &mut Vec<Step>) {
        let count = world.nodes.len();
        let due = |n: &usize| {
            let node = &world.nodes[*n];
            let at = node.peer.as_ref().and_then(P::poll_timeout);
            node.away_since.is_none() && at.is_some_and(|at| at <= self.clock(*n, world.now))
        };
        let waking: Vec<usize> = (0..count).filter(due).collect();
        let first = world.first();
        steps.extend(waking.iter().map(|n| Step::Wake(*n)));
        steps.extend(first.map(|_| Step::Deliver));
        if waking.is_empty() && first.is_none() && world.now < self.horizon {
            steps.push(Step::Tick);
        }
        for (index, flight) in world.network.iter().enumerate() {
            if flight.late.is_some_and(|since| since < world.now) && !world.is_away(&flight.envelope, self) {
                steps.push(Step::DeliverLate(index));
            }
        }
        for (n, node) in world.nodes.iter().enumerate() {
            if node.away_since.is_some_and(|since| since < world.now) {
                steps.push(Step::Return(n));
            }
        }
        if world.cut.is_some_and(|(_, since)| since < world.now) {
            steps.push(Step::Heal);
        }
        if world.deviations_left == 0 || world.now < self.quiet {
            return;
        }
        if world.cut.is_none() {
            // The first peer is always in the other part: each way to fall apart once.
            steps.extend((1..1_u8 << (count - 1)).map(|part| Step::Cut(part << 1)));
        }
        if self.only_cuts {
            return;
        }
        for (index, flight) in world.network.iter().enumerate() {
            if flight.late.is_none() && !world.is_away(&flight.envelope, self) {
                if Some(index) != first {
                    steps.push(Step::Overtake(index));
                }
                steps.extend([Step::Delay(index), Step::Double(index)]);
            }
        }
        for (n, node) in world.nodes.iter().enumerate() {
            if node.away_since.is_none() {
                steps.extend([Step::Freeze(n), Step::Crash(n), Step::Unwanted(n)]);
                if !node.hangs {
                    steps.push(Step::Hang(n));
                }
                if self.leads(world, n) {
                    steps.push(Step::GiveUp(n));
                }
            }
        }
    }

    fn next_state(&self, world: &World<P>, step: Step) -> Option<World<P>> {
        let mut next = world.clone();
        let now = world.now;
        match step {
            Step::Tick
            | Step::Wake(_)
            | Step::Deliver
            | Step::DeliverLate(_)
            | Step::Return(_)
            | Step::Heal => {}
            _ => next.deviations_left -= 1,
        }
        match step {
            Step::Tick => next.now += 1,
            Step::Wake(n) => self.act(&mut next, n, |peer, now| peer.handle_timeout(now)),
            Step::Deliver => {
                let flight = next.network.remove(world.first()?)?;
                self.deliver(&mut next, flight.envelope);
            }
            Step::DeliverLate(index) | Step::Overtake(index) => {
                let flight = next.network.remove(index)?;
                self.deliver(&mut next, flight.envelope);
            }
            Step::Delay(index) => next.network[index].late = Some(now),
            Step::Double(index) => {
                next.network[index].late = Some(now);
                self.deliver(&mut next, world.network[index].envelope.clone());
            }
            Step::Freeze(n) => next.node(n).away_since = Some(now),
            Step::Crash(n) => {
                let node = next.node(n);
                (node.peer, node.away_since, node.hangs) = (None, Some(now), false);
                next.network.retain(|flight| self.index(&flight.envelope.to) != n || flight.late.is_some());
            }
            Step::Return(n) => {
                let node = next.node(n);
                node.away_since = None;
                if node.peer.is_none() {
                    self.start(node, n, now);
                }
            }
            Step::Hang(n) => next.node(n).hangs = true,
            Step::GiveUp(n) => self.act(&mut next, n, |peer, now| {
                peer.surrender(now, None).expect("nobody is named");
                peer.stand(now, BootInstant::FAR_FUTURE);
            }),
            Step::Unwanted(n) => self.act(&mut next, n, |peer, now| peer.stand(now, now)),
            Step::Cut(part) => next.cut = Some((part, now)),
            Step::Heal => next.cut = None,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Setting<P>>> {
        let mut properties = vec![
            Property::always(OVERLAP, |setting: &Setting<P>, world: &World<P>| {
                setting.leaders(world).len() <= 1
            }),
            Property::sometimes("elected", |setting: &Setting<P>, world: &World<P>| {
                !setting.leaders(world).is_empty()
            }),
            Property::sometimes("extended", |_, world: &World<P>| world.nodes.iter().any(|n| n.extended)),
            Property::sometimes("another one elected", |_, world: &World<P>| world.elected.len() > 1),
            Property::sometimes("given up", |_, world: &World<P>| world.nodes.iter().any(|n| n.gave_up)),
        ];
        if self.exclusive {
            properties.push(Property::always("one leader in a term", |_, world: &World<P>| !world.twice));
        }
        properties
    }
}

impl<P: Subject> World<P> {
    /// The first message that is not late and whose receiver is there.
    fn first(&self) -> Option<usize> {
        let away = |flight: &Flight<P::Message>| {
            let to = &flight.envelope.to;
            self.nodes.iter().any(|node| node.disk.id == *to && node.away_since.is_some())
        };
        self.network.iter().position(|flight| flight.late.is_none() && !away(flight))
    }

    fn is_away(&self, envelope: &Envelope<P::Message>, setting: &Setting<P>) -> bool {
        self.nodes[setting.index(&envelope.to)].away_since.is_some()
    }

    fn node(&mut self, n: usize) -> &mut Node<P> {
        Arc::make_mut(&mut self.nodes[n])
    }
}

impl<P: Subject> Clone for World<P> {
    fn clone(&self) -> World<P> {
        World {
            now: self.now,
            nodes: self.nodes.clone(),
            network: self.network.clone(),
            cut: self.cut,
            deviations_left: self.deviations_left,
            elected: self.elected.clone(),
            twice: self.twice,
        }
    }
}

impl<P: Subject> fmt::Debug for World<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tick {}", self.now)
    }
}
