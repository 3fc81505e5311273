//! The rules on Kubernetes: a real API server on a real etcd, reached through a relay, with the faults that operators and machines
//! make.

mod served;

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook, Suite};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Result};
use serde_json::json;
use testkit::Kubernetes;
use testkit::kubernetes::ADMIN;

use served::Served;

/// Longer than any case stalls a disk.
const STALL: Duration = Duration::from_secs(120);

/// A server that starts when it is first needed.
struct Cluster {
    served: Served<Kubernetes>,
    /// With a kubeconfig file that leads through the relay.
    url: OnceLock<String>,
}

impl Cluster {
    fn new() -> Cluster {
        let start = || Kubernetes::start().expect("the API server starts");
        Cluster { served: Served::new(start, |server| vec![server.endpoint()]), url: OnceLock::new() }
    }

    fn url(&self) -> &str {
        self.url.get_or_init(|| {
            let running = self.served.running();
            let token = json!({ "token": Kubernetes::token(ADMIN) });
            let file = running.servers().write_kubeconfig("relayed", &running.hosts(), &token);
            format!("kubernetes:?kubeconfig={}", file.display())
        })
    }
}

impl Harness for Cluster {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory(self.url(), &settings)?()
        })
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn delete<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let election = election.to_string();
        self.served.by_hand(move |running| running.servers().delete_lease(&election))
    }

    /// Somebody writes his own name, as a client of another kind does.
    fn replace<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let election = election.to_string();
        self.served.by_hand(move |running| {
            running
                .servers()
                .edit_lease(&election, |lease| lease["spec"]["holderIdentity"] = "somebody".into());
        })
    }

    fn delete_place<'a>(&'a self, _claim: &'a Claim) -> Hook<'a> {
        Err("a Lease does not show who waits")
    }

    fn end_session<'a>(&'a self, _election: &'a ElectionName) -> Hook<'a> {
        Err("a record store has no sessions")
    }

    fn restart(&self) -> Hook<'_> {
        self.served.by_hand(|running| {
            let mut server = running.servers();
            server.kill();
            server.etcd().restart(0);
            server.restart();
        })
    }

    fn back_up(&self, put_back: bool) -> Hook<'_> {
        self.served.by_hand(move |running| {
            let mut server = running.servers();
            server.kill();
            server.etcd().stop(0);
            served::back_up(&server.etcd().dir().join("n0"), put_back);
            server.etcd().restart(0);
            server.restart();
        })
    }

    fn stall(&self, on: bool) -> Hook<'_> {
        self.served.stall(on, |server| vec![server.etcd().stall_fsync(0, STALL)])
    }

    fn hold_answers(&self, on: bool) -> Hook<'_> {
        self.served.hold_answers(on)
    }

    fn step_wall_clock(&self, _seconds: i64) -> Hook<'_> {
        Err("done in a process with a wall clock of its own, by the test kubernetes_wall_clock")
    }

    /// Each request is a stream of its own, and the API server serves them side by side.
    fn reads_out_of_turn(&self) -> bool {
        true
    }

    /// Leases and connections.
    fn objects(&self) -> Hook<'_, u64> {
        self.served.by_hand(|running| {
            let prefix = "/registry/leases/default/";
            let keys = running.servers().etcd().etcdctl_ok(&["get", prefix, "--prefix", "--keys-only"]);
            keys.lines().filter(|line| !line.is_empty()).count() as u64 + running.connections()
        })
    }

    fn requests(&self) -> Hook<'_, u64> {
        self.served.by_hand(|running| {
            let metrics = running.servers().kubectl_ok(&["get", "--raw", "/metrics"], "");
            let of_leases =
                |line: &&str| line.starts_with("apiserver_request_total{") && line.contains("\"leases\"");
            let count = |line: &str| line.rsplit_once(' ').and_then(|(_, count)| count.parse::<f64>().ok());
            metrics.lines().filter(of_leases).filter_map(count).sum::<f64>() as u64
        })
    }
}

fn main() -> ExitCode {
    Suite::new(Cluster::new()).jobs(12).main()
}
