//! Candidates on a real etcd that operators, outages and other programs interfere with.
#![cfg(feature = "etcd")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use incumbent::{
    Campaign, CampaignEvent, Connection, ErrorKind, Leadership, LossReason, Settings, StopReason,
};
use incumbent_core::{Acquired, CandidateId, Claim, ElectionName, HandoverRequest, Nonce, Note, Swapped};
use testkit::{Etcd, Version, now};
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(4);
/// Ample on a busy machine, for what takes milliseconds or waits for a lease to run out.
const PATIENCE: Duration = Duration::from_secs(60);

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

async fn connect(url: &str) -> Connection {
    let settings = Settings { ttl: TTL, ..Settings::default() };
    incumbent::connect_with(url, settings).await.expect("a valid URL")
}

/// A candidate with a connection, that is a lease, of its own.
async fn candidate(url: &str, id: &str) -> Campaign {
    connect(url).await.election("billing").candidate(id).campaign().expect("a valid candidate")
}

/// The next event that is looked for. What is lost meanwhile is confirmed to have stopped.
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

async fn elected(campaign: &mut Campaign) -> Leadership {
    wait(campaign, |event| match event {
        CampaignEvent::Elected(leadership) => Some(leadership.clone()),
        _ => None,
    })
    .await
}

async fn lost(campaign: &mut Campaign) -> LossReason {
    wait(campaign, |event| match event {
        CampaignEvent::Lost(reason) => Some(reason.clone()),
        _ => None,
    })
    .await
}

/// Waits until the candidate knows of another leader, that is, until it stands in the queue.
async fn queued(campaign: &mut Campaign) {
    wait(campaign, |event| matches!(event, CampaignEvent::LeaderChanged(Some(_))).then_some(())).await;
}

/// The keys of the election, in the order of the queue.
fn keys(etcd: &Etcd) -> Vec<String> {
    let text = etcd.etcdctl_ok(&["get", "billing/", "--prefix", "--keys-only", "--sort-by=CREATE"]);
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The lease of a key of ours; its name says which one until it was moved.
fn lease_of(key: &str) -> &str {
    key.rsplit('/').next().expect("a name").split('.').next().expect("a lease")
}

#[test]
fn a_leader_whose_lease_was_revoked_is_told_long_before_it_would_have_run_out() {
    for version in Version::ALL {
        let etcd = Etcd::single(version).start().expect("etcd starts");
        run(async {
            let mut one = candidate(&etcd.url(), "one").await;
            let first = elected(&mut one).await;
            etcd.etcdctl_ok(&["lease", "revoke", lease_of(&keys(&etcd)[0])]);
            assert!(matches!(lost(&mut one).await, LossReason::Superseded(_)));
            assert!(!first.is_valid());
            let second = elected(&mut one).await;
            assert!(second.token() > first.token());
        });
    }
}

#[test]
fn a_standby_whose_lease_was_revoked_queues_anew_and_wins_a_term_that_lasts() {
    for version in Version::ALL {
        let etcd = Etcd::single(version).start().expect("etcd starts");
        run(async {
            let mut one = candidate(&etcd.url(), "one").await;
            elected(&mut one).await;
            let mut two = candidate(&etcd.url(), "two").await;
            queued(&mut two).await;
            let before = keys(&etcd);
            etcd.etcdctl_ok(&["lease", "revoke", lease_of(&before[1])]);
            let new = async {
                loop {
                    let keys = keys(&etcd);
                    if keys.len() == 2 && keys[1] != before[1] {
                        return;
                    }
                    sleep(Duration::from_millis(20)).await;
                }
            };
            timeout(PATIENCE, new).await.expect("a new key in time");
            one.stop(StopReason::Shutdown);
            let leadership = elected(&mut two).await;
            sleep(TTL * 2).await;
            assert!(leadership.is_valid(), "its lease is alive and kept alive");
        });
    }
}

#[test]
fn a_leader_whose_key_was_deleted_or_overwritten_is_told_at_once() {
    let etcd = Etcd::single(Version::V3_5).start().expect("etcd starts");
    run(async {
        let mut one = candidate(&etcd.url(), "one").await;
        let first = elected(&mut one).await;
        etcd.etcdctl_ok(&["del", &keys(&etcd)[0]]);
        assert!(matches!(lost(&mut one).await, LossReason::Superseded(_)));
        let second = elected(&mut one).await;
        assert!(second.token() > first.token());
        etcd.etcdctl_ok(&["put", &keys(&etcd)[0], "mine"]);
        assert!(matches!(lost(&mut one).await, LossReason::Superseded(_)));
        // What was put there by hand has no lease; the candidate whose key it was takes it away.
        assert!(elected(&mut one).await.token() > second.token());
    });
}

#[test]
fn a_standby_whose_key_was_overwritten_takes_it_away_and_queues_anew() {
    let etcd = Etcd::single(Version::V3_5).start().expect("etcd starts");
    run(async {
        let mut one = candidate(&etcd.url(), "one").await;
        let first = elected(&mut one).await;
        let mut two = candidate(&etcd.url(), "two").await;
        queued(&mut two).await;
        // Without a lease it would stand before everyone who comes later, for ever.
        let overwritten = keys(&etcd)[1].clone();
        etcd.etcdctl_ok(&["put", &overwritten, "mine"]);
        let new = async {
            while keys(&etcd).len() != 2 || keys(&etcd).contains(&overwritten) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, new).await.expect("a new key in time");
        one.stop(StopReason::Shutdown);
        assert!(elected(&mut two).await.token() > first.token());
    });
}

#[test]
fn a_standby_is_woken_after_a_compaction_and_a_restart() {
    for version in Version::ALL {
        let mut etcd = Etcd::single(version).start().expect("etcd starts");
        run(async {
            let mut one = candidate(&etcd.url(), "one").await;
            let first = elected(&mut one).await;
            let mut two = candidate(&etcd.url(), "two").await;
            queued(&mut two).await;
            for value in 0..5 {
                etcd.etcdctl_ok(&["put", "unrelated", &value.to_string()]);
            }
            let status = etcd.etcdctl_ok(&["get", "unrelated", "-w", "json"]);
            let revision = status.split("\"revision\":").nth(1).expect("a revision");
            let revision: String = revision.chars().take_while(char::is_ascii_digit).collect();
            etcd.etcdctl_ok(&["compact", &revision]);
            etcd.kill(0);
            etcd.restart(0);
            // It may have taken longer than a lease lives; whoever leads now, the other follows at once.
            let begin = now();
            let (mut leader, mut standby) = match first.is_valid() {
                true => (one, two),
                false => {
                    let leadership = timeout(PATIENCE, async {
                        tokio::select! { term = elected(&mut one) => (term, true), term = elected(&mut two) => (term, false) }
                    });
                    if leadership.await.expect("a leader in time").1 { (one, two) } else { (two, one) }
                }
            };
            sleep(Duration::from_millis(500)).await;
            leader.stop(StopReason::Shutdown);
            wait(&mut leader, |event| matches!(event, CampaignEvent::Ended).then_some(())).await;
            let second = elected(&mut standby).await;
            assert!(second.token() > first.token(), "after {:?}", now().since(begin));
        });
    }
}

#[test]
fn an_etcd_that_is_frozen_or_without_quorum_ends_the_term_in_time_and_for_good() {
    let mut etcd = Etcd::cluster(Version::V3_5, 3).start().expect("etcd starts");
    run(async {
        let mut one = candidate(&etcd.url(), "one").await;
        let first = elected(&mut one).await;
        let mut two = candidate(&etcd.url(), "two").await;
        queued(&mut two).await;
        for member in 0..3 {
            etcd.pause(member);
        }
        let told = wait(&mut one, |event| match event {
            CampaignEvent::Stopping { reason, until } => Some((reason.clone(), *until, now())),
            _ => None,
        });
        let (reason, until, at) = told.await;
        assert_eq!(reason, StopReason::Outage);
        assert!(at < until.expect("a deadline"), "told before the deadline");
        lost(&mut one).await;
        assert!(!first.is_valid());
        for member in 0..3 {
            etcd.resume(member);
        }
        let either = async {
            tokio::select! { term = elected(&mut one) => term, term = elected(&mut two) => term }
        };
        let second = timeout(PATIENCE, either).await.expect("a leader in time");
        assert!(second.token() > first.token() && !first.is_valid());

        let leader = etcd.leader_index();
        etcd.kill(leader);
        etcd.kill((leader + 1) % 3);
        timeout(PATIENCE, second.lost()).await.expect("the term ends without a quorum");
        etcd.restart(leader);
        let either = async {
            tokio::select! { term = elected(&mut one) => term, term = elected(&mut two) => term }
        };
        let third = timeout(PATIENCE, either).await.expect("a leader in time");
        assert!(third.token() > second.token());
    });
}

#[test]
fn tokens_of_users_expire_under_a_leader_and_a_standby_and_neither_notices() {
    for version in Version::ALL {
        let etcd = Etcd::single(version).flag("--auth-token-ttl=1").auth("alice", "s3cret").start();
        let etcd = etcd.expect("etcd starts");
        run(async {
            let mut one = candidate(&etcd.url(), "one").await;
            let first = elected(&mut one).await;
            let mut two = candidate(&etcd.url(), "two").await;
            queued(&mut two).await;
            sleep(TTL * 3).await;
            assert!(first.is_valid());
            one.stop(StopReason::Shutdown);
            elected(&mut two).await;
        });
    }
}

#[test]
fn what_cannot_work_is_said_with_what_to_do() {
    let etcd = Etcd::single(Version::V3_5).auth("alice", "s3cret").start().expect("etcd starts");
    let tls = Etcd::single(Version::V3_5).tls().start().expect("etcd starts");
    let host = &etcd.endpoints()[0];
    let mut cases = vec![
        (format!("etcd://alice:wrong@{host}"), ErrorKind::Denied, "check user and password"),
        (format!("etcd://{host}"), ErrorKind::Denied, "password_file="),
        (format!("etcd://{host}?tls=on"), ErrorKind::Denied, "tls=off"),
        (format!("etcd://{}", tls.endpoints()[0]), ErrorKind::Denied, "tls=on"),
        ("etcd://127.0.0.1:1".to_owned(), ErrorKind::Unavailable, "127.0.0.1:1"),
    ];
    cases.push((
        format!("etcd://{}?tls=on&ca=/nowhere.pem", tls.endpoints()[0]),
        ErrorKind::InvalidConfig,
        "/nowhere.pem",
    ));
    run(async {
        for (url, kind, advice) in cases {
            let mut campaign = candidate(&url, "one").await;
            let trouble = wait(&mut campaign, |event| match event {
                CampaignEvent::Trouble(error) => Some(error.clone()),
                _ => None,
            });
            let error = trouble.await;
            assert_eq!(error.kind(), kind, "{url}: {error}");
            assert!(error.to_string().contains(advice), "{url}: {error}");
            assert!(!format!("{error:?}").contains("wrong"), "{error:?}");
        }
    });
}

#[test]
fn two_candidates_of_one_process_share_a_lease_and_exclude_each_other() {
    let etcd = Etcd::single(Version::V3_5).start().expect("etcd starts");
    run(async {
        let election = connect(&etcd.url()).await.election("billing");
        let mut one = election.candidate("one").campaign().expect("a candidate");
        let first = elected(&mut one).await;
        let mut two = election.candidate("two").campaign().expect("a candidate");
        queued(&mut two).await;
        assert_eq!(etcd.etcdctl_ok(&["lease", "list"]).lines().count(), 2, "a heading and one lease");
        one.stop(StopReason::Shutdown);
        let second = elected(&mut two).await;
        assert!(second.token() > first.token() && !first.is_valid());
    });
}

#[test]
fn a_thousand_elections_of_one_process_share_a_lease_and_leave_nothing_behind() {
    const ELECTIONS: usize = 1000;
    let etcd = Etcd::single(Version::V3_5).start().expect("etcd starts");
    run(async {
        // The default ttl: the machine may be busy, and this is not about speed.
        let connection = incumbent::connect(&etcd.url()).await.expect("a valid URL");
        let ttl = connection.settings().ttl;
        let mut campaigns: Vec<Campaign> = (0..ELECTIONS)
            .map(|number| {
                connection.election(format!("e{number}")).candidate("one").campaign().expect("a candidate")
            })
            .collect();
        let mut terms = Vec::new();
        for campaign in &mut campaigns {
            terms.push(elected(campaign).await);
        }
        assert_eq!(etcd.etcdctl_ok(&["lease", "list"]).lines().count(), 2, "a heading and one lease");
        let before = requests(&etcd);
        sleep(ttl).await;
        let after = requests(&etcd);
        assert!(terms.iter().all(Leadership::is_valid));
        // One ttl is three rounds, and one more may fall into it; a round is a keep-alive and nine guards.
        let (kept, written, read) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
        assert!((2..=5).contains(&kept), "{kept} keep-alives in one ttl");
        assert!((18..=45).contains(&written), "{written} transactions in one ttl");
        assert_eq!(read, 0, "reads in one ttl");
        for campaign in &campaigns {
            campaign.stop(StopReason::Shutdown);
        }
        for campaign in &mut campaigns {
            wait(campaign, |event| matches!(event, CampaignEvent::Ended).then_some(())).await;
        }
        assert_eq!(etcd.etcdctl_ok(&["get", "", "--prefix", "--keys-only"]), "");
        let gone = async {
            while etcd.etcdctl_ok(&["lease", "list"]).lines().count() > 1 {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(PATIENCE, gone).await.expect("the lease is given back when nothing needs it");
    });
}

/// Waits until a waiting candidate shows this leader. On the way it may show one that stood first for a moment, and made way for
/// the one that was asked for.
async fn shows(campaign: &mut Campaign, id: &str) {
    wait(campaign, |event| match event {
        CampaignEvent::LeaderChanged(Some(leader)) => (leader.contender.id == id).then_some(()),
        _ => None,
    })
    .await;
}

#[test]
fn candidates_far_behind_learn_who_leads_although_their_predecessor_stays() {
    for version in Version::ALL {
        let etcd = Etcd::single(version).start().expect("etcd starts");
        run(async {
            let mut one = candidate(&etcd.url(), "one").await;
            elected(&mut one).await;
            let mut waiting = Vec::new();
            for id in ["two", "three", "four", "five"] {
                let mut campaign = candidate(&etcd.url(), id).await;
                shows(&mut campaign, "one").await;
                waiting.push(campaign);
            }
            let [mut two, mut three, mut four, mut five]: [Campaign; 4] =
                waiting.try_into().expect("four of them");
            one.stop(StopReason::Shutdown);
            tokio::join!(lost(&mut one), elected(&mut two));
            for campaign in [&mut three, &mut four, &mut five] {
                shows(campaign, "two").await;
            }
            let election = connect(&etcd.url()).await.election("billing");
            let transfer = election.request_handover(Some("four".parse().expect("an id")), PATIENCE);
            let (asked, ..) = tokio::join!(transfer, lost(&mut two), elected(&mut four));
            asked.expect("it hands over");
            for campaign in [&mut three, &mut five] {
                shows(campaign, "four").await;
            }
            // By then the one that has handed over waits again, and nobody does anything.
            shows(&mut two, "four").await;
            sleep(TTL / 2).await;
            let before = requests(&etcd);
            sleep(TTL).await;
            let after = requests(&etcd);
            assert!(
                after.1 - before.1 <= 5,
                "{} transactions in one ttl: only the leader's",
                after.1 - before.1
            );
            assert_eq!(after.2 - before.2, 0, "reads in one ttl");
        });
    }
}

/// The moment between the end of one term and the begin of the next, at which an observer may look.
#[test]
fn the_time_since_which_a_candidate_leads_is_not_that_since_which_it_waited() {
    let etcd = Etcd::single(Version::V3_5).start().expect("etcd starts");
    run(async {
        let settings = Settings { ttl: TTL, ..Settings::default() };
        let backend =
            incumbent::backend::factory(&etcd.url(), &settings).expect("a valid URL")().expect("etcd");
        let claim = |id: &str, nonce| Claim {
            election: ElectionName::new("billing").expect("a name"),
            id: CandidateId::new(id).expect("an id"),
            nonce: Nonce(nonce),
            address: None,
            ttl: TTL,
        };
        let (one, two) = (claim("one", 1), claim("two", 2));
        let leader = async || {
            let seen = backend.observe(&one.election).await.expect("an answer");
            let leader = seen.leader.expect("a leader");
            (leader.contender.id, leader.since_unix_ms)
        };
        let begin = unix_ms();
        assert!(matches!(backend.try_acquire(&one).await, Ok(Acquired::Granted(_))));
        let (id, since) = leader().await;
        assert_eq!(id, "one");
        assert!((begin..=unix_ms()).contains(&since.expect("it led from the first moment")));
        assert!(matches!(backend.try_acquire(&two).await, Ok(Acquired::Held { .. })));
        backend.release(&one, None, None).await.expect("an answer");
        let end = unix_ms();
        assert_eq!(leader().await, ("two".to_owned(), None), "it does not know yet that it leads");
        assert!(matches!(backend.try_acquire(&two).await, Ok(Acquired::Granted(_))));
        assert!(leader().await.1.expect("it leads") >= end);
    });
}

/// A standby that was frozen while it was handed the election hears of the request and of the leader's end at once, before it
/// looks. It must not rest on what it saw before.
#[test]
fn a_standby_that_hears_of_a_request_and_the_end_at_once_leads() {
    let etcd = Etcd::single(Version::V3_5).start().expect("etcd starts");
    run(async {
        let settings = Settings { ttl: TTL, ..Settings::default() };
        let backend =
            incumbent::backend::factory(&etcd.url(), &settings).expect("a valid URL")().expect("etcd");
        let claim = |id: &str, nonce| Claim {
            election: ElectionName::new("billing").expect("a name"),
            id: CandidateId::new(id).expect("an id"),
            nonce: Nonce(nonce),
            address: None,
            ttl: TTL,
        };
        let (one, two) = (claim("one", 1), claim("two", 2));
        let Ok(Acquired::Granted(grant)) = backend.try_acquire(&one).await else {
            panic!("nobody else is there")
        };
        let mut hints = backend.watch(&one.election, Some(&two)).expect("etcd tells of changes");
        assert!(matches!(backend.try_acquire(&two).await, Ok(Acquired::Held { .. })));
        // The hints begin to flow, and it comes to rest.
        let quiet = timeout(Duration::from_millis(500), hints.next()).await;
        assert!(quiet.is_err(), "nothing has happened");
        assert!(matches!(backend.try_acquire(&two).await, Ok(Acquired::Held { .. })));

        let request = HandoverRequest { token: grant.token.expect("a token"), to: None };
        let note = Note::Handover;
        let asked = backend.swap_note(&one.election, note, None, request.token, request.encode()).await;
        assert!(matches!(asked, Ok(Swapped::Done { .. })));
        backend.release(&one, Some(&grant), None).await.expect("an answer");
        for _ in 0..2 {
            let heard = timeout(Duration::from_secs(20), hints.next()).await.expect("a hint in time");
            heard.expect("the stream goes on").expect("no error");
        }
        let acquired = backend.try_acquire(&two).await;
        assert!(matches!(acquired, Ok(Acquired::Granted(_))), "{acquired:?}");
    });
}

#[expect(clippy::disallowed_methods, reason = "what is shown to people is the wall clock's")]
fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
}

/// How many keep-alives, transactions and reads etcd has received.
fn requests(etcd: &Etcd) -> (u64, u64, u64) {
    let mut connection = TcpStream::connect(&etcd.endpoints()[0]).expect("a connection");
    connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("a request");
    let mut text = String::new();
    connection.read_to_string(&mut text).expect("an answer");
    let count = |method: &str| {
        let of_method = format!("grpc_method=\"{method}\"");
        let lines = text
            .lines()
            .filter(|line| line.starts_with("grpc_server_msg_received_total{") && line.contains(&of_method));
        lines
            .map(|line| line.rsplit(' ').next().expect("a number").parse::<f64>().expect("a number") as u64)
            .sum()
    };
    (count("LeaseKeepAlive"), count("Txn"), count("Range"))
}
