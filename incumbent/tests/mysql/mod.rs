//! What the tests on MySQL and MariaDB share: candidates, and sessions by hand.

use std::future::Future;
use std::time::Duration;

use incumbent::{Campaign, CampaignEvent, Connection, Leadership, Settings};
use testkit::{Mysql, Proc};
use tokio::time::timeout;

/// Ample on a busy machine, for what takes milliseconds or waits for a lease to run out.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(test);
}

pub(crate) fn start() -> Mysql {
    Mysql::options().start().expect("MariaDB starts")
}

pub(crate) async fn connect(url: &str, ttl: Duration) -> Connection {
    let settings = Settings { ttl, ..Settings::default() };
    incumbent::connect_with(url, settings).await.expect("a valid URL")
}

/// A candidate with a connection of its own, once it leads.
pub(crate) async fn leader(url: &str, id: &str, ttl: Duration) -> (Campaign, Leadership) {
    let election = connect(url, ttl).await.election("billing");
    let mut campaign = election.candidate(id).campaign().expect("a valid candidate");
    let term = elected(&mut campaign).await;
    (campaign, term)
}

pub(crate) async fn elected(campaign: &mut Campaign) -> Leadership {
    wait(campaign, |event| match event {
        CampaignEvent::Elected(term) => Some(term.clone()),
        _ => None,
    })
    .await
}

/// The next event that is looked for. What is lost meanwhile is confirmed to have stopped.
pub(crate) async fn wait<T>(campaign: &mut Campaign, wanted: impl Fn(&CampaignEvent) -> Option<T>) -> T {
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
    timeout(PATIENCE, search).await.expect("the event that is waited for")
}

/// A session of root's that runs these statements on its own.
pub(crate) fn session(mysql: &Mysql, sql: &str) -> Proc {
    let mut client = mysql.client_command();
    client.args(["-N", "-B", "-n", "-e", sql, "app"]);
    Proc::spawn(client)
}
