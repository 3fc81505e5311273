//! Two candidates, a store with one record, a network that delays, reorders, loses and doubles, and true time.

use std::sync::Arc;
use std::time::Duration;

use incumbent_core::record::Record;
use incumbent_core::{Input, StopReason, Stored, Timing};
use stateright::{Model, Property};

use crate::node::{Anchor, Node, Reply, Request, RequestId, Swap};

/// The property that must not fail.
pub(crate) const OVERLAP: &str = "no two are valid";

/// What is examined.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) timing: Timing,
    pub(crate) anchor: Anchor,
    /// The rate of each clock: ticks that it shows in so many ticks of true time.
    pub(crate) rates: [(u64, u64); 2],
    /// How long true time runs.
    pub(crate) horizon: u64,
    /// How many things may go wrong in one run, of any kinds: see [`Step::is_fault`].
    pub(crate) faults: u8,
}

/// The whole state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct World {
    now: u64,
    nodes: [Arc<Node>; 2],
    record: Stored,
    network: Vec<Message>,
    faults_left: u8,
    handed_over: bool,
    crashed_leader: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Message {
    node: usize,
    id: RequestId,
    content: Content,
    /// Is late, since this moment of true time: it may come at any later one, or never.
    late: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Content {
    Swap(Swap),
    Reply(Reply),
}

/// One step. Time passes when all is done that is not late and whose process is not frozen.
///
/// A read is carried out when it is sent; its reply may be late. (A read that is late itself differs only in that its
/// reply is newer.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Tick,
    Wake(usize),
    Freeze(usize),
    Thaw(usize),
    Deliver(usize),
    Delay(usize),
    Double(usize),
    Crash(usize),
    Resign(usize),
    WorkStops(usize),
    Hint(usize),
}

impl Step {
    fn is_fault(self) -> bool {
        match self {
            Step::Tick | Step::Wake(_) | Step::Thaw(_) | Step::Deliver(_) | Step::WorkStops(_) => false,
            Step::Freeze(_)
            | Step::Delay(_)
            | Step::Double(_)
            | Step::Crash(_)
            | Step::Resign(_)
            | Step::Hint(_) => true,
        }
    }
}

impl Setting {
    fn clock(&self, node: usize, now: u64) -> u64 {
        let (shown, passed) = self.rates[node];
        now * shown / passed
    }

    fn is_valid(&self, world: &World, node: usize) -> bool {
        world.nodes[node].is_valid(self.clock(node, world.now))
    }
}

impl Model for Setting {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        // Released by an earlier term, so that the first campaign need not wait.
        let record = Record::unheld(Duration::from_millis(self.timing.ttl.as_nanos() as u64), None);
        vec![World {
            now: 0,
            nodes: ["a", "b"].map(|id| Arc::new(Node::new(id, self.timing))),
            record: Stored { version: 1, token: 1, body: record.encode() },
            network: Vec::new(),
            faults_left: self.faults,
            handed_over: false,
            crashed_leader: false,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        let due = |node: usize| {
            let state = &world.nodes[node];
            state.frozen.is_none() && state.is_due(self.clock(node, world.now))
        };
        let in_time = |message: &Message| message.late.is_none() && !world.waits_for_thaw(message);
        if world.now < self.horizon && !due(0) && !due(1) && !world.network.iter().any(in_time) {
            steps.push(Step::Tick);
        }
        for node in 0..2 {
            let state = &world.nodes[node];
            if !state.alive {
                continue;
            }
            if let Some(since) = state.frozen {
                if since < world.now {
                    steps.push(Step::Thaw(node));
                }
                continue;
            }
            let leads = state.term.is_some();
            let possible = [
                (Step::Wake(node), due(node)),
                (Step::WorkStops(node), state.is_stopping()),
                (Step::Freeze(node), true),
                // Which of the two dies makes no difference; whose clock is slow does, and both are tried.
                (Step::Crash(node), node == 0),
                (Step::Resign(node), leads && !state.is_stopping()),
                (Step::Hint(node), !leads),
            ];
            steps.extend(possible.into_iter().filter(|(_, possible)| *possible).map(|(step, _)| step));
        }
        for (index, message) in world.network.iter().enumerate() {
            if world.waits_for_thaw(message) || message.late.is_some_and(|since| since == world.now) {
                continue;
            }
            steps.push(Step::Deliver(index));
            if message.late.is_none() {
                steps.push(Step::Delay(index));
            }
            if matches!(message.content, Content::Swap(_)) {
                steps.push(Step::Double(index));
            }
        }
        if world.faults_left == 0 {
            steps.retain(|step| !step.is_fault());
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        let clock = |node| self.clock(node, world.now);
        next.faults_left -= u8::from(step.is_fault());
        match step {
            Step::Tick => next.now += 1,
            Step::Wake(node) => next.node(node).wake(clock(node)),
            Step::WorkStops(node) => next.node(node).input(clock(node), Input::WorkStopped),
            Step::Resign(node) => next.node(node).input(clock(node), Input::Stop(StopReason::Resigned)),
            Step::Hint(node) => next.node(node).input(clock(node), Input::Look),
            Step::Crash(node) => {
                next.crashed_leader = self.is_valid(world, node);
                next.node(node).crash();
            }
            Step::Freeze(node) => next.node(node).frozen = Some(world.now),
            Step::Thaw(node) => next.node(node).frozen = None,
            Step::Delay(index) => next.network[index].late = Some(world.now),
            Step::Double(index) => next.deliver(next.network[index].clone(), clock, self.anchor),
            Step::Deliver(index) => {
                let message = next.network.remove(index);
                next.deliver(message, clock, self.anchor);
            }
        }
        next.settle(clock);
        for node in 0..2 {
            next.handed_over |= next.nodes[node].term.is_some() && next.nodes[1 - node].resigned;
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Setting>> {
        vec![
            Property::always(OVERLAP, |setting: &Setting, world: &World| {
                !(setting.is_valid(world, 0) && setting.is_valid(world, 1))
            }),
            // Stronger: nobody was granted anything yet while the former is valid, whether it knows or not.
            Property::always("who is valid holds the record", |setting: &Setting, world: &World| {
                (0..2).all(|node| !setting.is_valid(world, node) || world.holds(node))
            }),
            Property::sometimes("elected", |setting: &Setting, world: &World| setting.is_valid(world, 0)),
            Property::sometimes("extended", |setting: &Setting, world: &World| {
                setting.is_valid(world, 0) && world.nodes[0].is_extended()
            }),
            Property::sometimes("handed over", |_, world: &World| world.handed_over),
            Property::sometimes("taken over after a crash", |setting: &Setting, world: &World| {
                world.crashed_leader && (0..2).any(|node| setting.is_valid(world, node))
            }),
            Property::sometimes("frozen past its successor's start", |setting: &Setting, world: &World| {
                world.nodes[0].alive && world.nodes[0].term.is_some() && setting.is_valid(world, 1)
            }),
        ]
    }
}

impl World {
    /// A reply to a frozen process waits in its socket.
    fn waits_for_thaw(&self, message: &Message) -> bool {
        self.nodes[message.node].frozen.is_some() && matches!(message.content, Content::Reply(_))
    }

    fn holds(&self, node: usize) -> bool {
        self.nodes[node].term.as_ref().is_some_and(|term| term.token == self.record.token)
    }

    fn node(&mut self, node: usize) -> &mut Node {
        Arc::make_mut(&mut self.nodes[node])
    }

    fn deliver(&mut self, message: Message, clock: impl Fn(usize) -> u64, anchor: Anchor) {
        let Message { node, id, content, .. } = message;
        match content {
            Content::Swap(swap) => {
                let reply = self.carry_out(swap);
                self.network.push(Message { node, id, content: Content::Reply(reply), late: None });
            }
            Content::Reply(reply) => self.node(node).reply(clock(node), reply, anchor),
        }
    }

    /// The store: a compare-and-swap on the version, which rises with every write.
    fn carry_out(&mut self, swap: Swap) -> Reply {
        if swap.expected != self.record.version {
            return Reply::Conflict;
        }
        let token = self.record.token + u64::from(swap.raise);
        let version = self.record.version + 1;
        self.record = Stored { version, token, body: swap.body };
        Reply::Done { version, token }
    }

    /// Collects what was sent and drops what cannot matter any more: a reply that nobody waits for, and for nobody a
    /// swap whose version is gone for good.
    fn settle(&mut self, clock: impl Fn(usize) -> u64) {
        for node in 0..2 {
            if self.nodes[node].outbox.is_empty() {
                continue;
            }
            for (id, request) in std::mem::take(&mut self.node(node).outbox) {
                let content = match request {
                    Request::Read => Content::Reply(Reply::Read(self.record.clone())),
                    Request::Swap(swap) => Content::Swap(swap),
                };
                self.network.push(Message { node, id, content, late: None });
            }
        }
        let (nodes, record) = (&self.nodes, &self.record);
        self.network.retain(|message| {
            let node = &nodes[message.node];
            if node.awaits(message.id) {
                return true;
            }
            match &message.content {
                Content::Swap(swap) => swap.expected == record.version,
                Content::Reply(_) => {
                    if node.alive {
                        node.assert_ignores(clock(message.node), message.id.0);
                    }
                    false
                }
            }
        });
        self.network
            .sort_by_key(|message| (message.node, message.id, matches!(message.content, Content::Reply(_))));
    }
}
