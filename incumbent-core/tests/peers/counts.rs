//! How many messages an election takes, for every number of peers up to 64, against the formulas of the papers. All peers
//! are alive and nobody decides by majority, as in the papers.

use incumbent_core::peers::bully::Bully;
use incumbent_core::peers::ring::{Circulation, Ring, RingConfig};
use incumbent_core::peers::{ClaimConfig, Config, Criterion};

use crate::net::{Net, config, id};

const NUMBERS: std::ops::RangeInclusive<usize> = 2..=64;

/// Peers of these priorities, in the order of the ring.
fn peers(priorities: &[u8]) -> Vec<Config> {
    let names: Vec<String> = (0..priorities.len()).map(|n| format!("p{n:02}")).collect();
    let members: Vec<(&str, u8)> = names.iter().map(String::as_str).zip(priorities.iter().copied()).collect();
    names.iter().map(|name| config(name, &members)).collect()
}

fn ascending(count: usize) -> Vec<u8> {
    (1..=count as u8).collect()
}

fn claim(peers: &Config) -> ClaimConfig {
    ClaimConfig { peers: peers.clone(), majority: false, criterion: Criterion::GreatestId }
}

/// One peer notices that there is no coordinator.
fn bully(count: usize, starter: usize) -> Net<Bully> {
    let mut net = Net::<Bully>::new(peers(&ascending(count)).into_iter().map(|peers| {
        let config = claim(&peers);
        (peers, config)
    }));
    let starter = id(&format!("p{starter:02}"));
    net.now = net.nodes[&starter].due();
    net.wake(&starter);
    net.deliver();
    assert_eq!(net.leaders(), [(format!("p{:02}", count - 1).as_str(), 1)]);
    net
}

fn ring_of(priorities: &[u8], circulation: Circulation) -> Net<Ring> {
    Net::new(peers(priorities).into_iter().map(|peers| {
        let config = RingConfig { claim: claim(&peers), circulation };
        (peers, config)
    }))
}

/// All peers notice it at one time.
fn ring(priorities: &[u8], circulation: Circulation) -> Net<Ring> {
    let mut net = ring_of(priorities, circulation);
    let latest = net.nodes.values().map(|node| node.due()).max();
    net.now = latest.expect("some peers");
    for name in net.nodes.keys().cloned().collect::<Vec<_>>() {
        net.wake(&name);
    }
    net.deliver();
    let greatest = priorities.iter().max().and_then(|max| priorities.iter().position(|p| p == max));
    assert_eq!(net.leaders(), [(format!("p{:02}", greatest.expect("some peers")).as_str(), 1)]);
    net
}

/// Best case: the greatest notices, has nobody to ask, and tells the n−1 others.
#[test]
fn bully_at_best_sends_n_minus_1_messages() {
    for n in NUMBERS {
        let net = bully(n, n - 1);
        assert_eq!((net.count("election"), net.count("answer"), net.count("coordinator")), (0, 0, n - 1));
    }
}

/// Worst case: the smallest notices. Every peer asks all greater ones, each of which answers: n(n−1)/2 questions, as many
/// answers, and n−1 announcements, n²−1 together.
#[test]
fn bully_at_worst_sends_n_squared_minus_1_messages() {
    for n in NUMBERS {
        let net = bully(n, 0);
        let pairs = n * (n - 1) / 2;
        let counts = (net.count("election"), net.count("answer"), net.count("coordinator"));
        assert_eq!(counts, (pairs, pairs, n - 1), "{n} peers");
        assert_eq!(counts.0 + counts.1 + counts.2, n * n - 1);
    }
}

/// Best case: the numbers rise around the ring. All but the greatest are swallowed by the first neighbour, that one goes
/// around: 2n−1 messages. Then n to say who is elected.
#[test]
fn chang_roberts_at_best_sends_2n_minus_1_messages() {
    for n in NUMBERS {
        let net = ring(&ascending(n), Circulation::Greatest);
        assert_eq!((net.count("election"), net.count("elected")), (2 * n - 1, n), "{n} peers");
    }
}

/// Worst case: the numbers fall around the ring. The i-th greatest is swallowed after n+1−i hops: n(n+1)/2 messages.
#[test]
fn chang_roberts_at_worst_sends_n_times_n_plus_1_over_2_messages() {
    for n in NUMBERS {
        let descending: Vec<u8> = ascending(n).into_iter().rev().collect();
        let net = ring(&descending, Circulation::Greatest);
        assert_eq!((net.count("election"), net.count("elected")), (n * (n + 1) / 2, n), "{n} peers");
    }
}

/// One notices, right behind the greatest: its number goes n−1 hops until it is swallowed, then the greatest one's n.
#[test]
fn chang_roberts_with_one_starter_sends_2n_minus_1_messages_at_worst() {
    for n in NUMBERS {
        // The others only vote, and pass on what comes.
        let mut priorities = vec![0; n];
        (priorities[0], priorities[n - 1]) = (1, 2);
        let mut net = ring_of(&priorities, Circulation::Greatest);
        let starter = id("p00");
        net.now = net.nodes[&starter].due();
        net.wake(&starter);
        net.deliver();
        assert_eq!((net.count("election"), net.count("elected")), (2 * n - 1, n), "{n} peers");
    }
}

/// Every one of k starters sends a message around: n hops each. The greatest learns it from the first that is back.
#[test]
fn collecting_sends_n_messages_for_each_starter() {
    for n in NUMBERS {
        let net = ring(&ascending(n), Circulation::Collect);
        assert_eq!((net.count("collect"), net.count("elected")), (n * n, n), "{n} peers");
    }
}

/// Each hop is confirmed, which the papers do without.
#[test]
fn each_hop_is_confirmed_once() {
    let net = ring(&ascending(9), Circulation::Greatest);
    assert_eq!(net.count("received"), net.count("election") + net.count("elected"));
}
