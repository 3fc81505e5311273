//! A candidate in a process of its own: this test program once more, which then does nothing but stand for election.
//!
//! It prints what happens to it line by line, and obeys what it reads: `check` whether the term is valid, `share` the
//! liveness lock with a child, `resign`, `stop`.

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::{ChildStdin, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use incumbent::{BootInstant, CampaignEvent, Leadership, StopReason};
use testkit::{Line, Proc};

const URL: &str = "INCUMBENT_TEST_CANDIDATE_URL";
/// If it is set, the candidate becomes this user first.
pub(crate) const UID: &str = "INCUMBENT_TEST_CANDIDATE_UID";
/// A URL for which it only says where state is kept by default.
pub(crate) const WHERE: &str = "where";
const ID: &str = "INCUMBENT_TEST_CANDIDATE_ID";

/// Longer than anything takes on a machine that is not broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A ttl that can be waited for.
pub(crate) const SHORT: Duration = Duration::from_millis(1500);

/// A candidate that runs.
pub(crate) struct Candidate {
    pub(crate) proc: Proc,
    stdin: ChildStdin,
}

/// The URL of `dir` with a ttl.
pub(crate) fn url(dir: &Path, ttl: Duration) -> String {
    format!("file:{}?ttl={}ms", dir.display(), ttl.as_millis())
}

impl Candidate {
    /// A candidate for `billing`.
    pub(crate) fn start(url: &str, id: &str) -> Candidate {
        Candidate::start_with(url, id, Command::new(std::env::current_exe().unwrap()))
    }

    /// As `start`, by way of a program that executes the rest of its arguments.
    pub(crate) fn start_with(url: &str, id: &str, mut command: Command) -> Candidate {
        command.args(["--exact", "process::candidate_process", "--nocapture", "--test-threads=1"]);
        command.env(URL, url).env(ID, id);
        let mut proc = Proc::spawn_with_stdin(command);
        let stdin = proc.stdin().unwrap();
        Candidate { proc, stdin }
    }

    /// Gives it an order.
    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.stdin, "{order}").unwrap();
    }

    /// Waits until it has won its `nth` term, and returns when it said so and the token.
    #[track_caller]
    pub(crate) fn elected(&self, nth: usize) -> (BootInstant, u64) {
        let line = self.line("elected ", nth);
        (line.at, line.text["elected ".len()..].parse().unwrap())
    }

    /// The `nth` line that begins with `begin`.
    #[track_caller]
    pub(crate) fn line(&self, begin: &str, nth: usize) -> Line {
        self.proc.wait_lines(nth, |line| line.starts_with(begin), PATIENCE).remove(nth - 1)
    }

    /// How many lines begin with `begin` so far.
    pub(crate) fn count(&self, begin: &str) -> usize {
        self.proc.lines().iter().filter(|line| line.text.starts_with(begin)).count()
    }
}

/// No test: what `Candidate::start` runs.
#[test]
fn candidate_process() {
    let (Ok(url), Ok(id)) = (std::env::var(URL), std::env::var(ID)) else { return };
    if let Ok(uid) = std::env::var(UID) {
        // Of this thread, and of those that it starts.
        let uid = rustix::thread::Uid::from_raw(uid.parse().unwrap());
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
    }
    if url == WHERE {
        return match incumbent::default_state_dir() {
            Ok(dir) => say(&format!("place {}", dir.display())),
            Err(error) => say(&format!("refused {:?} {error}", error.kind())),
        };
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(stand(&url, &id));
}

async fn stand(url: &str, id: &str) {
    let election = match incumbent::connect(url).await {
        Ok(connection) => connection.election("billing"),
        Err(error) => return say(&format!("refused {:?} {error}", error.kind())),
    };
    let mut campaign = election.candidate(id).advertise("here").campaign().unwrap();
    let term: Arc<Mutex<Option<Leadership>>> = Arc::default();
    let (orders, mut obey) = tokio::sync::mpsc::unbounded_channel();
    let checked = term.clone();
    std::thread::spawn(move || {
        for order in std::io::stdin().lock().lines().map_while(Result::ok) {
            let term = checked.lock().unwrap().clone();
            match (order.as_str(), term) {
                ("check", Some(term)) if term.is_valid() => say("check valid"),
                ("check", _) => say("check over"),
                ("share", Some(term)) => share(&term),
                _ => drop(orders.send(order)),
            }
        }
    });
    loop {
        let event = tokio::select! {
            event = campaign.next() => event,
            Some(order) = obey.recv() => {
                campaign.stop(if order == "resign" { StopReason::Resigned } else { StopReason::Shutdown });
                continue;
            }
        };
        match event {
            Some(CampaignEvent::Elected(leadership)) => {
                *term.lock().unwrap() = Some(leadership.clone());
                say(&format!("elected {}", leadership.token().unwrap()));
            }
            Some(CampaignEvent::Stopping { reason, .. }) => {
                say(&format!("stopping {reason:?}"));
                campaign.work_stopped();
            }
            Some(CampaignEvent::Lost(reason)) => {
                say(&format!("lost {reason:?}"));
                campaign.work_stopped();
            }
            Some(CampaignEvent::LeaderChanged(leader)) => {
                say(&format!("leader {}", leader.map_or("none".to_owned(), |leader| leader.contender.id)));
            }
            Some(CampaignEvent::Trouble(error)) => say(&format!("trouble {:?} {error}", error.kind())),
            Some(CampaignEvent::SameId(leader)) => say(&format!("same id {}", leader.contender.id)),
            Some(CampaignEvent::Recovered) => say("recovered"),
            Some(CampaignEvent::Ended) => say("ended"),
            Some(event) => say(&format!("{event:?}")),
            None => return,
        }
    }
}

/// Starts a child that inherits the liveness lock, as a leader's work does.
fn share(term: &Leadership) {
    let lock = term.liveness_fd().unwrap().unwrap();
    rustix::io::fcntl_setfd(&lock, rustix::io::FdFlags::empty()).unwrap();
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    say(&format!("shared with {}", child.id()));
    std::thread::spawn(move || child.wait());
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Not println: the harness has written half a line before.
    let _ = write!(out, "\n{line}\n").and_then(|()| out.flush());
}
