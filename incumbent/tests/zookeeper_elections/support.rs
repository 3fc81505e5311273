//! What the cases share: campaigns, each with a session of its own, and the queue as an operator sees it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use incumbent::{Campaign, CampaignEvent, Connection, Leadership, LossReason, Settings};
use testkit::zookeeper::Version;
use testkit::{Zookeeper, now};
use tokio::time::timeout;

pub(super) const TTL: Duration = Duration::from_secs(4);
/// Ample on a busy machine, for what takes milliseconds or waits for a session to end.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

pub(super) async fn connect(url: &str) -> Connection {
    let settings = Settings { ttl: TTL, ..Settings::default() };
    incumbent::connect_with(url, settings).await.expect("a valid URL")
}

/// A candidate with a connection, that is a session, of its own.
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

/// Waits until the candidate knows of another leader, that is, until it stands in the queue.
pub(super) async fn queued(campaign: &mut Campaign) {
    wait(campaign, |event| matches!(event, CampaignEvent::LeaderChanged(Some(_))).then_some(())).await;
}

/// The nodes of the election, in the order of the queue.
pub(super) fn nodes(zookeeper: &Zookeeper) -> Vec<String> {
    let children = zookeeper.hand().children("/billing");
    children.iter().map(|name| format!("/billing/{name}")).collect()
}

pub(super) fn single() -> Zookeeper {
    Zookeeper::single(Version::V3_9).start().expect("ZooKeeper starts")
}

/// Candidates, each on a thread of its own, and every term that they have had.
pub(super) struct Field {
    sender: Sender<(&'static str, Leadership)>,
    terms: Receiver<(&'static str, Leadership)>,
    known: Vec<(&'static str, Leadership)>,
}

impl Field {
    pub(super) fn new() -> Field {
        let (sender, terms) = channel();
        Field { sender, terms, known: Vec::new() }
    }

    /// A further candidate; it stands until the test ends.
    pub(super) fn add(&mut self, id: &'static str, url: &str) {
        let (url, sender) = (url.to_owned(), self.sender.clone());
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

    /// The terms that are valid at this moment.
    pub(super) fn valid(&mut self) -> Vec<(&'static str, Leadership)> {
        self.known.extend(self.terms.try_iter());
        self.known.iter().filter(|(_, term)| term.is_valid()).cloned().collect()
    }

    /// Looks on for `time`: at no moment are two terms valid.
    #[track_caller]
    pub(super) fn watch(&mut self, time: Duration) {
        let end = now() + time;
        while now() < end {
            self.at_most_one();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The same until somebody leads.
    #[track_caller]
    pub(super) fn leader(&mut self) -> (&'static str, Leadership) {
        let end = now() + PATIENCE;
        loop {
            if let Some(leader) = self.at_most_one() {
                return leader;
            }
            assert!(now() < end, "nobody leads");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    fn at_most_one(&mut self) -> Option<(&'static str, Leadership)> {
        let mut valid = self.valid();
        assert!(valid.len() <= 1, "two leaders: {valid:?}");
        valid.pop()
    }
}
