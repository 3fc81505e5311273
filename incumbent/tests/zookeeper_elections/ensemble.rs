//! Servers of an ensemble that freeze, die, or are cut off from the others.

use std::time::Duration;

use incumbent::Settings;
use testkit::zookeeper::{Hand, Version};
use testkit::{Zookeeper, now, wait_until};
use tokio::time::sleep;

use super::support::{Field, PATIENCE, TTL, candidate, elected, nodes, run};

/// The server that holds the session freezes; the leader moves to another one. What the frozen one does when it wakes up is of
/// no effect: at most the session moves once more.
#[test]
fn a_leader_moves_to_another_server_and_keeps_its_term() {
    let mut zookeeper = Zookeeper::ensemble(Version::V3_9, 3).start().expect("ZooKeeper starts");
    let leads = zookeeper.leader_index();
    let follower = (leads + 1) % 3;
    let endpoints = zookeeper.endpoints();
    let url = format!("zookeeper://{},{}", endpoints[follower], endpoints[leads]);
    run(async {
        let connection =
            incumbent::connect_with(&url, Settings { ttl: TTL * 2, ..Settings::default() }).await;
        let connection = connection.expect("a valid URL");
        let mut one = connection.election("billing").candidate("one").campaign().expect("a candidate");
        let leadership = elected(&mut one).await;
        zookeeper.pause(follower);
        sleep(TTL * 2).await;
        assert!(leadership.is_valid(), "one server of two that it knows is frozen");
        zookeeper.resume(follower);
        sleep(TTL).await;
        assert!(leadership.is_valid(), "a server that wakes up has ended the term");
    });
}

/// The session moves to another server without its holder's doing, as when an abandoned attempt to connect gets through late. The
/// connection that held it answers on and can write no more; the next renewal takes the session back.
#[test]
fn a_session_that_moved_to_another_server_is_taken_back_and_keeps_its_term() {
    let zookeeper = Zookeeper::ensemble(Version::V3_9, 3).start().expect("ZooKeeper starts");
    run(async {
        let mut one = candidate(&zookeeper.url(), "one").await;
        let leadership = elected(&mut one).await;
        let before = nodes(&zookeeper);
        let owner = zookeeper.hand().get(&before[0]).expect("it leads").owner;
        let mut taken = Vec::new();
        for endpoint in zookeeper.endpoints().iter().cycle().take(6) {
            taken.push(Hand::take_session(endpoint, owner));
            sleep(TTL / 3).await;
        }
        sleep(TTL).await;
        assert!(leadership.is_valid(), "the term was lost");
        assert_eq!(nodes(&zookeeper), before);
    });
}

/// Whatever happens to the ensemble: at no moment are two leaderships valid, and somebody leads again.
#[test]
fn faults_of_the_ensemble_never_make_two_leaders() {
    let mut zookeeper = Zookeeper::ensemble(Version::V3_8, 3).start().expect("ZooKeeper starts");
    let mut field = Field::new();
    for id in ["one", "two"] {
        field.add(id, &zookeeper.url());
    }
    field.leader();
    for _ in 0..2 {
        let leader = zookeeper.leader_index();
        zookeeper.pause(leader);
        field.watch(TTL * 2);
        zookeeper.resume(leader);
        field.leader();
        let leader = zookeeper.leader_index();
        zookeeper.kill(leader);
        field.watch(TTL);
        zookeeper.launch(leader);
        field.leader();
    }
}

/// CURATOR-444: the ensemble parts, and the leader is on the side of the fewer. There its server, which led the ensemble, goes on
/// answering reads and pings for a while, and commits nothing. The sides take turns at being frozen, so that neither hears of the
/// other.
#[test]
fn curator_444_a_leader_beside_the_leading_server_that_has_no_majority_is_followed_in_time() {
    parted(|zookeeper| zookeeper.leader_index());
}

/// The same with a server that followed.
#[test]
fn curator_444_a_leader_beside_a_following_server_that_has_no_majority_is_followed_in_time() {
    parted(|zookeeper| (zookeeper.leader_index() + 1) % 3);
}

fn parted(alone: impl Fn(&Zookeeper) -> usize) {
    let mut zookeeper = Zookeeper::ensemble(Version::V3_9, 3).start().expect("ZooKeeper starts");
    let alone = alone(&zookeeper);
    let others: Vec<usize> = (0..3).filter(|i| *i != alone).collect();
    let endpoints = zookeeper.endpoints();
    let mut field = Field::new();
    field.add("one", &format!("zookeeper://{}", endpoints[alone]));
    let (_, term) = field.leader();
    field.add("two", &format!("zookeeper://{},{}", endpoints[others[0]], endpoints[others[1]]));
    assert!(wait_until(PATIENCE, || nodes(&zookeeper).len() == 2), "it does not queue");

    others.iter().for_each(|i| zookeeper.pause(*i));
    // What was committed before may still be told.
    field.watch(Duration::from_millis(200));
    let end = term.valid_until();
    while now() < end {
        field.watch(Duration::from_millis(50));
        assert!(term.valid_until() <= end, "a server that commits nothing has prolonged the term");
    }
    assert!(!term.is_valid());
    assert!(zookeeper.figure(alone, "zk_packets_received") > 0, "it serves no more, so this shows nothing");

    zookeeper.pause(alone);
    others.iter().for_each(|i| zookeeper.resume(*i));
    let (id, next) = field.leader();
    assert_eq!(id, "two");
    assert!(next.token() > term.token());
    zookeeper.resume(alone);
    field.watch(TTL);
    assert!(next.is_valid(), "who came back has ended the term");
}
