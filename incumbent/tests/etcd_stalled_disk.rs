//! The disk of etcd's leader hangs. etcd 3.4.23 then goes on to answer keep-alives of leases whose keys are gone, and, when the
//! disk comes back, ends leases that a new leader keeps. A leader of ours must neither believe the one nor suffer the
//! other: at no moment are two leaderships valid, and where a healthy majority can be reached, none is lost.
#![cfg(feature = "etcd")]

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use incumbent::{Campaign, CampaignEvent, Leadership, Settings};
use testkit::stall::Stall;
use testkit::{Etcd, Version, now};
use tokio::time::{sleep, timeout};

/// Three election timeouts of etcd fit between a renewal and the moment at which an outage is declared.
const TTL: Duration = Duration::from_secs(10);
/// Longer than a lease that was renewed just before.
const STALL: Duration = Duration::from_secs(20);
/// After it, for what the old leader has in store.
const AFTERMATH: Duration = Duration::from_secs(6);

/// etcd copies what it has applied into its database ten times a second.
const QUIET: Duration = Duration::from_millis(500);

/// Which members the candidate knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Route {
    /// Only the one that is going to stall.
    Stalled,
    /// Only one that follows it.
    Follower,
    /// All, the one that is going to stall first.
    All,
}

/// Writes something now and then, as any cluster in use does, whatever comes of it.
struct Writer(Arc<AtomicBool>);

impl Writer {
    fn start(etcd: &Etcd) -> Writer {
        let stop = Arc::new(AtomicBool::new(false));
        let mut etcdctl = etcd.etcdctl_command();
        etcdctl.args(["--command-timeout=1s", "put", "unrelated", "x"]);
        etcdctl.stdout(Stdio::null()).stderr(Stdio::null());
        let stopped = Arc::clone(&stop);
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let _ = etcdctl.status();
                std::thread::sleep(QUIET);
            }
        });
        Writer(stop)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn candidate(endpoints: &[String], id: &str) -> Campaign {
    let settings = Settings { ttl: TTL, ..Settings::default() };
    let url = format!("etcd://{}", endpoints.join(","));
    let connection = incumbent::connect_with(&url, settings).await.expect("a valid URL");
    connection.election("billing").candidate(id).campaign().expect("a valid candidate")
}

async fn elected(campaign: &mut Campaign) -> Leadership {
    loop {
        match campaign.next().await.expect("the campaign goes on") {
            CampaignEvent::Elected(leadership) => return leadership,
            CampaignEvent::Lost(_) => campaign.work_stopped(),
            _ => {}
        }
    }
}

async fn run(version: Version, route: Route) {
    let etcd = Etcd::cluster(version, 3).start().expect("etcd starts");
    let stalled = etcd.leader_index();
    let all = etcd.endpoints();
    let member = |offset: usize| all[(stalled + offset) % 3].clone();
    let known = match route {
        Route::Stalled => vec![member(0)],
        Route::Follower => vec![member(1)],
        Route::All => vec![member(0), member(1), member(2)],
    };
    let mut holder = candidate(&known, "holder").await;
    let term = elected(&mut holder).await;
    let mut rival = candidate(&[member(2)], "rival").await;
    // Until the rival is in the queue.
    while !matches!(rival.next().await, Some(CampaignEvent::LeaderChanged(Some(_)))) {}
    // In a quiet moment between two renewals, so that what hangs is the log, with the next write, and not the copy of the
    // last one into the database, which would hang keep-alives too.
    term.extended(term.valid_until()).await;
    sleep(QUIET).await;
    let begin = now();
    let stall = Stall::fdatasync(etcd.pid(stalled), STALL);
    let _writer = Writer::start(&etcd);

    let watch_holder = async {
        loop {
            let event = holder.next().await.expect("the campaign goes on");
            if matches!(event, CampaignEvent::Stopping { .. } | CampaignEvent::Lost(_)) {
                holder.work_stopped();
            }
            if matches!(event, CampaignEvent::Lost(_)) {
                return event;
            }
        }
    };
    let watch_rival = async {
        let new = elected(&mut rival).await;
        let at = now();
        // The moment of its election, as the holder's own clock and knowledge judge it.
        (term.valid_until(), term.is_valid(), at, new)
    };
    let mut watch_rival = std::pin::pin!(watch_rival);
    let both = async {
        let (lost, won) = tokio::join!(watch_holder, &mut watch_rival);
        (lost, won)
    };
    match timeout(STALL + AFTERMATH, both).await {
        Ok((_, (until, valid, at, new))) => {
            assert!(!valid, "the holder believed in its term when the rival was elected");
            assert!(until <= at, "the holder trusted its term until {until:?}, the rival won at {at:?}");
            assert!(new.token() > term.token());
            assert_eq!(route, Route::Stalled, "lost {:?} after the stall began", at.since(begin));
        }
        Err(_) => {
            assert!(term.is_valid() || route == Route::Stalled, "the term is neither kept nor passed on");
        }
    }
    drop(stall);
}

fn test(version: Version, route: Route) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(run(version, route));
}

#[test]
fn on_3_4_a_client_of_the_stalled_leader_loses_without_overlap() {
    test(Version::V3_4, Route::Stalled);
}

#[test]
fn on_3_4_a_client_of_a_follower_keeps_its_term() {
    test(Version::V3_4, Route::Follower);
}

#[test]
fn on_3_4_a_client_of_all_members_keeps_its_term() {
    test(Version::V3_4, Route::All);
}

#[test]
fn on_3_5_a_client_of_the_stalled_leader_loses_without_overlap() {
    test(Version::V3_5, Route::Stalled);
}

#[test]
fn on_3_5_a_client_of_a_follower_keeps_its_term() {
    test(Version::V3_5, Route::Follower);
}

#[test]
fn on_3_5_a_client_of_all_members_keeps_its_term() {
    test(Version::V3_5, Route::All);
}
