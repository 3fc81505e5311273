//! The rules on Kubernetes: a real API server on a real etcd, reached through a relay, with the faults that operators and machines
//! make.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook, Suite};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Error, ErrorKind, Result};
use serde_json::json;
use testkit::kubernetes::ADMIN;
use testkit::{Direction, Kubernetes, Relay, Stall};

/// Longer than any case stalls a disk.
const STALL: Duration = Duration::from_secs(120);

/// A server that starts when it is first needed.
#[derive(Default)]
struct Cluster(Arc<OnceLock<Running>>);

struct Running {
    server: Mutex<Kubernetes>,
    relay: Relay,
    stall: Mutex<Option<Stall>>,
    url: String,
}

impl Running {
    fn start() -> Running {
        let server = Kubernetes::start().expect("the API server starts");
        let relay = Relay::to(&server.endpoint());
        let token = json!({ "token": Kubernetes::token(ADMIN) });
        let kubeconfig = server.write_kubeconfig("through-the-relay", &relay.addr(), &token);
        let url = format!("kubernetes:?kubeconfig={}", kubeconfig.display());
        Running { server: Mutex::new(server), relay, stall: Mutex::default(), url }
    }

    fn server(&self) -> MutexGuard<'_, Kubernetes> {
        self.server.lock().expect("an unbroken lock")
    }

    fn leases(&self) -> u64 {
        let prefix = "/registry/leases/default/";
        let keys = self.server().etcd().etcdctl_ok(&["get", prefix, "--prefix", "--keys-only"]);
        keys.lines().filter(|line| !line.is_empty()).count() as u64
    }
}

impl Cluster {
    fn running(&self) -> Arc<OnceLock<Running>> {
        self.0.get_or_init(Running::start);
        self.0.clone()
    }

    /// Does what takes long on a thread that may block.
    fn by_hand<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Running) -> T + Send + 'static,
    ) -> Hook<'static, T> {
        let running = self.running();
        Ok(Box::pin(async move {
            let done = tokio::task::spawn_blocking(move || act(running.get().expect("it has started"))).await;
            done.map_err(|error| Error::new(ErrorKind::Internal, "by hand").with_source(error))
        }))
    }
}

impl Harness for Cluster {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let running = self.running();
            let url = &running.get().expect("it has started").url;
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory(url, &settings)?()
        })
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn delete<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let election = election.to_string();
        self.by_hand(move |running| running.server().delete_lease(&election))
    }

    /// Somebody writes his own name, as a client of another kind does.
    fn replace<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let election = election.to_string();
        self.by_hand(move |running| {
            running
                .server()
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
        self.by_hand(|running| {
            let mut server = running.server();
            server.kill();
            server.etcd().restart(0);
            server.restart();
        })
    }

    fn back_up(&self, put_back: bool) -> Hook<'_> {
        self.by_hand(move |running| {
            let mut server = running.server();
            server.kill();
            let data = server.etcd().dir().join("n0");
            let copy = data.with_extension("copy");
            server.etcd().stop(0);
            let (from, to) = if put_back { (copy, data) } else { (data, copy) };
            let _ = fs::remove_dir_all(&to);
            copy_tree(&from, &to);
            server.etcd().restart(0);
            server.restart();
        })
    }

    fn stall(&self, on: bool) -> Hook<'_> {
        self.by_hand(move |running| {
            let mut stall = running.stall.lock().expect("an unbroken lock");
            *stall = None;
            if on {
                *stall = Some(running.server().etcd().stall_fsync(0, STALL));
            }
        })
    }

    fn hold_answers(&self, on: bool) -> Hook<'_> {
        self.by_hand(move |running| match on {
            true => running.relay.hold(Direction::Answers),
            false => running.relay.pass(Direction::Answers),
        })
    }

    fn step_wall_clock(&self, _seconds: i64) -> Hook<'_> {
        Err("done in a process with a wall clock of its own, by the test kubernetes_wall_clock")
    }

    /// Leases and connections.
    fn objects(&self) -> Hook<'_, u64> {
        self.by_hand(|running| running.leases() + running.relay.open() as u64)
    }

    fn requests(&self) -> Hook<'_, u64> {
        self.by_hand(|running| {
            let metrics = running.server().kubectl_ok(&["get", "--raw", "/metrics"], "");
            let of_leases =
                |line: &&str| line.starts_with("apiserver_request_total{") && line.contains("\"leases\"");
            let count = |line: &str| line.rsplit_once(' ').and_then(|(_, count)| count.parse::<f64>().ok());
            metrics.lines().filter(of_leases).filter_map(count).sum::<f64>() as u64
        })
    }
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy_tree(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).expect("a copy")),
        }
    }
}

fn main() -> ExitCode {
    Suite::new(Cluster::default()).main()
}
