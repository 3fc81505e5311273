//! What operators and other programs do to the queue, and sessions that end.

use std::time::Duration;

use incumbent::{CampaignEvent, LossReason, StopReason};
use testkit::zookeeper::{Hand, Version};
use testkit::{Zookeeper, now};
use tokio::time::{sleep, timeout};

use super::support::{PATIENCE, TTL, candidate, connect, elected, lost, nodes, queued, run, single, wait};

/// Curator #724: the election's own node goes while nobody stands there, and its count begins anew. The token does not.
#[test]
fn curator_724_tokens_rise_although_the_elections_node_was_deleted() {
    for version in Version::ALL {
        let zookeeper = Zookeeper::single(version).start().expect("ZooKeeper starts");
        run(async {
            let mut one = candidate(&zookeeper.url(), "one").await;
            let first = elected(&mut one).await;
            let mut hand = zookeeper.hand();
            hand.delete(&nodes(&zookeeper)[0]);
            hand.delete("/billing");
            assert!(matches!(lost(&mut one).await, LossReason::Superseded(_)));
            let second = elected(&mut one).await;
            assert!(second.token() > first.token());
            assert!(nodes(&zookeeper)[0].ends_with("0000000000"), "the count has begun anew");
        });
    }
}

#[test]
fn a_standby_whose_session_was_ended_queues_anew_and_wins_a_term_that_lasts() {
    let zookeeper = single();
    run(async {
        let mut one = candidate(&zookeeper.url(), "one").await;
        elected(&mut one).await;
        let mut two = candidate(&zookeeper.url(), "two").await;
        queued(&mut two).await;
        let before = nodes(&zookeeper);
        let owner = zookeeper.hand().get(&before[1]).expect("it waits").owner;
        Hand::end_session(&zookeeper.endpoints()[0], owner);
        let new = async {
            loop {
                let nodes = nodes(&zookeeper);
                if nodes.len() == 2 && nodes[1] != before[1] {
                    return;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, new).await.expect("a new node in time");
        one.stop(StopReason::Shutdown);
        let leadership = elected(&mut two).await;
        sleep(TTL * 2).await;
        assert!(leadership.is_valid(), "its session is alive and kept alive");
    });
}

/// What is no candidate's node is passed over, as kazoo does; what looks like one and belongs to nobody holds the election.
#[test]
fn what_others_put_under_an_election_is_understood() {
    let zookeeper = single();
    run(async {
        // A connection that says nothing for long is closed, so that each step by hand has its own.
        let mut hand = zookeeper.hand();
        hand.create("/billing", "");
        hand.create("/billing/lease_holder", "x");
        hand.create("/billing/0000000000", "x");
        let mut one = candidate(&zookeeper.url(), "one").await;
        elected(&mut one).await;
        one.stop(StopReason::Shutdown);
        zookeeper.hand().create("/billing/stranger__lock__0000000001", "\u{0}garbage");
        let mut two = candidate(&zookeeper.url(), "two").await;
        queued(&mut two).await;
        sleep(TTL * 2).await;
        zookeeper.hand().delete("/billing/stranger__lock__0000000001");
        elected(&mut two).await;
    });
}

#[test]
fn a_name_of_the_longest_kind_fits() {
    let zookeeper = single();
    run(async {
        let (name, id) = ("n".repeat(128), "i".repeat(128));
        let connection = connect(&zookeeper.url()).await;
        let candidate = connection.election(&name).candidate(&id).advertise("a".repeat(200));
        elected(&mut candidate.campaign().expect("a valid candidate")).await;
    });
}

/// Curator #524: a campaign is ended while it learns that its node is gone. It creates no other one afterwards.
#[test]
fn curator_3_a_campaign_that_ends_while_its_node_goes_leaves_none() {
    let zookeeper = single();
    run(async {
        let mut leader = candidate(&zookeeper.url(), "leader").await;
        elected(&mut leader).await;
        // One connection for all rounds: its session lives on, and would keep what is left.
        let connection = connect(&zookeeper.url()).await;
        let mut hand = zookeeper.hand();
        for round in 0..30 {
            let id = format!("round-{round}");
            let mut campaign = connection.election("billing").candidate(&id).campaign().expect("a candidate");
            queued(&mut campaign).await;
            let own = nodes(&zookeeper).remove(1);
            hand.delete(&own);
            sleep(Duration::from_micros(300) * round).await;
            campaign.stop(StopReason::Shutdown);
            wait(&mut campaign, |event| matches!(event, CampaignEvent::Ended).then_some(())).await;
            assert_eq!(nodes(&zookeeper).len(), 1, "{:?}", nodes(&zookeeper));
        }
    });
}

/// Curator #1161: sessions of several candidates end at one moment, again and again. Each comes back once, and they settle.
#[test]
fn curator_645_candidates_whose_sessions_end_together_settle() {
    let zookeeper = single();
    run(async {
        let mut campaigns = Vec::new();
        for id in ["one", "two", "three"] {
            campaigns.push(candidate(&zookeeper.url(), id).await);
        }
        let follow = futures_util::future::join_all(campaigns.iter_mut().map(async |campaign| {
            while let Some(event) = campaign.next().await {
                if matches!(event, CampaignEvent::Lost(_) | CampaignEvent::Stopping { .. }) {
                    campaign.work_stopped();
                }
            }
        }));
        let faults = async {
            let all = async || {
                let end = now() + PATIENCE;
                while nodes(&zookeeper).len() != 3 {
                    assert!(now() < end, "{:?}", nodes(&zookeeper));
                    sleep(Duration::from_millis(20)).await;
                }
            };
            for _ in 0..4 {
                all().await;
                for node in nodes(&zookeeper) {
                    if let Some(node) = zookeeper.hand().get(&node) {
                        Hand::end_session(&zookeeper.endpoints()[0], node.owner);
                    }
                }
                sleep(TTL / 8).await;
            }
            all().await;
            let settled = nodes(&zookeeper);
            sleep(TTL * 2).await;
            assert_eq!(nodes(&zookeeper), settled, "they go on replacing each other");
        };
        tokio::select! {
            _ = follow => panic!("a campaign ended"),
            () = faults => {}
        }
    });
}
