//! One run: ten replicas, a blow to each leader in turn, and the audit.

use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use incumbent::{BootInstant, clock};
use rustix::process::Signal;

use super::replica::{Replica, Said, Word, name};
use crate::charge::Error;
use crate::ledger::{Audit, Ledger};

const REPLICAS: usize = 10;
const SUBSCRIPTIONS: i64 = 10_000;
/// Charges between two blows.
const BETWEEN: i64 = 1_000;
/// How long nothing may happen before the run is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many ttls a successor of a frozen leader may take. Longer, and the leader froze inside the election store's own commit,
/// where nobody can take over until it wakes up.
const TAKEOVER: u32 = 6;
/// How long the successor of a leader that froze inside a transaction is watched.
const WATCHED: Duration = Duration::from_secs(1);

/// What is done to a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blow {
    /// SIGKILL, inside a transaction.
    Kill,
    /// SIGSTOP between its check and its write, past its lease; SIGCONT when its successor has charged what it was about to.
    FreezeBeforeWrite,
    /// SIGSTOP inside a transaction, past its lease; SIGCONT when its successor waits.
    FreezeInside,
    /// SIGTERM.
    Stop,
}

const BLOWS: [Blow; 6] =
    [Blow::Kill, Blow::FreezeBeforeWrite, Blow::Stop, Blow::Kill, Blow::FreezeInside, Blow::Stop];

/// What the run is about.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The worker's program.
    pub worker: PathBuf,
    /// Where the ledger is made.
    pub ledger: PathBuf,
    /// The election's store.
    pub on: String,
    /// Whether the ledger is fenced.
    pub fenced: bool,
}

/// What came out.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The ledger.
    pub audit: Audit,
    /// Frozen leaders whose late write the fence refused.
    pub refused: usize,
    /// Frozen leaders whose late write landed.
    pub landed: usize,
    /// Successors that waited for a leader that froze inside a transaction.
    pub waited: usize,
    /// Whether every kind of blow was dealt.
    pub all_dealt: bool,
}

/// Runs it.
///
/// # Errors
/// The store's URL is wrong, a replica failed or hung, or the ledger cannot be read.
pub fn run(plan: Plan) -> Result<Outcome, Error> {
    let takeover = crate::connect(&plan.on)?.settings().ttl * TAKEOVER;
    Ledger::create(&plan.ledger, SUBSCRIPTIONS)?;
    let (words, heard) = mpsc::channel();
    let mut run = Run {
        ledger: Ledger::open(&plan.ledger)?,
        // Each ledger has an election, and with it a checkpoint, of its own: a store outlives the run.
        election: format!(
            "billing-{}-{}",
            std::process::id(),
            clock::now().since(BootInstant::ZERO).as_millis()
        ),
        plan,
        words,
        heard,
        takeover,
        replicas: Vec::new(),
        blows: 0,
        next_blow: BETWEEN,
        refused: 0,
        landed: 0,
        waited: 0,
    };
    for number in 0..REPLICAS {
        let replica = run.start(number)?;
        run.replicas.push(replica);
    }
    run.until_done()?;
    run.stop_all()?;
    Ok(Outcome {
        audit: run.ledger.audit()?,
        refused: run.refused,
        landed: run.landed,
        waited: run.waited,
        all_dealt: run.blows >= BLOWS.len(),
    })
}

struct Run {
    election: String,
    plan: Plan,
    ledger: Ledger,
    words: Sender<Said>,
    heard: Receiver<Said>,
    takeover: Duration,
    replicas: Vec<Replica>,
    /// How many were dealt.
    blows: usize,
    /// The subscription at which the next one is due.
    next_blow: i64,
    refused: usize,
    landed: usize,
    waited: usize,
}

impl Run {
    fn start(&self, number: usize) -> Result<Replica, Error> {
        let mut worker = Command::new(&self.plan.worker);
        worker.arg("--driven").args((!self.plan.fenced).then_some("--unfenced"));
        worker.arg(&self.plan.ledger).arg(&self.plan.on).arg(&self.election).arg(name(number));
        Ok(Replica::start(number, &mut worker, self.words.clone())?)
    }

    /// Lets the leader work and strikes it when it is due, until all are charged.
    fn until_done(&mut self) -> Result<(), Error> {
        loop {
            let said = self.hear(PATIENCE)?.ok_or("nothing has happened for a minute")?;
            let blow = BLOWS[self.blows % BLOWS.len()];
            match (&said.word, blow) {
                (Word::Done, _) => return Ok(()),
                (Word::Inside(first, last), Blow::Kill) if self.is_due(*last) => {
                    self.kill(said.replica, *first, *last)?;
                }
                (Word::Before(first, last), Blow::FreezeBeforeWrite) if self.is_due(*last) => {
                    self.freeze_before_write(said.replica, *first, *last)?;
                }
                (Word::Inside(first, last), Blow::FreezeInside) if self.is_due(*last) => {
                    self.freeze_inside(said.replica, *first, *last)?;
                }
                (Word::Before(first, last), Blow::Stop) if self.is_due(*last) => {
                    self.stop(said.replica, *first, *last)?;
                }
                _ => self.go_on(&said)?,
            }
        }
    }

    /// Not close to the end, where a leader may be done before a blow has its effect.
    fn is_due(&self, last: i64) -> bool {
        last >= self.next_blow && last + BETWEEN / 2 <= SUBSCRIPTIONS
    }

    /// What a replica says next; words of processes that are gone are dropped. `None` if nobody says anything in time.
    fn hear(&mut self, patience: Duration) -> Result<Option<Said>, Error> {
        loop {
            match self.heard.recv_timeout(patience) {
                Ok(said) if self.replicas[said.replica].process() == said.process => return Ok(Some(said)),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err("no replica is left".into()),
            }
        }
    }

    /// Answers whoever waits for it, and tells the reader what is worth it.
    fn go_on(&mut self, said: &Said) -> Result<(), Error> {
        let who = name(said.replica);
        match &said.word {
            Word::Before(..) | Word::Inside(..) => self.replicas[said.replica].answer(),
            Word::Leading(token) => tell(format_args!("{who} leads with token {token}")),
            Word::From(last) => tell(format_args!("{who} goes on after subscription {last}")),
            Word::Refused(why) | Word::Over(why) => tell(format_args!("{who}: {why}")),
            Word::Ended => return Err(format!("{who} has ended although nobody asked it to").into()),
            Word::Charged(..) | Word::Waiting | Word::Done | Word::Stopped => {}
        }
        Ok(())
    }

    /// Hears everyone, and answers, until `wanted`; what is wanted is not answered. `None` if it does not come in time.
    fn until(&mut self, patience: Duration, wanted: impl Fn(&Said) -> bool) -> Result<Option<Said>, Error> {
        let end = clock::now() + patience;
        loop {
            let left = end.since(clock::now());
            match self.hear(left)? {
                Some(said) if wanted(&said) => return Ok(Some(said)),
                Some(said) => self.go_on(&said)?,
                None => return Ok(None),
            }
        }
    }

    fn dealt(&mut self, last: i64) {
        self.blows += 1;
        self.next_blow = last + BETWEEN;
    }

    fn kill(&mut self, leader: usize, first: i64, last: i64) -> Result<(), Error> {
        self.replicas[leader].signal(Signal::KILL)?;
        tell(format_args!("{} killed in the transaction that charges {first} to {last}", name(leader)));
        self.replace(leader)?;
        self.dealt(last);
        Ok(())
    }

    fn stop(&mut self, leader: usize, first: i64, last: i64) -> Result<(), Error> {
        self.replicas[leader].signal(Signal::TERM)?;
        tell(format_args!("{} told to stop before it charges {first} to {last}", name(leader)));
        self.replicas[leader].answer();
        // A slow machine may have let it finish first.
        let stopped = |said: &Said| said.replica == leader && matches!(said.word, Word::Stopped | Word::Done);
        self.until(PATIENCE, stopped)?.ok_or("a replica that was told to stop has not")?;
        if !self.replicas[leader].wait()? {
            return Err(format!("{} did not end well", name(leader)).into());
        }
        self.replace(leader)?;
        self.dealt(last);
        Ok(())
    }

    /// As whatever watches over a service would.
    fn replace(&mut self, number: usize) -> Result<(), Error> {
        self.replicas[number] = self.start(number)?;
        Ok(())
    }

    fn freeze_before_write(&mut self, leader: usize, first: i64, last: i64) -> Result<(), Error> {
        self.replicas[leader].signal(Signal::STOP)?;
        tell(format_args!("{} frozen after its check, about to charge {first} to {last}", name(leader)));
        // Its successor stands before its next batch, so it has charged this one, and the ledger is not locked.
        let passed =
            |said: &Said| said.replica != leader && matches!(said.word, Word::Before(next, _) if next > last);
        let Some(successor) = self.until(self.takeover, passed)? else { return self.thaw(leader, last) };
        tell(format_args!(
            "{} has charged {first} to {last}; {} wakes up",
            name(successor.replica),
            name(leader)
        ));
        self.wake(leader)?;
        let outcome = |said: &Said| {
            said.replica == leader && matches!(said.word, Word::Refused(_) | Word::Over(_) | Word::Inside(..))
        };
        let outcome = self.until(PATIENCE, outcome)?.ok_or("a leader that was woken does nothing")?;
        match outcome.word {
            Word::Refused(_) => self.refused += 1,
            Word::Inside(..) => {
                self.landed += 1;
                tell(format_args!("{} charges {first} to {last} again", name(leader)));
            }
            _ => {}
        }
        self.go_on(&outcome)?;
        self.dealt(last);
        self.go_on(&successor)
    }

    fn freeze_inside(&mut self, leader: usize, first: i64, last: i64) -> Result<(), Error> {
        self.replicas[leader].signal(Signal::STOP)?;
        tell(format_args!("{} frozen in the transaction that charges {first} to {last}", name(leader)));
        let waits = |said: &Said| said.replica != leader && said.word == Word::Waiting;
        let Some(successor) = self.until(self.takeover, waits)? else { return self.thaw(leader, last) };
        let before = self.ledger.audit()?;
        thread::sleep(WATCHED);
        if self.ledger.audit()? != before {
            return Err(format!("{} charges under an open transaction", name(successor.replica)).into());
        }
        self.waited += 1;
        tell(format_args!("{} waits for the ledger; {} wakes up", name(successor.replica), name(leader)));
        self.wake(leader)?;
        self.dealt(last);
        Ok(())
    }

    fn thaw(&mut self, leader: usize, last: i64) -> Result<(), Error> {
        tell(format_args!("{} froze inside the election's store; once more", name(leader)));
        self.wake(leader)?;
        self.next_blow = last + 1;
        Ok(())
    }

    fn wake(&mut self, leader: usize) -> Result<(), Error> {
        self.replicas[leader].answer();
        Ok(self.replicas[leader].signal(Signal::CONT)?)
    }

    fn stop_all(&mut self) -> Result<(), Error> {
        for replica in &self.replicas {
            replica.signal(Signal::TERM)?;
        }
        let end = clock::now() + PATIENCE;
        let mut running = self.replicas.len();
        while running > 0 {
            let said = self.hear(end.since(clock::now()))?.ok_or("a replica does not stop")?;
            match said.word {
                Word::Ended => running -= 1,
                _ => self.go_on(&said)?,
            }
        }
        for replica in &mut self.replicas {
            if !replica.wait()? {
                return Err(format!("{} did not end well", replica.name()).into());
            }
        }
        Ok(())
    }
}

fn tell(what: std::fmt::Arguments<'_>) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{what}");
}
