//! What a leader makes of the changes in the directory: not of its own, at once of those that others make.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use incumbent::{Campaign, CampaignEvent, LossReason, StopReason};
use testkit::{now, run_dir};
use tokio::time::{sleep, timeout};

use crate::LONG;
use crate::process::{PATIENCE, url};

/// Enough for what a hint makes the elector do, and far from the first renewal that is due.
const A_WHILE: Duration = Duration::from_millis(400);

async fn candidate(dir: &Path, id: &str) -> Campaign {
    let connection = incumbent::connect(&url(dir, LONG)).await.unwrap();
    connection.election("billing").candidate(id).campaign().unwrap()
}

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

async fn elected(campaign: &mut Campaign) {
    wait(campaign, |event| matches!(event, CampaignEvent::Elected(_)).then_some(())).await;
}

async fn shut_down(campaign: &mut Campaign) {
    campaign.stop(StopReason::Shutdown);
    wait(campaign, |event| matches!(event, CampaignEvent::Ended).then_some(())).await;
}

/// How often the record was written, by its header.
fn version(dir: &Path) -> u64 {
    let text = fs::read_to_string(dir.join("billing.record")).unwrap();
    let header: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    header["version"].as_u64().unwrap()
}

#[tokio::test]
async fn a_new_leader_does_not_renew_because_of_its_own_grant() {
    let dir = run_dir("own");
    // Asked of a term that is over.
    fs::write(
        dir.join("billing.handover"),
        r#"{"v":1,"election":"billing","version":3,"token":1}"#.to_owned() + "\n",
    )
    .unwrap();
    let mut leader = candidate(&dir, "c0").await;
    elected(&mut leader).await;
    let before = version(&dir);
    sleep(A_WHILE).await;
    assert_eq!(version(&dir), before);
    for number in 1..6 {
        let mut next = candidate(&dir, &format!("c{number}")).await;
        wait(&mut next, |event| matches!(event, CampaignEvent::LeaderChanged(Some(_))).then_some(())).await;
        let before = version(&dir);
        shut_down(&mut leader).await;
        elected(&mut next).await;
        sleep(A_WHILE).await;
        assert_eq!(version(&dir), before + 2, "given back and taken");
        leader = next;
    }
}

/// A record that someone deletes while its leader has hardly been told that it is elected.
#[tokio::test]
async fn what_happens_while_a_candidate_wins_is_not_taken_for_its_own_grant() {
    let dir = run_dir("meanwhile");
    let over = Arc::new(AtomicBool::new(false));
    let vandal = {
        let (record, over) = (dir.join("billing.record"), over.clone());
        std::thread::spawn(move || {
            let mut deleted = 0;
            while !over.load(Ordering::Relaxed) {
                let held = fs::read_to_string(&record).is_ok_and(|text| text.contains("\"nonce\""));
                if held && fs::remove_file(&record).is_ok() {
                    deleted += 1;
                }
                std::thread::sleep(Duration::from_micros(20));
            }
            deleted
        })
    };
    let mut one = candidate(&dir, "one").await;
    for _ in 0..10 {
        elected(&mut one).await;
        let begin = now();
        let reason = wait(&mut one, |event| match event {
            CampaignEvent::Lost(reason) => Some(reason.clone()),
            _ => None,
        });
        assert!(matches!(reason.await, LossReason::Superseded(None)));
        assert!(now().since(begin) < LONG / 5, "told before the first renewal was due");
    }
    over.store(true, Ordering::Relaxed);
    assert!(vandal.join().unwrap() >= 10);
}
