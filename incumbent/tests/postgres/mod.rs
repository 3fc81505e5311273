//! What the tests on PostgreSQL share: candidates, and sessions of other programs.

use std::future::Future;
use std::time::Duration;

use incumbent::{Campaign, CampaignEvent, Connection, Leadership, Settings};
use testkit::Postgres;
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};

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

pub(crate) fn start() -> Postgres {
    Postgres::options().start().expect("PostgreSQL starts")
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

/// A session of another program, as this user.
pub(crate) async fn session(postgres: &Postgres, user: &str) -> Client {
    let (host, port) =
        postgres.addr().rsplit_once(':').map(|(h, p)| (h.to_owned(), p.to_owned())).expect("a port");
    let settings = format!("host={host} port={port} user={user} password=app-password dbname=app");
    let (client, connection) = tokio_postgres::connect(&settings, NoTls).await.expect("a session");
    tokio::spawn(connection);
    client
}

/// The SQLSTATE of what was refused.
#[track_caller]
pub(crate) fn refused<T>(outcome: Result<T, tokio_postgres::Error>) -> String {
    match outcome {
        Ok(_) => panic!("it was let through"),
        Err(failure) => failure.code().map_or_else(|| failure.to_string(), |code| code.code().to_owned()),
    }
}
