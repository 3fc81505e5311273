//! Candidates on a real ZooKeeper that operators, outages and other programs interfere with.
#![cfg(feature = "zookeeper")]

use std::time::Duration;

use incumbent::{Campaign, CampaignEvent, Connection, Leadership, LossReason, Settings, StopReason};
use testkit::zookeeper::{Hand, Version};
use testkit::{Zookeeper, now};
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(4);
/// Ample on a busy machine, for what takes milliseconds or waits for a session to end.
const PATIENCE: Duration = Duration::from_secs(60);

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

async fn connect(url: &str) -> Connection {
    let settings = Settings { ttl: TTL, ..Settings::default() };
    incumbent::connect_with(url, settings).await.expect("a valid URL")
}

/// A candidate with a connection, that is a session, of its own.
async fn candidate(url: &str, id: &str) -> Campaign {
    connect(url).await.election("billing").candidate(id).campaign().expect("a valid candidate")
}

/// The next event that is looked for. What is lost meanwhile is confirmed to have stopped.
async fn wait<T>(campaign: &mut Campaign, wanted: impl Fn(&CampaignEvent) -> Option<T>) -> T {
    let search = async {
        loop {
            let event = campaign.next().await.expect("the campaign goes on");
            if matches!(event, CampaignEvent::Lost(_) | CampaignEvent::Stopping { .. }) {
                campaign.work_stopped();
            }
            if let Some(found) = wanted(&event) {
                return found;
            }
        }
    };
    timeout(PATIENCE, search).await.expect("the event in time")
}

async fn elected(campaign: &mut Campaign) -> Leadership {
    wait(campaign, |event| match event {
        CampaignEvent::Elected(leadership) => Some(leadership.clone()),
        _ => None,
    })
    .await
}

async fn lost(campaign: &mut Campaign) -> LossReason {
    wait(campaign, |event| match event {
        CampaignEvent::Lost(reason) => Some(reason.clone()),
        _ => None,
    })
    .await
}

/// Waits until the candidate knows of another leader, that is, until it stands in the queue.
async fn queued(campaign: &mut Campaign) {
    wait(campaign, |event| matches!(event, CampaignEvent::LeaderChanged(Some(_))).then_some(())).await;
}

/// The nodes of the election, in the order of the queue.
fn nodes(zookeeper: &Zookeeper) -> Vec<String> {
    let children = zookeeper.hand().children("/billing");
    children.iter().map(|name| format!("/billing/{name}")).collect()
}

fn single() -> Zookeeper {
    Zookeeper::single(Version::V3_9).start().expect("ZooKeeper starts")
}

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
        for _ in 0..2 {
            zookeeper.pause(follower);
            sleep(TTL * 2).await;
            assert!(leadership.is_valid(), "one server of two that it knows is frozen");
            zookeeper.resume(follower);
            sleep(TTL).await;
            assert!(leadership.is_valid(), "a server that wakes up has ended the term");
        }
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

/// Whatever happens to the ensemble: at no moment are two leaderships valid, and somebody leads again.
#[test]
fn faults_of_the_ensemble_never_make_two_leaders() {
    let mut zookeeper = Zookeeper::ensemble(Version::V3_8, 3).start().expect("ZooKeeper starts");
    let url = zookeeper.url();
    let (sender, terms) = std::sync::mpsc::channel::<(&str, Leadership)>();
    for id in ["one", "two"] {
        let (url, sender) = (url.clone(), sender.clone());
        std::thread::spawn(move || {
            run(async {
                let mut campaign = candidate(&url, id).await;
                while let Some(event) = campaign.next().await {
                    match event {
                        CampaignEvent::Elected(leadership) => {
                            // Who no longer listens has ended the test.
                            let _ = sender.send((id, leadership));
                        }
                        CampaignEvent::Lost(_) | CampaignEvent::Stopping { .. } => campaign.work_stopped(),
                        _ => {}
                    }
                }
            });
        });
    }
    let mut known: Vec<(&str, Leadership)> = Vec::new();
    let mut watch = |time: Duration, until_somebody_leads: bool| {
        let end = now() + time;
        while now() < end {
            known.extend(terms.try_iter());
            let valid: Vec<&str> =
                known.iter().filter(|(_, term)| term.is_valid()).map(|(id, _)| *id).collect();
            assert!(valid.len() <= 1, "two leaders: {valid:?}");
            if until_somebody_leads && !valid.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!until_somebody_leads, "nobody leads");
    };
    watch(PATIENCE, true);
    for _ in 0..2 {
        let leader = zookeeper.leader_index();
        zookeeper.pause(leader);
        watch(TTL * 2, false);
        zookeeper.resume(leader);
        watch(PATIENCE, true);
        let leader = zookeeper.leader_index();
        zookeeper.kill(leader);
        watch(TTL, false);
        zookeeper.restart(leader);
        watch(PATIENCE, true);
    }
}
