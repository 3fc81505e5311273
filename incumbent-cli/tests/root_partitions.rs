//! Five machines' worth of network name spaces, whose network falls apart at random: what each way to elect promises then.
//!
//! With `INCUMBENT_ROUNDS=200` and `--nocapture` it is the long run, which tells what belongs into `reliability/ledger.csv`.

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "cli/harness.rs"]
mod harness;
#[path = "partitions/net.rs"]
mod net;

use std::path::Path;
use std::time::Duration;

use incumbent_core::{BootInstant, FencingToken};
use incumbent_guardian::LeaseFileReader;
use testkit::{Certificates, Proc, wait_until};

use harness::{SOON, World};
use net::{Net, SIZE};

const TTL: Duration = Duration::from_secs(2);
const JOB: &str = "echo \"leading $INCUMBENT_LEASE_FILE\"; exec sleep 1000";

#[test]
fn raft_never_has_two_valid_leaders() {
    never_two("raft", "");
}

#[test]
fn bully_by_majority_never_has_two_valid_leaders() {
    never_two("bully", "&majority=true");
}

#[test]
fn a_ring_by_majority_never_has_two_valid_leaders() {
    never_two("ring", "&majority=true");
}

/// What its page says, and why `run` refuses it.
#[test]
fn bully_without_a_majority_has_a_leader_in_each_part() {
    let mut peers = Peers::start("bully", "", &["--allow-split-brain"]);
    peers.wait_for_leaders(|leaders| leaders.len() == 1);
    let mut dice = Dice(7);
    for _ in 0..rounds().min(20) {
        peers.net.part(&|from, to| (from < 2) == (to < 2));
        peers.wait_for_leaders(|leaders| leaders.len() == 2 && leaders[0] < 2 && leaders[1] >= 2);
        peers.net.part(&|_, _| true);
        peers.wait_for_leaders(|leaders| leaders.len() == 1);
        peers.look_for(dice.span(TTL / 4, TTL / 2));
    }
}

fn rounds() -> u32 {
    std::env::var("INCUMBENT_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(6)
}

/// The network falls apart again and again, each time otherwise: in two, in one direction only, around the leader.
fn never_two(scheme: &str, parameters: &str) {
    let mut peers = Peers::start(scheme, parameters, &[]);
    let mut dice = Dice(scheme.len() as u64);
    peers.wait_for_leaders(|leaders| leaders.len() == 1);
    for round in 0..rounds() {
        let leader = peers.leaders().first().copied().unwrap_or(0);
        let others = dice.below(1 << SIZE);
        let part = if round % 3 == 0 { 1 << leader | others & 1 << dice.below(SIZE as u64) } else { others };
        let one_way = dice.below(3) == 0;
        let within = |node: usize| part >> node & 1 == 1;
        peers.net.part(&|from, to| within(from) == within(to) || (one_way && within(to)));
        peers.look_for(dice.span(TTL / 4, TTL * 5 / 2));
        peers.net.part(&|_, _| true);
        if round % 2 == 0 {
            peers.wait_for_leaders(|leaders| leaders.len() == 1);
        }
        peers.look_for(dice.span(TTL / 10, TTL));
    }
    peers.wait_for_leaders(|leaders| leaders.len() == 1);
    let terms = peers.terms.len();
    assert!(peers.terms.windows(2).all(|two| two[0].token < two[1].token), "{:?}", peers.terms);
    assert!(terms as u32 > rounds() / 6, "{terms} terms only: the partitions harmed nobody");
    eprintln!("{scheme}{parameters}: {} rounds, {terms} terms, no two valid leaderships", rounds());
}

/// Five candidates on one network.
struct Peers {
    net: Net,
    all: Vec<Proc>,
    /// How many lines of each were looked at.
    seen: Vec<usize>,
    /// In the order in which their jobs said so.
    terms: Vec<Term>,
    exclusive: bool,
    _world: World,
}

#[derive(Debug)]
struct Term {
    node: usize,
    at: BootInstant,
    token: FencingToken,
    lease: LeaseFileReader,
}

fn candidate(net: &Net, world: &World, space: usize, on: &str, flags: &[&str]) -> Proc {
    let ttl = format!("--ttl={}ms", TTL.as_millis());
    let run = ["run", "billing", "--on", on, &ttl];
    let job = ["--", "sh", "-c", JOB];
    Proc::spawn(net.within(space, &world.incumbent(&[&run, flags, &job].concat())))
}

impl Peers {
    fn start(scheme: &str, parameters: &str, flags: &[&str]) -> Peers {
        let net = Net::start();
        let world = World::new();
        let addresses: Vec<String> = (0..SIZE).map(Net::address).collect();
        let names: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let tls = Certificates::make_for(&world.path(""), &names);
        // In name spaces of their own nobody else listens.
        let member = |node: usize| format!("n{node}={}:7400", addresses[node]);
        let list = (0..SIZE).map(member).collect::<Vec<_>>().join(",");
        let path = |path: &Path| path.display().to_string();
        let (ca, cert, key) = (path(&tls.ca), path(&tls.server_cert), path(&tls.server_key));
        let init = |node: usize| {
            let (name, state) = (format!("n{node}"), path(&world.path(&format!("state-{node}"))));
            let (code, out, err) =
                world.output(&["peer", "init", "--state", &state, "--name", &name, "--cluster", "test"]);
            assert_eq!(code, 0, "{out}{err}");
            format!("{scheme}://{name}?peers={list}&state={state}&ca={ca}&cert={cert}&key={key}{parameters}")
        };
        let urls: Vec<String> = (0..SIZE).map(init).collect();
        let all = (0..SIZE).map(|node| candidate(&net, &world, node, &urls[node], flags)).collect();
        let exclusive = flags.is_empty();
        Peers { net, all, seen: vec![0; SIZE], terms: Vec::new(), exclusive, _world: world }
    }

    /// Those whose lease is valid now, in order; the judge.
    fn leaders(&mut self) -> Vec<usize> {
        for (node, process) in self.all.iter().enumerate() {
            let lines = process.lines();
            for line in &lines[self.seen[node]..] {
                let Some(path) = line.text.strip_prefix("leading ") else { continue };
                // One that is over already has no file any more.
                let Ok(lease) = LeaseFileReader::open(Path::new(path)) else { continue };
                let Ok(word) = lease.read() else { continue };
                self.terms.push(Term { node, at: line.at, token: word.token(), lease });
            }
            self.seen[node] = lines.len();
        }
        self.terms.sort_by_key(|term| term.at);
        let valid = |term: &&Term| term.lease.read().is_ok_and(|word| word.is_valid(testkit::now()));
        let first: Vec<&Term> = self.terms.iter().filter(valid).collect();
        let again: Vec<&Term> = first.iter().copied().filter(|term| valid(term)).collect();
        // Whoever is valid both times was so in between, when all of them had been read once.
        assert!(again.len() < 2 || !self.exclusive, "{again:?} lead at one time: {}", self.transcript());
        let mut leaders: Vec<usize> = again.iter().map(|term| term.node).collect();
        leaders.sort_unstable();
        leaders
    }

    fn transcript(&self) -> String {
        self.all.iter().map(Proc::transcript).collect()
    }

    /// Looks on.
    fn look_for(&mut self, span: Duration) {
        let end = testkit::now() + span;
        while testkit::now() < end {
            self.leaders();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    fn wait_for_leaders(&mut self, are: impl Fn(&[usize]) -> bool) {
        let found = wait_until(SOON, || are(&self.leaders()));
        assert!(found, "{:?} lead: {}", self.leaders(), self.transcript());
    }
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn span(&mut self, from: Duration, to: Duration) -> Duration {
        from + Duration::from_millis(self.below((to - from).as_millis() as u64 + 1))
    }
}
