//! A register among peers, under losses, doubles, crashes and proposals that cross: no change is lost, none is done twice, and no read
//! goes back.

use std::collections::{BTreeMap, VecDeque};

use incumbent_core::peers::register::{Acceptor, Ask, Change, Entry, Outcome, Proposal, Reply, Step};
use incumbent_core::{CandidateId, Nonce};

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn nonce(&mut self) -> Nonce {
        Nonce(u128::from(self.next()) << 64 | u128::from(self.next()))
    }
}

/// A client that adds one again and again: a read, then a swap of what it read.
struct Client {
    proposal: Proposal,
    ask: u64,
    read: Option<Entry>,
    swaps: bool,
    /// Of the last read or swap: what it was when this began.
    floor: u64,
    done: u64,
    unknown: u64,
}

enum Message {
    Ask { client: usize, number: u64, to: usize, ask: Ask },
    Reply { client: usize, number: u64, from: usize, reply: Reply },
}

struct World {
    dice: Dice,
    peers: Vec<Acceptor>,
    clients: Vec<Client>,
    wire: VecDeque<Message>,
    /// The highest version that any client was told, at any time.
    known: u64,
    /// What each version held, as told.
    values: BTreeMap<u64, u64>,
}

fn id(number: usize) -> CandidateId {
    CandidateId::new(format!("p{number}")).expect("an id")
}

fn number(entry: Option<&Entry>) -> u64 {
    entry.map_or(0, |entry| u64::from_le_bytes(entry.body.as_slice().try_into().expect("8 bytes")))
}

impl World {
    fn begin(&mut self, client: usize, change: Change) {
        let nonce = self.dice.nonce();
        let (proposal, ask) = Proposal::new(change, self.peers.len(), nonce);
        let floor = self.known;
        let state = &mut self.clients[client];
        state.proposal = proposal;
        state.floor = floor;
        self.ask(client, &ask);
    }

    fn ask(&mut self, client: usize, ask: &Ask) {
        self.clients[client].ask += 1;
        let number = self.clients[client].ask;
        for to in 0..self.peers.len() {
            self.wire.push_back(Message::Ask { client, number, to, ask: ask.clone() });
        }
    }

    fn step(&mut self) {
        if self.wire.is_empty() || self.dice.below(40) == 0 {
            // One that waits for what was lost begins its proposal anew.
            let client = self.dice.below(self.clients.len());
            let nonce = self.dice.nonce();
            let ask = self.clients[client].proposal.again(nonce);
            return self.ask(client, &ask);
        }
        let place = self.dice.below(self.wire.len().min(12));
        let Some(message) = self.wire.remove(place) else { return };
        match self.dice.below(10) {
            0 => return,
            1 => {
                let twin = match &message {
                    Message::Ask { client, number, to, ask } => {
                        Message::Ask { client: *client, number: *number, to: *to, ask: ask.clone() }
                    }
                    Message::Reply { client, number, from, reply } => {
                        Message::Reply { client: *client, number: *number, from: *from, reply: reply.clone() }
                    }
                };
                self.wire.push_back(twin);
            }
            _ => {}
        }
        match message {
            Message::Ask { client, number, to, ask } => {
                // What is answered is durable: a crash loses nothing but the answer.
                let (reply, _) = self.peers[to].handle(ask);
                self.wire.push_back(Message::Reply { client, number, from: to, reply });
            }
            Message::Reply { client, number, from, reply } => {
                if number == self.clients[client].ask
                    && let Some(step) = self.clients[client].proposal.answered(id(from), reply)
                {
                    self.advance(client, step);
                }
            }
        }
    }

    fn advance(&mut self, client: usize, step: Step) {
        let outcome = match step {
            Step::Ask(ask) => return self.ask(client, &ask),
            Step::Pause => {
                let nonce = self.dice.nonce();
                let ask = self.clients[client].proposal.again(nonce);
                return self.ask(client, &ask);
            }
            Step::Done(outcome) => outcome,
        };
        let floor = self.clients[client].floor;
        match outcome {
            Outcome::Read(found) => {
                let version = found.as_ref().map_or(0, |entry| entry.version);
                assert!(version >= floor, "version {version} was read after {floor} was known");
                self.learn(version, number(found.as_ref()));
                self.clients[client].read = found;
                self.clients[client].swaps = true;
            }
            Outcome::Swapped(version) => {
                let value = number(self.clients[client].read.as_ref()) + 1;
                assert!(version > floor, "version {version} was written after {floor} was known");
                self.learn(version, value);
                self.clients[client].done += 1;
                self.clients[client].swaps = false;
            }
            Outcome::Conflict => self.clients[client].swaps = false,
            Outcome::Unknown => {
                self.clients[client].unknown += 1;
                self.clients[client].swaps = false;
            }
        }
        let change = if self.clients[client].swaps {
            let read = self.clients[client].read.clone();
            let body = (number(read.as_ref()) + 1).to_le_bytes().to_vec();
            Change::Swap { expected: read.map(|entry| (entry.version, entry.token)), token: 1, body }
        } else {
            Change::Read
        };
        self.begin(client, change);
    }

    fn learn(&mut self, version: u64, value: u64) {
        assert_eq!(*self.values.entry(version).or_insert(value), value, "version {version} held two values");
        self.known = self.known.max(version);
    }
}

fn run(seed: u64) -> (u64, u64) {
    let mut dice = Dice(seed);
    let (peers, clients) = (1 + dice.below(5), 1 + dice.below(4));
    let mut world = World {
        peers: vec![Acceptor::default(); peers],
        clients: Vec::new(),
        wire: VecDeque::new(),
        known: 0,
        values: BTreeMap::new(),
        dice,
    };
    for client in 0..clients {
        let nonce = world.dice.nonce();
        let (proposal, _) = Proposal::new(Change::Read, peers, nonce);
        let state = Client { proposal, ask: 0, read: None, swaps: false, floor: 0, done: 0, unknown: 0 };
        world.clients.push(state);
        world.begin(client, Change::Read);
    }
    for _ in 0..3_000 {
        world.step();
    }
    let done: u64 = world.clients.iter().map(|client| client.done).sum();
    let unknown: u64 = world.clients.iter().map(|client| client.unknown).sum();
    // Each change adds one, so the value says how many were done; those whose fate is unknown, and those under way, may be among them.
    let value = world.values.last_key_value().map_or(0, |(_, value)| *value);
    assert!(
        value >= done.saturating_sub(clients as u64),
        "seed {seed}: {done} were told done, {value} are there"
    );
    assert!(
        value <= done + unknown + clients as u64,
        "seed {seed}: {value} are there of {done} and {unknown}"
    );
    (done, unknown)
}

#[test]
fn no_change_is_lost_or_done_twice_whatever_is_lost_and_doubled() {
    let (mut done, mut unknown) = (0, 0);
    for seed in 0..3_000 {
        let (more, less) = run(seed);
        done += more;
        unknown += less;
    }
    assert!(done > 30_000, "only {done} changes: this shows little");
    assert!(unknown < done, "{unknown} of {done} changes ended in doubt");
}
