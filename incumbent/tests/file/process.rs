//! A candidate in a process of its own: this test program once more, which then does nothing but stand for election.
//!
//! It prints what happens to it line by line, and obeys what it reads: `check`, `resign`, `stop`.

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::{ChildStdin, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use incumbent::{BootInstant, CampaignEvent, Leadership, StopReason};
use testkit::{Line, Proc};

const URL: &str = "INCUMBENT_TEST_CANDIDATE_URL";
const ID: &str = "INCUMBENT_TEST_CANDIDATE_ID";

/// Longer than anything takes on a machine that is not broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

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

    /// The arguments that make this test program the candidate `id`, for a program that executes them.
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
            if order == "check" {
                let valid = checked.lock().unwrap().as_ref().is_some_and(Leadership::is_valid);
                say(if valid { "check valid" } else { "check over" });
            } else {
                let _ = orders.send(order);
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
                say(&format!("elected {}", leadership.token().unwrap()));
                *term.lock().unwrap() = Some(leadership);
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

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Not println: the harness has written half a line before.
    let _ = write!(out, "\n{line}\n").and_then(|()| out.flush());
}
