//! What a fail-over, a restart or an old copy of the data does to terms and tokens.

use std::path::Path;
use std::time::Duration;

use incumbent::{CampaignEvent, LossReason, Settings, StopReason};
use incumbent_core::Renewed;
use serde_json::{Value, json};
use testkit::{Nats, NatsVersion, now};
use tokio::time::{sleep, timeout};

use super::support::{PATIENCE, candidate, claim, elected, lost, nats, renew, run, store, win};

/// Longer than the servers take to choose a new leader.
const LONG: Duration = Duration::from_secs(30);

fn cluster() -> Nats {
    Nats::cluster(&[NatsVersion::V2_10; 3]).start().expect("nats starts")
}

async fn patient_candidate(url: &str, id: &str) -> incumbent::Campaign {
    let settings = Settings { ttl: LONG, ..Settings::default() };
    let connection = incumbent::connect_with(url, settings).await.expect("a valid URL");
    connection.election("billing").candidate(id).campaign().expect("a valid candidate")
}

/// A record that was released is taken at once, whatever its ttl was.
async fn leave_a_released_record(url: &str) {
    let (store, first) = (store(url), claim("first"));
    let grant = win(&store, &first).await;
    store.release(&first, Some(&grant), None).await.expect("a release");
}

/// The server that leads the bucket is killed: the term goes on through the others, with its token.
#[test]
fn nats_a_term_outlives_the_loss_of_the_buckets_leader() {
    let mut nats = cluster();
    run(async {
        leave_a_released_record(&nats.url()).await;
        let mut one = patient_candidate(&nats.url(), "one").await;
        let term = elected(&mut one).await;
        let token = term.token();
        let leader = nats.leader_index();
        let until = term.valid_until();
        nats.kill(leader);
        // Renewed through the others: the deadline moves on.
        let renewed = async {
            while term.is_valid() && term.valid_until() <= until + LONG / 4 {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(LONG * 2, renewed).await.expect("an end");
        assert!(term.is_valid(), "the term was lost with one of three servers");
        assert_eq!(term.token(), token);
    });
}

/// One of three servers is gone, and NATS gives some consumers to it all the same: standbys are told of a release in spite of that.
#[test]
fn nats_standbys_are_told_while_one_server_is_gone() {
    let mut nats = cluster();
    run(async {
        leave_a_released_record(&nats.url()).await;
        nats.kill((nats.leader_index() + 1) % 3);
        let mut leader = patient_candidate(&nats.url(), "0").await;
        elected(&mut leader).await;
        for round in 1..=5 {
            let mut standby = patient_candidate(&nats.url(), &round.to_string()).await;
            let waiting = timeout(LONG / 6, standby.next()).await;
            assert!(waiting.is_ok(), "it is told nothing: {waiting:?}");
            sleep(Duration::from_secs(3)).await;
            leader.stop(StopReason::Shutdown);
            while let Some(event) = leader.next().await {
                if matches!(event, CampaignEvent::Stopping { .. }) {
                    leader.work_stopped();
                }
            }
            // Without a word it would look after one ttl.
            timeout(LONG / 3, elected(&mut standby)).await.expect("it is told in time");
            leader = standby;
        }
    });
}

/// Each server in turn stands still, wherever the candidate is connected: one that hangs does not cost the term.
#[test]
fn nats_one_server_that_hangs_does_not_cost_the_term() {
    let mut nats = cluster();
    run(async {
        leave_a_released_record(&nats.url()).await;
        let mut one = patient_candidate(&nats.url(), "one").await;
        let term = elected(&mut one).await;
        for i in 0..3 {
            nats.pause(i);
            let until = term.valid_until();
            let renewed = async {
                while term.is_valid() && term.valid_until() <= until {
                    sleep(Duration::from_millis(50)).await;
                }
            };
            timeout(LONG * 2, renewed).await.expect("an end");
            nats.resume(i);
            assert!(term.is_valid(), "the term was lost while server {i} hung");
            sleep(Duration::from_secs(2)).await;
        }
    });
}

/// Two of three servers stand still: what the third answers to a read proves nothing, and no renewal is acknowledged.
#[test]
fn nats_a_server_without_a_majority_proves_nothing() {
    let mut nats = cluster();
    run(async {
        let leader = nats.leader_index();
        let url = nats.url_of(&nats.endpoints()[leader..=leader]);
        let (store, me) = (store(&url), claim("a"));
        let grant = win(&store, &me).await;
        for i in (0..3).filter(|i| *i != leader) {
            nats.pause(i);
        }
        let end = now() + Duration::from_secs(5);
        while now() < end {
            let renewed = timeout(Duration::from_millis(500), store.renew(&me, &grant)).await;
            assert!(!matches!(renewed, Ok(Ok(Renewed::Extended { .. }))), "{renewed:?}");
        }
        for i in (0..3).filter(|i| *i != leader) {
            nats.resume(i);
        }
        let next = claim("b");
        assert!(win(&store, &next).await.token > grant.token);
    });
}

/// A new bucket of the old name has forgotten everything: the term ends, and fences are told that it is another authority.
#[test]
fn nats_a_bucket_that_is_made_anew_is_another_authority() {
    let nats = nats();
    run(async {
        let (old, me) = (store(&nats.url()), claim("a"));
        let grant = win(&old, &me).await;
        nats.api(&format!("STREAM.DELETE.KV_{}", Nats::BUCKET), &Value::Null);
        nats.make_bucket(Nats::BUCKET, &json!({})).expect("a bucket");
        let renewed = renew(&old, &me, &grant).await;
        assert!(matches!(renewed, Ok(Renewed::Lost(_))), "{renewed:?}");
        let next = claim("b");
        let won = win(&old, &next).await;
        assert_ne!(won.authority, grant.authority);
        assert!(won.token > grant.token, "the clock made both");
    });
}

/// The revisions of a new bucket reach the old one's again, with the old leader's record in its old place: still not proven.
#[test]
fn nats_a_revision_that_comes_back_in_a_new_bucket_proves_nothing() {
    let nats = nats();
    run(async {
        let (old, me) = (store(&nats.url()), claim("a"));
        let grant = win(&old, &me).await;
        let stream = format!("KV_{}", Nats::BUCKET);
        let last = nats.api(&format!("STREAM.INFO.{stream}"), &Value::Null)["state"]["last_seq"].as_u64();
        nats.api(&format!("STREAM.DELETE.{stream}"), &Value::Null);
        nats.make_bucket(Nats::BUCKET, &json!({})).expect("a bucket");
        for _ in 0..last.expect("a revision") {
            nats.put(Nats::BUCKET, "billing", &[], b"somebody's");
        }
        // One ttl later nobody knows who may lead there.
        sleep(super::support::TTL / 2).await;
        let renewed = renew(&old, &me, &grant).await;
        assert!(matches!(renewed, Ok(Renewed::Lost(_))), "{renewed:?}");
    });
}

/// An old copy of the data is put back: the revisions repeat, the tokens do not.
#[test]
fn nats_an_old_copy_of_the_data_keeps_the_order_of_tokens() {
    let mut nats = nats();
    run(async {
        let (one, me) = (store(&nats.url()), claim("a"));
        let grant = win(&one, &me).await;
        one.release(&me, Some(&grant), None).await.expect("a release");
        let (data, copy) = (nats.dir().join("n0"), nats.dir().join("copy"));
        nats.stop(0);
        copy_all(&data, &copy);
        nats.restart(0);
        let late = claim("b");
        let forgotten = win(&one, &late).await;
        nats.stop(0);
        std::fs::remove_dir_all(&data).expect("the data");
        copy_all(&copy, &data);
        nats.restart(0);
        let next = win(&one, &claim("c")).await;
        assert!(next.token > forgotten.token, "{:?} after {:?}", next.token, forgotten.token);
        assert_eq!(next.authority, forgotten.authority, "a fence would refuse it");
        let renewed = renew(&one, &late, &forgotten).await;
        assert!(matches!(renewed, Ok(Renewed::Lost(_))), "{renewed:?}");
    });
}

/// A power failure as a machine shows it whose disk had not got the latest writes: a follower comes back with an old copy, the leader
/// of then not at all, and with a third server they are a majority. What was acknowledged is gone and its revision is given out
/// again. Nothing can keep the other from leading then; but tokens rise, and who led before ends at its next renewal.
#[test]
fn nats_7564_a_majority_that_lost_a_write_keeps_the_order_of_tokens() {
    let mut nats = cluster();
    run(async {
        let one = store(&nats.url());
        let me = claim("a");
        let grant = win(&one, &me).await;
        one.release(&me, Some(&grant), None).await.expect("a release");
        let leader = nats.leader_index();
        let (follower, third) = ((leader + 1) % 3, (leader + 2) % 3);
        let (data, copy) = (nats.dir().join(format!("n{follower}")), nats.dir().join("copy"));
        nats.stop(follower);
        copy_all(&data, &copy);
        nats.restart(follower);
        nats.kill(third);
        let late = claim("b");
        let forgotten = win(&one, &late).await;
        nats.kill(leader);
        nats.kill(follower);
        std::fs::remove_dir_all(&data).expect("the data");
        copy_all(&copy, &data);
        nats.launch(follower);
        nats.launch(third);
        for i in [follower, third] {
            let listens = || std::net::TcpStream::connect(&nats.endpoints()[i]).is_ok();
            assert!(testkit::wait_until(PATIENCE, listens), "server {i} does not come up");
        }
        nats.leader_index();
        let (two, other) = (store(&nats.url()), claim("c"));
        let next = win(&two, &other).await;
        assert!(next.token > forgotten.token, "{:?} after {:?}", next.token, forgotten.token);
        let renewed = renew(&one, &late, &forgotten).await;
        assert!(matches!(renewed, Ok(Renewed::Lost(_))), "{renewed:?}");
        let renewed = renew(&two, &other, &next).await;
        assert!(matches!(renewed, Ok(Renewed::Extended { .. })), "{renewed:?}");
    });
}

/// A restart forgets nothing, also after kill -9.
#[test]
fn nats_a_term_outlives_a_restart_of_its_only_server() {
    let mut nats = nats();
    run(async {
        leave_a_released_record(&nats.url()).await;
        let mut one = patient_candidate(&nats.url(), "one").await;
        let term = elected(&mut one).await;
        let until = term.valid_until();
        nats.kill(0);
        nats.restart(0);
        let renewed = async {
            while term.is_valid() && term.valid_until() <= until {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(LONG * 2, renewed).await.expect("an end");
        assert!(term.is_valid());
    });
}

/// A bucket that is deleted under a leader and not made again: the term ends in time, and the error says what to do.
#[test]
fn nats_a_bucket_that_is_deleted_under_a_leader_ends_its_term() {
    let nats = nats();
    run(async {
        let mut one = candidate(&nats.url(), "one").await;
        let term = elected(&mut one).await;
        nats.api(&format!("STREAM.DELETE.KV_{}", Nats::BUCKET), &Value::Null);
        let reason = timeout(PATIENCE, lost(&mut one)).await.expect("an end");
        assert!(!matches!(reason, LossReason::Superseded(_)), "nobody else leads: {reason:?}");
        assert!(!term.is_valid());
        nats.make_bucket(Nats::BUCKET, &json!({})).expect("a bucket");
        elected(&mut one).await;
    });
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("a file type").is_dir() {
            true => copy_all(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("a copy")),
        }
    }
}
