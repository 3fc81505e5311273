//! The candidates of one election, the store, the resource that its leader writes to, and true time.

mod broken;
mod happenings;

use incumbent_core::{
    Authority, BootInstant, CallId, CandidateId, ElectionName, Elector, ElectorConfig, FencingToken,
    HandoverRequest, Timing,
};

use super::candidate::Candidate;
use super::options::Options;
use super::queue::QueueStore;
use super::record::RecordStore;
use super::store::LeaseStore;
use super::{queue, record, store};
use crate::clock::{Clock, MS, Nanos, span};
use crate::history::{Core, History, Promises};
use crate::network::{Network, Weather};
use crate::outcome::{Outcome, Shown};
use crate::plan::Plan;
use crate::queue::Queue;
use crate::random::Random;

/// What happens at its time.
#[derive(Debug)]
pub(super) enum Happening {
    /// A candidate looks at its clock.
    Wake {
        node: usize,
    },
    /// Something reaches the store, or a candidate.
    Message(Box<Message>),
    /// A hint reaches a candidate.
    Hint {
        node: usize,
        life: u32,
    },
    /// The work checks; the work writes; the work has stopped.
    Check {
        node: usize,
        term: u32,
    },
    Write {
        node: usize,
        term: u32,
        token: u64,
    },
    Stopped {
        node: usize,
        term: u32,
    },
    /// A write reaches the resource.
    Arrived {
        token: u64,
    },
    /// The store looks whether the lease has run out.
    StoreLooks,
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
}

/// A request to the store, or its answer.
#[derive(Debug)]
pub(super) struct Message {
    node: usize,
    life: u32,
    call: CallId,
    request: u16,
    content: Content,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Ask(store::Ask),
    Tell(store::Tell),
    AskRecord(record::Ask),
    TellRecord(record::Tell),
    AskQueue(queue::Ask),
    TellQueue(queue::Tell),
    ReadNote,
    Note(Option<(u64, usize)>),
}

impl Content {
    /// The kinds of messages, by [`Content::kind`].
    const KINDS: [&'static str; 15] = [
        "acquire",
        "renew",
        "release",
        "read",
        "swap",
        "read note",
        "answer",
        "hint",
        "grant",
        "keep-alive",
        "create",
        "guard",
        "move",
        "delete",
        "revoke",
    ];
    const HINT: usize = 7;

    fn kind(&self) -> usize {
        match self {
            Content::Ask(store::Ask::Acquire(_)) => 0,
            Content::Ask(store::Ask::Renew(_)) => 1,
            Content::Ask(store::Ask::Release(..)) => 2,
            Content::AskRecord(record::Ask::Read) => 3,
            Content::AskRecord(record::Ask::Swap { .. }) => 4,
            Content::ReadNote => 5,
            Content::Tell(_) | Content::TellRecord(_) | Content::TellQueue(_) | Content::Note(_) => 6,
            Content::AskQueue(ask) => match ask {
                queue::Ask::Look(_) => 3,
                queue::Ask::Grant => 8,
                queue::Ask::KeepAlive(_) => 9,
                queue::Ask::Create(..) => 10,
                queue::Ask::Guard(..) => 11,
                queue::Ask::Move(..) => 12,
                queue::Ask::Delete(_) => 13,
                queue::Ask::Revoke(_) => 14,
            },
        }
    }

    fn is_answer(&self) -> bool {
        self.kind() == 6
    }
}

#[derive(Debug)]
pub(super) enum Store {
    Lease(LeaseStore),
    Record(RecordStore),
    Queue(QueueStore),
}

/// The term that was over last.
#[derive(Clone, Copy, Debug)]
struct Ended {
    released: bool,
    node: usize,
}

#[derive(Debug)]
pub(super) struct World<'a> {
    plan: &'a Plan<Options>,
    timing: Timing,
    election: ElectionName,
    authority: Authority,
    ids: Vec<CandidateId>,
    now: Nanos,
    queue: Queue<Happening>,
    random: Random,
    network: Network,
    calm: Weather,
    clocks: Vec<Clock>,
    nodes: Vec<Candidate>,
    store: Store,
    /// The store stands still or is down until then.
    store_away_until: Nanos,
    store_is_down: bool,
    store_look_at: Nanos,
    hints_lost: u32,
    /// A note that asks the leader with this token to hand over, and to whom.
    note: Option<(u64, usize)>,
    healed: bool,
    /// Those that have to have a leader in the end.
    core: Vec<bool>,
    active_faults: u32,
    ended: Option<Ended>,
    /// When the call was issued whose answer is being handed over.
    asked_at: Nanos,
    messages: [u64; Content::KINDS.len()],
    history: History,
}

impl<'a> World<'a> {
    pub(super) fn new(plan: &'a Plan<Options>, shown: Shown) -> World<'a> {
        let options = &plan.options;
        // What was drawn for the plan shall not move what is drawn in the run, nor the other way round.
        let mut random = Random::new(plan.seed ^ 0x5eed_0fa1).fork();
        let calm = Weather {
            delay_min: MS / 5,
            delay_max: MS / 5 + options.delay_ms * MS,
            loss: options.loss,
            doubled: options.doubled,
        };
        let named = |n: usize| if options.shared_id && n == 1 { 0 } else { n };
        let ids: Vec<CandidateId> = (0..options.candidates)
            .map(|n| CandidateId::new(format!("n{}", named(n))).expect("a valid id"))
            .collect();
        let authority = Authority::new("sim");
        let mut world = World {
            timing: options.timing(),
            election: ElectionName::new("billing").expect("a valid name"),
            now: 0,
            queue: Queue::new(),
            network: Network::new(options.candidates + 1, calm),
            calm,
            clocks: options.rates_ppm.iter().map(|rate| Clock::new(&mut random, *rate)).collect(),
            nodes: ids.iter().cloned().map(Candidate::new).collect(),
            store: if options.store.is_record() {
                Store::Record(RecordStore::new(options.store))
            } else if options.store.is_queue() {
                Store::Queue(QueueStore::new(options.store, span(options.ttl())))
            } else {
                Store::Lease(LeaseStore::new(options.store, span(options.ttl())))
            },
            store_away_until: 0,
            store_is_down: false,
            store_look_at: Nanos::MAX,
            hints_lost: options.hints_lost,
            note: None,
            healed: false,
            core: vec![true; options.candidates],
            active_faults: 0,
            ended: None,
            asked_at: 0,
            messages: [0; Content::KINDS.len()],
            history: History::new(shown, authority.clone()),
            plan,
            authority,
            ids,
            random,
        };
        for node in 0..world.nodes.len() {
            let at = world.random.below(options.ttl());
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
            self.close(node, self.now);
        }
        self.judge()
    }

    fn local(&self, node: usize) -> BootInstant {
        self.clocks[node].boot(self.now)
    }

    fn store_index(&self) -> usize {
        self.nodes.len()
    }

    // ---- processes ----

    fn start(&mut self, node: usize) {
        if self.nodes[node].is_up() {
            return;
        }
        let config = ElectorConfig {
            election: self.election.clone(),
            id: self.nodes[node].id.clone(),
            address: None,
            timing: self.timing,
            takeover_max: self.plan.options.store.guarantees().takeover_max(self.timing.ttl),
        };
        let seed = self.random.seed();
        self.nodes[node].elector = Some(Elector::new(config, seed));
        self.say(node, || "starts".to_owned());
        self.wake(node);
    }

    fn crash(&mut self, node: usize) {
        self.close(node, self.now);
        if self.nodes[node].belief.is_some() {
            self.history.stopwatch.lost(self.now);
            self.ended = Some(Ended { released: false, node });
        }
        self.nodes[node].crash();
        self.say(node, || "crashes".to_owned());
    }

    fn wake(&mut self, node: usize) {
        let now = self.local(node);
        if let Some(elector) = &mut self.nodes[node].elector {
            elector.handle_timeout(now);
            self.outputs(node);
        }
    }

    /// Whether the user of this candidate is told that it leads, whoever has the processor.
    fn believes(&self, node: usize) -> bool {
        self.nodes[node].belief.is_some_and(|belief| self.local(node) < belief.deadline)
    }

    fn leader(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|node| self.believes(*node))
    }

    /// The node's leadership is over by `at` at the latest.
    fn close(&mut self, node: usize, at: Nanos) {
        if let Some(belief) = self.nodes[node].belief {
            self.history.close(belief.hold, at);
        }
    }

    fn say(&mut self, node: usize, line: impl FnOnce() -> String) {
        let life = self.nodes[node].life;
        self.history.trace.say(self.now, || format!("n{node}.{life}: {}", line()));
    }

    // ---- the end ----

    fn judge(self) -> Outcome {
        let kind = self.plan.options.store;
        let promises = Promises { excludes: kind.excludes(), orders: kind.orders() };
        let core = Core { members: &self.core, bound: self.plan.takeover_bound() };
        let sent = Content::KINDS.into_iter().zip(self.messages).filter(|(_, count)| *count > 0);
        self.history.judge(self.plan, promises, Some(core), sent.collect())
    }

    fn handover(&self, note: Option<(u64, usize)>) -> Option<HandoverRequest> {
        note.map(|(token, to)| HandoverRequest { token: FencingToken(token), to: Some(self.ids[to].clone()) })
    }
}
