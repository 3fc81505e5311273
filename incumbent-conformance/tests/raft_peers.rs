//! The rules on Raft among peers: four that candidates use, and five that only vote and can be killed, in one process over real
//! sockets.

use std::cell::Cell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use incumbent::Settings;
use incumbent::peers::{Voter, init};
use incumbent_conformance::{Harness, Hook, Suite};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Result};
use testkit::Port;

const NO_RECORDS: &str = "peers keep no record of who leads";

thread_local! {
    /// The cases of a thread run one after the other: those that one case opens are on different peers.
    static NEXT: Cell<usize> = const { Cell::new(0) };
}

struct Peers {
    dir: PathBuf,
    members: Vec<(String, Port)>,
    voters: Mutex<Vec<Voter>>,
    candidates: usize,
}

impl Peers {
    fn start(dir: PathBuf, candidates: usize, voters: usize) -> Peers {
        std::fs::write(dir.join("secret"), "0123456789abcdef0123456789abcdef\n").expect("written");
        let names = (0..candidates).map(|n| format!("c{n}")).chain((0..voters).map(|n| format!("v{n}")));
        let members = names.map(|name| (name, Port::reserve())).collect();
        let peers = Peers { dir, members, voters: Mutex::default(), candidates };
        for (name, _) in &peers.members {
            init(&peers.dir.join(name), name, "conformance").expect("a state");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(peers.start_voters()).expect("voters");
        peers
    }

    fn url(&self, name: &str) -> String {
        let member = |(name, port): &(String, Port)| format!("{name}=127.0.0.1:{}", port.number());
        let list = self.members.iter().map(member).collect::<Vec<_>>().join(",");
        let dir = self.dir.display();
        format!("raft://{name}?peers={list}&state={dir}/{name}&secret_file={dir}/secret")
    }

    fn settings(&self) -> Settings {
        Settings { ttl: self.ttl(), ..Settings::default() }
    }

    async fn start_voters(&self) -> Result<()> {
        for (name, _) in &self.members[self.candidates..] {
            let voter = Voter::start(&self.url(name), self.settings()).await?;
            self.voters.lock().expect("unbroken").push(voter);
        }
        Ok(())
    }
}

impl Harness for Peers {
    /// A lease among peers takes the answers of five threads of this process, time and again, where a server would need none.
    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let number = NEXT.replace(NEXT.get() + 1) % self.candidates;
            incumbent::backend::factory(&self.url(&format!("c{number}")), &self.settings())?()
        })
    }

    fn delete<'a>(&'a self, _election: &'a ElectionName) -> Hook<'a> {
        Err(NO_RECORDS)
    }

    fn replace<'a>(&'a self, _election: &'a ElectionName) -> Hook<'a> {
        Err(NO_RECORDS)
    }

    fn delete_place<'a>(&'a self, _claim: &'a Claim) -> Hook<'a> {
        Err(NO_RECORDS)
    }

    fn end_session<'a>(&'a self, _election: &'a ElectionName) -> Hook<'a> {
        Err("peers have no sessions")
    }

    /// A majority of all is killed and comes back: each votes anew only when all that it promised is over.
    fn restart(&self) -> Hook<'_> {
        Ok(Box::pin(async {
            self.voters.lock().expect("unbroken").clear();
            self.start_voters().await
        }))
    }

    fn fail_over(&self) -> Hook<'_> {
        Err("the leader of these peers is the candidate that leads")
    }

    fn back_up(&self, _put_back: bool) -> Hook<'_> {
        Err("an old copy of a peer's state is excluded by the guarantee: it has forgotten what it promised")
    }

    fn stall(&self, _on: bool) -> Hook<'_> {
        Err("a peer proves by its clock that it votes for nobody else, and writes nothing for that")
    }

    fn step_wall_clock(&self, _seconds: i64) -> Hook<'_> {
        Err("done in processes with wall clocks of their own, by the test clocks of raft_run")
    }

    fn hold_answers(&self, _on: bool) -> Hook<'_> {
        Err("peers have no server whose answers could be held")
    }
}

fn main() -> ExitCode {
    let root = testkit::run_dir("conformance-raft");
    std::fs::create_dir_all(&root).expect("a directory");
    let exit = Suite::new(Peers::start(root.clone(), 4, 5)).terms(100).main();
    let _ = std::fs::remove_dir_all(root);
    exit
}
