//! The disk of Consul's leader hangs. It goes on to say that it has renewed sessions, and to show who holds a lock: neither is a
//! proof that the lock is held, and no leader of ours may take it for one.
#![cfg(feature = "consul")]

use std::time::Duration;

use incumbent::{CampaignEvent, Settings};
use serde_json::Value;
use testkit::{Consul, Stall, now};
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(6);
/// Longer than any lease here.
const STALL: Duration = Duration::from_secs(60);
const KEY: &str = "billing/.lock";

/// proofs_consul_2_2: a renewal, a read and a read-only transaction were answered for 36 s by a leader that could commit nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proofs_consul_2_2_a_renew_call_is_answered_while_nothing_commits() {
    let consul = Consul::single().start().expect("Consul starts");
    let settings = Settings { ttl: TTL, ..Settings::default() };
    let connection = incumbent::connect_with(&consul.url(), settings).await.expect("a valid URL");
    let mut campaign =
        connection.election("billing").candidate("holder").campaign().expect("a valid candidate");
    let term = loop {
        if let CampaignEvent::Elected(leadership) = campaign.next().await.expect("the campaign goes on") {
            break leadership;
        }
    };
    let stall = Stall::fdatasync(consul.pid(0), STALL);
    let stalled_at = now();
    // One renewal may have been on its way.
    let lost = async {
        loop {
            match campaign.next().await.expect("the campaign goes on") {
                CampaignEvent::Stopping { .. } => campaign.work_stopped(),
                CampaignEvent::Lost(reason) => return reason,
                _ => {}
            }
        }
    };
    let reason = timeout(TTL * 3, lost).await.expect("nothing proves the term, so that it ends");
    assert!(!term.is_valid());
    assert!(
        term.valid_until() < stalled_at + TTL,
        "{reason:?}: trusted beyond what was proved before the stall"
    );
    // All the while, and even now, the server says that all is well.
    let session = consul.holder_as_shown(KEY).expect("a lock that is shown as held");
    let renewed = consul.call("PUT", &format!("/v1/session/renew/{session}"), "");
    let renewed: Value = serde_json::from_str(&renewed).expect("JSON");
    assert_eq!(renewed[0]["ID"], session.as_str(), "{renewed}");
    drop(stall);
    let again = async {
        loop {
            if let CampaignEvent::Elected(leadership) = campaign.next().await.expect("the campaign goes on") {
                return leadership;
            }
        }
    };
    let next = timeout(Duration::from_secs(60), again).await.expect("it leads again once the disk is back");
    assert!(next.token() > term.token());
}
