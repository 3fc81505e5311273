//! Many elections of one process on Consul: they share their session and their transactions, each of which is done whole or not at all.
#![cfg(feature = "consul")]

use std::time::Duration;

use futures_util::future::join_all;
use incumbent::{Campaign, CampaignEvent, Connection, Leadership, Settings, StopReason};
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

fn campaigns(connection: &Connection, id: &str) -> Vec<Campaign> {
    let campaign = |i| connection.election(format!("many-{i}")).candidate(id).campaign().expect("a campaign");
    (0..MANY).map(campaign).collect()
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_lost_lock_costs_the_others_nothing_and_all_are_handed_over() {
    let consul = Consul::single().start().expect("Consul starts");
    let (one, other) = (connect(&consul).await, connect(&consul).await);
    let mut leading = campaigns(&one, "one");
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

    let mut waiting = campaigns(&other, "other");
    sleep(TTL / 2).await;
    let stop = async {
        for campaign in &mut leading {
            campaign.stop(StopReason::Shutdown);
        }
        join_all(leading.iter_mut().map(async |campaign| {
            while let Some(event) = timeout(PATIENCE, campaign.next()).await.expect("in time") {
                match event {
                    CampaignEvent::Stopping { .. } => campaign.work_stopped(),
                    CampaignEvent::Ended => break,
                    _ => {}
                }
            }
        }))
        .await
    };
    let (_, next) = tokio::join!(stop, all_elected(&mut waiting));
    for (old, new) in terms.iter().zip(&next) {
        assert!(new.token() > old.token());
    }
}
