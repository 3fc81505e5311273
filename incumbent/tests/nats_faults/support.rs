//! What the cases share: campaigns, and a store that is spoken to directly.

use std::sync::Arc;
use std::time::Duration;

use incumbent::{Campaign, CampaignEvent, Connection, Leadership, LossReason, Settings};
use incumbent_core::{Acquired, Backend, CandidateId, Claim, ElectionName, Grant, Nonce, Renewed, Result};
use testkit::{Nats, NatsVersion, Relay, now};
use tokio::time::{sleep, timeout};

pub(super) const TTL: Duration = Duration::from_secs(3);
/// Ample on a busy machine, for what takes milliseconds or waits for a lease to run out.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

pub(super) fn nats() -> Nats {
    Nats::single(NatsVersion::V2_10).start().expect("nats starts")
}

/// The bucket through other addresses.
pub(super) fn through(nats: &Nats, relay: &Relay) -> String {
    nats.url_of(&[relay.addr()])
}

pub(super) async fn connect(url: &str) -> Connection {
    let settings = Settings { ttl: TTL, ..Settings::default() };
    incumbent::connect_with(url, settings).await.expect("a valid URL")
}

/// A candidate with a connection of its own.
pub(super) async fn candidate(url: &str, id: &str) -> Campaign {
    connect(url).await.election("billing").candidate(id).campaign().expect("a valid candidate")
}

/// The next event that is looked for. What is lost meanwhile is confirmed to have stopped.
pub(super) async fn wait<T>(campaign: &mut Campaign, wanted: impl Fn(&CampaignEvent) -> Option<T>) -> T {
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

pub(super) async fn elected(campaign: &mut Campaign) -> Leadership {
    wait(campaign, |event| match event {
        CampaignEvent::Elected(leadership) => Some(leadership.clone()),
        _ => None,
    })
    .await
}

pub(super) async fn lost(campaign: &mut Campaign) -> LossReason {
    wait(campaign, |event| match event {
        CampaignEvent::Lost(reason) => Some(reason.clone()),
        _ => None,
    })
    .await
}

/// The store behind `url`, without an elector.
pub(super) fn store(url: &str) -> Arc<dyn Backend> {
    let settings = Settings { ttl: TTL, ..Settings::default() };
    incumbent::backend::factory(url, &settings).expect("a valid URL")().expect("a store")
}

pub(super) fn claim(id: &str) -> Claim {
    Claim {
        election: ElectionName::new("billing").expect("a name"),
        id: CandidateId::new(id).expect("an id"),
        nonce: Nonce(u128::from(now().as_nanos())),
        address: None,
        ttl: TTL,
    }
}

/// Tries until it wins, when the store says so.
pub(super) async fn win(store: &Arc<dyn Backend>, claim: &Claim) -> Grant {
    let search = async {
        loop {
            match store.try_acquire(claim).await {
                Ok(Acquired::Granted(grant)) => return grant,
                Ok(Acquired::Held { try_again, .. }) => {
                    sleep(try_again.since(now()).max(Duration::from_millis(5))).await;
                }
                Err(error) if error.is_retryable() => sleep(Duration::from_millis(50)).await,
                Err(error) => panic!("{error:?}"),
            }
        }
    };
    timeout(PATIENCE, search).await.expect("a win in time")
}

/// Renews until the store answers.
pub(super) async fn renew(store: &Arc<dyn Backend>, claim: &Claim, grant: &Grant) -> Result<Renewed> {
    let search = async {
        loop {
            match store.renew(claim, grant).await {
                Err(error) if error.is_retryable() => sleep(Duration::from_millis(50)).await,
                outcome => return outcome,
            }
        }
    };
    timeout(PATIENCE, search).await.expect("an answer in time")
}
