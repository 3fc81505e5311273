//! Connections that break and servers that are away, while candidates lead and wait.

use std::time::Duration;

use incumbent::Settings;
use incumbent_core::FencingToken;
use testkit::{Relay, Zookeeper, now};
use tokio::time::sleep;

use super::support::{Field, PATIENCE, TTL, elected, nodes, queued, run, single};

/// The token of the first in the queue.
fn first(zookeeper: &Zookeeper) -> Option<FencingToken> {
    let first = nodes(zookeeper).into_iter().next()?;
    zookeeper.hand().get(&first).map(|node| FencingToken(node.czxid.unsigned_abs()))
}

/// CURATOR-504: the ensemble is unstable and clients reconnect. Two threads of one reset its place in the queue at once, again and
/// again. Here a break comes at every step of a reconnection; each candidate keeps the node that it had.
#[test]
fn curator_504_connections_that_break_again_and_again_leave_each_candidate_its_node() {
    let zookeeper = single();
    let relay = Relay::to(&zookeeper.endpoints()[0]);
    let url = format!("zookeeper://{}", relay.addr());
    run(async {
        let campaign = async |id: &str| {
            let settings = Settings { ttl: TTL * 2, ..Settings::default() };
            let connection = incumbent::connect_with(&url, settings).await.expect("a valid URL");
            connection.election("billing").candidate(id).campaign().expect("a valid candidate")
        };
        let mut one = campaign("one").await;
        let term = elected(&mut one).await;
        let mut two = campaign("two").await;
        queued(&mut two).await;
        let before = nodes(&zookeeper);
        for round in 0..40 {
            relay.reset();
            sleep(Duration::from_millis(5) * round).await;
        }
        sleep(TTL * 2).await;
        assert_eq!(nodes(&zookeeper), before);
        assert!(term.is_valid(), "the term was lost");
    });
}

/// CURATOR-653: after an outage all reset their places, and one that saw itself first before its node was deleted went on leading
/// beside the next. After a short one and one that is longer than a session: who leads is who stands first.
#[test]
fn curator_653_candidates_that_come_back_from_an_outage_together_make_one_leader() {
    let mut zookeeper = single();
    let mut field = Field::new();
    for id in ["one", "two", "three"] {
        field.add(id, &zookeeper.url());
    }
    field.leader();
    for outage in [TTL / 4, TTL * 2] {
        zookeeper.kill(0);
        field.watch(outage);
        zookeeper.launch(0);
        let end = now() + PATIENCE;
        zookeeper.wait_ready();
        // The terms that outlasted the outage may end yet, with the sessions that it has not.
        while nodes(&zookeeper).len() != 3 || field.leader().1.token() != first(&zookeeper) {
            assert!(now() < end, "{:?} do not settle", nodes(&zookeeper));
        }
        field.watch(TTL);
    }
}

/// CURATOR-205, CURATOR-518, CURATOR-724: the nodes of all candidates and the election's own are removed while they create, watch
/// and look. Nobody stays outside for ever, nobody stands twice, and they settle.
#[test]
fn curator_205_518_an_election_that_is_cleared_away_again_and_again_settles() {
    let zookeeper = single();
    let mut field = Field::new();
    for id in ["one", "two", "three"] {
        field.add(id, &zookeeper.url());
    }
    field.leader();
    for round in 0..30 {
        zookeeper.hand().clear("/billing");
        std::thread::sleep(Duration::from_millis(5) * round);
    }
    let end = now() + PATIENCE;
    let leads_rightly = |field: &mut Field| {
        let valid = field.valid();
        valid.len() == 1 && valid[0].1.token() == first(&zookeeper)
    };
    while nodes(&zookeeper).len() != 3 || !leads_rightly(&mut field) {
        assert!(now() < end, "{:?} do not settle", nodes(&zookeeper));
        std::thread::sleep(Duration::from_millis(20));
    }
    let settled = nodes(&zookeeper);
    field.watch(TTL);
    assert_eq!(nodes(&zookeeper), settled, "they go on replacing each other");
    assert!(leads_rightly(&mut field));
}
