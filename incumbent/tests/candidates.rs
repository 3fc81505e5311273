//! Candidates, leaders and observers through the public API, on the memory backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use incumbent::{CampaignEvent, Election, ErrorKind, Leadership, LossReason, Settings, StopReason};
use tokio::sync::oneshot;

async fn election(name: &str, ttl_ms: u64) -> Election {
    let url = format!("memory:{name}?ttl={ttl_ms}ms");
    incumbent::connect(&url).await.expect("memory is always there").election("billing")
}

#[tokio::test]
async fn run_returns_the_output_of_the_work() {
    let election = election("output", 2000).await;
    let token = election.candidate("a").run(async |leadership| leadership.token()).await.unwrap();
    let later = election.candidate("a").run(async |leadership| leadership.token()).await.unwrap();
    assert!(token < later, "a new grant is a new term with a new token: {token:?} {later:?}");
}

#[tokio::test]
async fn an_address_that_would_break_a_line_is_refused() {
    let election = election("address", 2000).await;
    for address in ["", "a b", "a\nb"] {
        let error = election.candidate("a").advertise(address).campaign().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("without spaces and control characters"), "{error}");
    }
}

/// The two forms that the README shows compile: on the spot with references to captured state, and inside a spawned task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_takes_captured_references_and_can_be_spawned() {
    let election = election("spawned", 2000).await;
    let name = String::from("captured");
    let length = election.candidate("a").run(async |_| name.len()).await.unwrap();
    assert_eq!(length, 8);

    let other = election.clone();
    let task = tokio::spawn(async move {
        let name = String::from("moved in");
        other
            .candidate("b")
            .run(|leadership: Leadership| {
                let name = name.clone();
                async move {
                    leadership.check().unwrap();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    name.len()
                }
            })
            .await
    });
    assert_eq!(task.await.unwrap().unwrap(), 8);
}

#[tokio::test]
async fn one_leads_and_the_other_follows_when_it_is_done() {
    let election = election("two", 2000).await;
    let leading = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for id in ["a", "b", "c", "d"] {
        let (election, leading) = (election.clone(), leading.clone());
        tasks.push(tokio::spawn(async move {
            election
                .candidate(id)
                .run(async |_leadership| {
                    let leading = &leading;
                    assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "two leaders at once");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    leading.fetch_sub(1, Ordering::SeqCst);
                })
                .await
                .unwrap();
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn a_dropped_run_lets_the_lease_run_out() {
    let election = election("dropped", 1000).await;
    let (elected, wait) = oneshot::channel();
    let mut elected = Some(elected);
    let first = {
        let election = election.clone();
        tokio::spawn(async move {
            election
                .candidate("a")
                .run(|leadership| {
                    elected.take().unwrap().send(leadership).unwrap();
                    std::future::pending::<()>()
                })
                .await
        })
    };
    let old = wait.await.unwrap();
    assert!(old.is_valid());
    first.abort();
    let token = election.candidate("b").run(async |leadership| {
        assert!(!old.is_valid(), "the old term must be over before the next begins");
        leadership.token()
    });
    assert!(token.await.unwrap() > old.token());
}

#[tokio::test]
async fn shutdown_drains_while_the_term_is_still_valid() {
    let election = election("drain", 600).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let valid_while_draining = AtomicBool::new(false);
    let work = async |leadership: Leadership| {
        leadership.stopping().await;
        // Longer than the ttl: only a renewal while draining keeps it valid.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        valid_while_draining.store(leadership.is_valid(), Ordering::SeqCst);
        7
    };
    let run = election.candidate("a").run_until(stopped, work);
    let stopper = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        stop.send(()).unwrap();
    };
    let (output, ()) = tokio::join!(run, stopper);
    assert_eq!(output.unwrap(), Some(7));
    assert!(valid_while_draining.load(Ordering::SeqCst));
    assert_eq!(election.observe().await.unwrap().leader, None, "released");
}

#[tokio::test]
async fn work_that_overruns_the_drain_is_dropped_and_the_lease_runs_out() {
    let election = election("overrun", 1000).await;
    let candidate = election.candidate("a").drain(Some(Duration::from_millis(50)));
    let output =
        candidate.run_until(tokio::time::sleep(Duration::from_millis(50)), async |leadership: Leadership| {
            leadership.stopping().await;
            std::future::pending::<()>().await;
        });
    assert_eq!(output.await.unwrap(), None);
    assert!(election.observe().await.unwrap().leader.is_some(), "not released");
}

#[tokio::test]
async fn a_resigned_leader_lets_another_win_and_campaigns_again() {
    let election = election("resigned", 900).await;
    let mut a = election.candidate("a").campaign().unwrap();
    let first = elected(&mut a).await;
    let mut b = election.candidate("b").campaign().unwrap();
    first.resign();
    assert_eq!(lost(&mut a).await, LossReason::Stopped(StopReason::Resigned));
    assert!(!first.is_valid());
    let second = elected(&mut b).await;
    assert!(second.token() > first.token());
    b.stop(StopReason::Shutdown);
    b.work_stopped();
    assert!(elected(&mut a).await.token() > second.token());
}

#[tokio::test]
async fn a_handover_goes_to_the_candidate_that_was_named() {
    let election = election("handover", 1500).await;
    let mut a = election.candidate("a").campaign().unwrap();
    let first = elected(&mut a).await;
    let mut b = election.candidate("b").campaign().unwrap();
    let mut c = election.candidate("c").campaign().unwrap();
    for campaign in [&mut b, &mut c] {
        assert!(matches!(campaign.next().await, Some(CampaignEvent::LeaderChanged(Some(_)))));
    }
    let unknown =
        election.request_handover(Some("x".parse().unwrap()), Duration::from_secs(5)).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    assert!(["a", "b", "c"].iter().all(|id| unknown.to_string().contains(id)), "{unknown}");

    let asking = election.request_handover(Some("c".parse().unwrap()), Duration::from_secs(5));
    let going = async {
        assert_eq!(lost(&mut a).await, LossReason::Stopped(StopReason::Handover(Some("c".parse().unwrap()))));
    };
    let (asked, ()) = tokio::join!(asking, going);
    assert_eq!(Some(asked.unwrap()), first.token());
    assert!(elected(&mut c).await.token() > first.token());
}

/// Driver rule 5: nothing that the user does can starve a renewal.
#[tokio::test(flavor = "current_thread")]
async fn a_blocked_runtime_starves_no_renewal() {
    let election = election("blocked", 900).await;
    election
        .candidate("a")
        .run(async |leadership| {
            #[expect(clippy::disallowed_methods, reason = "blocks the only worker on purpose")]
            let end = std::time::Instant::now() + Duration::from_millis(2500);
            #[expect(clippy::disallowed_methods, reason = "blocks the only worker on purpose")]
            while std::time::Instant::now() < end {
                std::hint::spin_loop();
            }
            leadership.check().unwrap();
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_silent_leader_gives_up_its_term() {
    let election = election("silent", 900).await;
    let mut campaign = election.candidate("a").liveness(Duration::from_millis(400)).campaign().unwrap();
    let leadership = elected(&mut campaign).await;
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        leadership.alive();
    }
    assert!(leadership.is_stopping().is_none());
    assert_eq!(lost(&mut campaign).await, LossReason::Stopped(StopReason::Stalled));
}

#[tokio::test]
async fn a_checkpoint_passes_from_term_to_term_and_refuses_the_old_one() {
    let election = election("checkpoint", 2000).await;
    let old = election
        .candidate("a")
        .run(async |leadership| {
            assert_eq!(leadership.checkpoint().get().await.unwrap(), None);
            leadership.checkpoint().put(b"one").await.unwrap();
            leadership.token()
        })
        .await
        .unwrap();
    assert_eq!(election.checkpoint().unwrap().get().await.unwrap().as_deref(), Some(&b"one"[..]));
    election
        .candidate("b")
        .run(async |leadership| {
            assert_eq!(leadership.checkpoint().get().await.unwrap().as_deref(), Some(&b"one"[..]));
            let late = election.checkpoint().unwrap().put_under(old.unwrap(), b"late").await.unwrap_err();
            assert_eq!(late.kind(), ErrorKind::Fenced);
            leadership.checkpoint().put(b"two").await.unwrap();
        })
        .await
        .unwrap();
    assert_eq!(election.checkpoint().unwrap().get().await.unwrap().as_deref(), Some(&b"two"[..]));
}

#[tokio::test]
async fn an_observer_sees_terms_come_and_go() {
    let election = election("observed", 2000).await;
    let mut observer = election.observer().unwrap();
    assert_eq!(observer.next().await.unwrap().unwrap().leader, None);
    let mut campaign = election.candidate("a").advertise("10.0.0.7:8080").campaign().unwrap();
    let leadership = elected(&mut campaign).await;
    let leader = observer.next().await.unwrap().unwrap().leader.unwrap();
    assert_eq!(leader.contender.address.as_deref(), Some("10.0.0.7:8080"));
    assert_eq!(leader.token, leadership.token());
    campaign.stop(StopReason::Shutdown);
    campaign.work_stopped();
    while let Some(report) = observer.next().await {
        if report.unwrap().leader.is_none() {
            return;
        }
    }
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_with_the_arithmetic() {
    let election = incumbent::connect_with(
        "memory:settings",
        Settings { grace: Some(Duration::from_secs(10)), ..Settings::default() },
    )
    .await
    .unwrap()
    .election("billing");
    let error = election.candidate("a").campaign().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("grace 10 s"), "{error}");
    let connection = incumbent::connect("memory:names").await.unwrap();
    for name in ["", "a/b", "a b", "-x", "é"] {
        let error = connection.election(name).candidate("a").campaign().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName, "{name}");
    }
}

#[tokio::test]
async fn an_unknown_scheme_names_the_known_ones() {
    let error = incumbent::connect("etdc://h").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownScheme);
    assert!(error.to_string().contains("memory"), "{error}");
}

async fn elected(campaign: &mut incumbent::Campaign) -> Leadership {
    loop {
        match campaign.next().await.expect("the campaign goes on") {
            CampaignEvent::Elected(leadership) => return leadership,
            event => drop(event),
        }
    }
}

/// Plays work that stops at once when it is told to.
async fn lost(campaign: &mut incumbent::Campaign) -> LossReason {
    loop {
        match campaign.next().await.expect("the campaign goes on") {
            CampaignEvent::Stopping { .. } => campaign.work_stopped(),
            CampaignEvent::Lost(reason) => {
                campaign.work_stopped();
                return reason;
            }
            event => drop(event),
        }
    }
}
