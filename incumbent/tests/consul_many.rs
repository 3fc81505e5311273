//! Many elections of one process on Consul: they share their session and their transactions, each of which is done whole or not at all.
#![cfg(feature = "consul")]

use std::fs;
use std::ops::Range;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use incumbent::{Campaign, CampaignEvent, Connection, ElectionName, Leadership, Settings, StopReason};
use testkit::Consul;
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(6);
/// More than fit into one transaction, and more than are followed by a blocking query of their own.
const MANY: usize = 70;
const PATIENCE: Duration = Duration::from_secs(60);

async fn connect(consul: &Consul) -> Connection {
    let settings = Settings { ttl: TTL, ..Settings::default() };
    incumbent::connect_with(&consul.url(), settings).await.expect("a valid URL")
}

fn campaigns(connection: &Connection, id: &str, numbers: Range<usize>) -> Vec<Campaign> {
    let campaign = |i| connection.election(format!("many-{i}")).candidate(id).campaign().expect("a campaign");
    numbers.map(campaign).collect()
}

async fn elected(campaign: &mut Campaign) -> Leadership {
    loop {
        match timeout(PATIENCE, campaign.next()).await.expect("in time").expect("the campaign goes on") {
            CampaignEvent::Elected(leadership) => return leadership,
            CampaignEvent::Stopping { .. } | CampaignEvent::Lost(_) => campaign.work_stopped(),
            _ => {}
        }
    }
}

async fn all_elected(campaigns: &mut [Campaign]) -> Vec<Leadership> {
    join_all(campaigns.iter_mut().map(elected)).await
}

async fn all_stopped(campaigns: &mut [Campaign]) {
    for campaign in campaigns.iter_mut() {
        campaign.stop(StopReason::Shutdown);
    }
    join_all(campaigns.iter_mut().map(async |campaign| {
        while let Some(event) = timeout(PATIENCE, campaign.next()).await.expect("in time") {
            match event {
                CampaignEvent::Stopping { .. } => campaign.work_stopped(),
                CampaignEvent::Ended => break,
                _ => {}
            }
        }
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_lost_lock_costs_the_others_nothing_and_all_are_handed_over() {
    let consul = Consul::single().start().expect("Consul starts");
    let (one, other) = (connect(&consul).await, connect(&consul).await);
    let mut leading = campaigns(&one, "one", 0..MANY);
    let terms = all_elected(&mut leading).await;

    // Three renewals, or four: one by one they would be two requests each.
    let before = consul.requests();
    sleep(TTL).await;
    let asked = consul.requests() - before;
    assert!(asked < 3 * MANY as u64, "{asked} requests in three renewals of {MANY} elections");

    consul.call("DELETE", "/v1/kv/many-3/.lock", "");
    let again = elected(&mut leading[3]).await;
    assert!(again.token() > terms[3].token());
    sleep(TTL).await;
    let lost: Vec<usize> = (0..MANY).filter(|i| !terms[*i].is_valid()).collect();
    assert_eq!(lost, [3], "the others were renewed all the while");

    let mut waiting = campaigns(&other, "other", 0..MANY);
    sleep(TTL / 2).await;
    let ((), next) = tokio::join!(all_stopped(&mut leading), all_elected(&mut waiting));
    for (old, new) in terms.iter().zip(&next) {
        assert!(new.token() > old.token());
    }
}

/// A server counts a connection until the query on it is answered, although its client has closed it, and takes 200 from one address.
#[tokio::test]
async fn watches_that_are_given_up_leave_the_server_few_connections() {
    let consul = Consul::single().start().expect("Consul starts");
    let settings = Settings { ttl: TTL, ..Settings::default() };
    let backend = incumbent::backend::factory(&consul.url(), &settings).expect("a valid URL")().unwrap();
    let open = || fs::read_dir(format!("/proc/{}/fd", consul.pid(0))).expect("a live server").count();
    let before = open();
    for i in 0..250 {
        let election = ElectionName::new(format!("watched-{i}")).expect("a valid name");
        let mut hints = backend.watch(&election, None).expect("it tells");
        // Until a query waits.
        let _ = timeout(Duration::from_millis(10), hints.next()).await;
    }
    let (after, allowed) = (open(), before + 60);
    assert!(after < allowed, "it has {after} open files, and had {before}");
}
