//! One replica as the driver sees it: a process with a line to it and lines from it.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

/// What a worker says, or that it said its last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// It leads, with this token.
    Leading(String),
    /// It goes on after this subscription.
    From(i64),
    /// It has checked its term and is about to charge these, and waits for an answer.
    Before(i64, i64),
    /// It has charged these in a transaction that is still open, and waits for an answer.
    Inside(i64, i64),
    /// These are charged.
    Charged(i64, i64),
    /// Another process is in a transaction.
    Waiting,
    /// The fence has refused it, and why.
    Refused(String),
    /// Its term is over, and why.
    Over(String),
    /// All are charged.
    Done,
    /// It has stopped as it was told.
    Stopped,
    /// Its output is closed: it has ended.
    Ended,
}

impl Word {
    fn parse(line: &str) -> Option<Word> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let range = || {
            let (first, last) = rest.split_once(' ')?;
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        Some(match verb {
            "leading" => Word::Leading(rest.to_owned()),
            "from" => Word::From(rest.parse().ok()?),
            "before" => range().map(|(first, last)| Word::Before(first, last))?,
            "inside" => range().map(|(first, last)| Word::Inside(first, last))?,
            "charged" => range().map(|(first, last)| Word::Charged(first, last))?,
            "waiting" => Word::Waiting,
            "refused" => Word::Refused(rest.to_owned()),
            "over" => Word::Over(rest.to_owned()),
            "done" => Word::Done,
            "stopped" => Word::Stopped,
            _ => return None,
        })
    }
}

/// A word, the replica that said it, and which of its processes.
#[derive(Clone, Debug)]
pub struct Said {
    /// The replica's number.
    pub replica: usize,
    /// The process id.
    pub process: u32,
    /// The word.
    pub word: Word,
}

/// A replica's process. Dropping it kills it.
#[derive(Debug)]
pub struct Replica {
    number: usize,
    child: Child,
    stdin: ChildStdin,
}

impl Replica {
    /// Starts the replica of this number, which reports to `words`.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(number: usize, worker: &mut Command, words: Sender<Said>) -> io::Result<Replica> {
        let mut child = worker.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("a pipe was asked for and is not there"));
        };
        let process = child.id();
        thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(io::Result::ok);
            let spoken = lines.filter_map(|line| Word::parse(&line)).chain([Word::Ended]);
            for word in spoken {
                if words.send(Said { replica: number, process, word }).is_err() {
                    return;
                }
            }
        });
        Ok(Replica { number, child, stdin })
    }

    /// Its process id.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Its name.
    pub fn name(&self) -> String {
        name(self.number)
    }

    /// Lets it go on. One that has died in the meantime need not be told.
    pub fn answer(&mut self) {
        let _ = self.stdin.write_all(b"go on\n").and_then(|()| self.stdin.flush());
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// It cannot be sent.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Waits for its end and says whether it was a good one.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn wait(&mut self) -> io::Result<bool> {
        Ok(self.child.wait()?.success())
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The name of a replica.
pub fn name(number: usize) -> String {
    format!("replica-{number}")
}

/// The worker's program: it lies beside the driver's.
///
/// # Errors
/// The driver does not know where it lies itself.
pub fn worker_beside(driver: &Path) -> io::Result<std::path::PathBuf> {
    let folder = driver.parent().ok_or_else(|| io::Error::other("the driver lies nowhere"))?;
    Ok(folder.join("billing-worker"))
}
