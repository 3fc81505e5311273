//! Candidates on a real Kubernetes API server that is busy, restarted, cut off, compacted, or asked to let in others than before.
#![cfg(feature = "kubernetes")]

use std::time::Duration;

use incumbent::{Campaign, CampaignEvent, Connection, Leadership, LossReason, Settings};
use serde_json::{Value, json};
use testkit::kubernetes::{ADMIN, CANDIDATE, Request};
use testkit::{Direction, Kubernetes, Relay, now};
use tokio::time::{sleep, timeout};

/// Ample on a busy machine, for what takes milliseconds or waits for a lease to run out.
const PATIENCE: Duration = Duration::from_secs(90);

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

async fn connect(url: &str, ttl: Duration) -> Connection {
    let settings = Settings { ttl, ..Settings::default() };
    incumbent::connect_with(url, settings).await.expect("a valid URL")
}

async fn candidate(url: &str, id: &str, ttl: Duration) -> Campaign {
    connect(url, ttl).await.election("billing").candidate(id).campaign().expect("a valid candidate")
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

/// Waits until the candidate knows of a leader.
async fn follows(campaign: &mut Campaign) {
    wait(campaign, |event| matches!(event, CampaignEvent::LeaderChanged(Some(_))).then_some(())).await;
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A Lease that somebody held and gave back, so that the first candidate needs not wait.
fn prepare(server: &Kubernetes, name: &str) {
    server.create_lease(&json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": name },
        "spec": { "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z" },
    }));
}

fn asked(server: &Kubernetes, user: &str) -> Vec<Request> {
    server.requests().into_iter().filter(|request| request.user == user).collect()
}

/// How a URL reaches the server through a relay.
fn relayed(server: &Kubernetes) -> (Relay, String) {
    let relay = Relay::to(&server.endpoint());
    let user = json!({ "token": Kubernetes::token(ADMIN) });
    let file = server.write_kubeconfig("relayed", &relay.addr(), &user);
    (relay, format!("kubernetes:?kubeconfig={}", file.display()))
}

/// Counted by the API server itself, with a lease of 15 s, as client-go's default has it.
#[test]
fn a_leader_asks_six_times_a_minute_and_a_standby_hardly_ever() {
    let server = Kubernetes::options().audit().user("leader").user("standby").start().expect("it starts");
    prepare(&server, "billing");
    run(async {
        let mut leader = candidate(&server.url_as("leader"), "leader", secs(15)).await;
        let term = elected(&mut leader).await;
        let mut standby = candidate(&server.url_as("standby"), "standby", secs(15)).await;
        follows(&mut standby).await;
        sleep(secs(2)).await;
        let before = [asked(&server, "leader").len(), asked(&server, "standby").len()];
        sleep(secs(120)).await;
        let [leader_asked, standby_asked] = [("leader", before[0]), ("standby", before[1])]
            .map(|(user, before)| asked(&server, user)[before..].to_vec());
        assert!(term.is_valid());
        println!(
            "in two minutes the leader asked {} times, the standby {}",
            leader_asked.len(),
            standby_asked.len()
        );
        // One more may fall on the edge of the time that is looked at.
        assert!(leader_asked.len() <= 13, "{leader_asked:?}");
        assert!(leader_asked.len() >= 8, "it must renew: {leader_asked:?}");
        assert!(standby_asked.len() <= 2, "{standby_asked:?}");
        for user in ["leader", "standby"] {
            let watches = asked(&server, user).iter().filter(|request| request.verb == "watch").count();
            assert_eq!(watches, 1, "{user}");
        }
    });
}

/// The API server restarts, its etcd is compacted under it (410 Gone), watches end: neither the term nor the quick hand-over suffers.
#[test]
fn a_watch_that_ends_is_opened_again() {
    let mut server = Kubernetes::options().audit().user("standby").start().expect("it starts");
    prepare(&server, "billing");
    run(async {
        let mut leader = candidate(&server.url(), "leader", secs(40)).await;
        let term = elected(&mut leader).await;
        let mut standby = candidate(&server.url_as("standby"), "standby", secs(40)).await;
        follows(&mut standby).await;
        server.restart();
        let watches = |server: &Kubernetes| {
            asked(server, "standby")
                .iter()
                .filter(|request| request.verb == "watch" && request.code == 200)
                .count()
        };
        let again = async {
            while watches(&server) < 2 {
                sleep(secs(1)).await
            }
        };
        timeout(PATIENCE, again).await.expect("another watch");

        // While the API server sleeps, what it would tell next is compacted away.
        server.pause();
        for number in 0..50 {
            server.etcd().etcdctl_ok(&["put", "/registry/leases/default/junk", &number.to_string()]);
        }
        let status = server.etcd().etcdctl_ok(&["endpoint", "status", "-w", "json"]);
        let status: Value = serde_json::from_str(&status).expect("JSON");
        let revision = status[0]["Status"]["header"]["revision"].as_u64().expect("a revision");
        server.etcd().etcdctl_ok(&["del", "/registry/leases/default/junk"]);
        server.etcd().etcdctl_ok(&["compact", &revision.to_string()]);
        server.resume();
        sleep(secs(5)).await;
        assert!(term.is_valid());
        let stopped = now();
        leader.stop(incumbent::StopReason::Shutdown);
        wait(&mut leader, |event| matches!(event, CampaignEvent::Ended).then_some(())).await;
        elected(&mut standby).await;
        assert!(now().since(stopped) < secs(35), "it waited for the lease instead of being told");
    });
}

/// More candidates than the API server lets in at a time: it answers 429 with Retry-After, and all get their turn.
#[test]
fn too_many_requests_are_waited_out() {
    let server = Kubernetes::options()
        .audit()
        .flag("--enable-priority-and-fairness=false")
        .flag("--max-requests-inflight=2")
        .flag("--max-mutating-requests-inflight=1")
        .start()
        .expect("it starts");
    let role = include_str!("../../docs/backends/kubernetes.md");
    let role = role.split_once("```yaml\n").and_then(|(_, rest)| rest.split_once("```")).expect("a Role").0;
    // Administrators are not throttled.
    let role = role.lines().filter(|line| !line.contains("resourceNames")).collect::<Vec<_>>().join("\n");
    server.kubectl_ok(&["apply", "-f", "-"], &role);
    server.kubectl_ok(&["create", "rolebinding", "all", "--role=incumbent-billing", "--user", CANDIDATE], "");
    run(async {
        let mut campaigns = Vec::new();
        for number in 0..30 {
            prepare(&server, &format!("busy-{number}"));
        }
        for number in 0..30 {
            let connection = connect(&server.url_as(CANDIDATE), secs(15)).await;
            let election = connection.election(format!("busy-{number}"));
            campaigns.push(election.candidate("only").campaign().expect("a candidate"));
        }
        for campaign in &mut campaigns {
            assert!(elected(campaign).await.is_valid());
        }
        let throttled = asked(&server, CANDIDATE).iter().filter(|request| request.code == 429).count();
        println!("{throttled} requests were throttled");
        assert!(throttled > 0, "the server was not busy enough for this test to mean anything");
    });
}

/// etcd behind the API stands still: requests time out or are answered 5xx. The leader gives up in time, and leads again.
#[test]
fn an_api_server_without_its_etcd_costs_the_term_and_no_more() {
    let mut server = Kubernetes::start().expect("it starts");
    prepare(&server, "billing");
    run(async {
        let mut leader = candidate(&server.url(), "leader", secs(6)).await;
        let term = elected(&mut leader).await;
        server.etcd().pause(0);
        lost(&mut leader).await;
        assert!(!term.is_valid());
        server.etcd().resume(0);
        assert!(elected(&mut leader).await.token() > term.token());
    });
}

/// k8s_44887, E1: a renewal that is committed and answered late gives no trust beyond what its send gives.
#[test]
fn k8s_44887_a_late_answer_counts_from_its_request() {
    let server = Kubernetes::start().expect("it starts");
    prepare(&server, "billing");
    let (relay, url) = relayed(&server);
    run(async {
        let ttl = secs(6);
        let mut slow = candidate(&url, "slow", ttl).await;
        let term = elected(&mut slow).await;
        let mut other = candidate(&server.url(), "other", ttl).await;
        follows(&mut other).await;
        // Requests go through, answers do not: the store is renewed for a while, and the leader must not count that.
        relay.hold(Direction::Answers);
        let begun = now();
        lost(&mut slow).await;
        assert!(!term.is_valid());
        assert!(now().since(begun) < ttl + secs(2), "it trusted what was never answered");
        let next = elected(&mut other).await;
        assert!(next.token() > term.token());
        relay.pass(Direction::Answers);
        sleep(secs(2)).await;
        assert!(next.is_valid() && !term.is_valid());
    });
}

/// Credentials change under a leader: the kubeconfig is read anew when they are refused, without a loss of the term.
#[test]
fn credentials_that_were_renewed_are_taken_up() {
    let mut server = Kubernetes::options().user("rotated").start().expect("it starts");
    prepare(&server, "billing");
    run(async {
        let mut leader = candidate(&server.url_as("rotated"), "leader", secs(60)).await;
        let term = elected(&mut leader).await;
        server.change_token("rotated", "another-token");
        server.write_kubeconfig("rotated", &server.endpoint(), &json!({ "token": "another-token" }));
        server.restart();
        let before = server.lease("billing").expect("a Lease");
        let renewed = async {
            loop {
                let lease = server.lease("billing").expect("a Lease");
                if lease["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"] {
                    return;
                }
                sleep(secs(1)).await;
            }
        };
        timeout(PATIENCE, renewed).await.expect("a renewal with the new token");
        assert!(term.is_valid());
    });
}

/// renewal-proofs: a Lease that is deleted while a renewal is on its way is not made anew by it, and the term is lost.
#[test]
fn create_on_put_a_late_renewal_does_not_bring_a_deleted_lease_back() {
    let server = Kubernetes::start().expect("it starts");
    prepare(&server, "billing");
    let (relay, url) = relayed(&server);
    run(async {
        let mut leader = candidate(&url, "leader", secs(9)).await;
        let term = elected(&mut leader).await;
        let uid = server.lease("billing").expect("a Lease")["metadata"]["uid"].clone();
        relay.hold(Direction::Requests);
        sleep(secs(4)).await;
        server.delete_lease("billing");
        relay.pass(Direction::Requests);
        lost(&mut leader).await;
        assert!(!term.is_valid());
        let again = elected(&mut leader).await;
        assert!(again.token() > term.token(), "{:?} is not above {:?}", again.token(), term.token());
        assert_ne!(server.lease("billing").expect("a Lease")["metadata"]["uid"], uid);
    });
}

/// What the traps look like on this very server, so that the guards against them guard against something.
#[test]
fn the_api_servers_traps_are_real() {
    let server = Kubernetes::start().expect("it starts");
    prepare(&server, "billing");
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/billing";
    let put = |lease: &Value| {
        let output = server.kubectl(&["replace", "--raw", path, "-f", "-"], &lease.to_string());
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.success(), answer, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let lease = server.lease("billing").expect("a Lease");
    let (done, answer, _) = put(&lease);
    let same = answer["metadata"]["resourceVersion"] == lease["metadata"]["resourceVersion"];
    assert!(done && same, "a PUT that changes nothing succeeds and proves nothing: {answer}");

    server.delete_lease("billing");
    let (done, _, said) = put(&lease);
    assert!(!done && said.contains("UID"), "with the uid it is refused: {said}");
    let mut without = lease.clone();
    without["metadata"].as_object_mut().expect("metadata").remove("uid");
    let (done, answer, said) = put(&without);
    assert!(done, "{said}");
    assert_ne!(answer["metadata"]["uid"], lease["metadata"]["uid"], "a late PUT made the Lease anew");
}
