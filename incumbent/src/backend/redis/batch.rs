//! Calls that go to the server together: one script for all that read, one for all that swap.

use std::time::Duration;

use futures_util::future::select_all;
use incumbent_core::record::TokenRule;
use incumbent_core::{BootInstant, Error, Result, Stored, Swapped};
use redis::{Cmd, RedisResult, cmd};
use tokio::sync::oneshot;

use super::dial::Link;
use super::failure::Effect;

/// How many calls go together at most, so that the server is not kept from others for long.
pub(super) const MAX: usize = 128;

const READ: &str = concat!("#!lua flags=no-writes\n", include_str!("look.lua"), include_str!("read.lua"));
const SWAP: &str = concat!("#!lua flags=allow-oom\n", include_str!("look.lua"), include_str!("swap.lua"));

/// What is asked.
pub(super) enum Call {
    Read {
        key: String,
    },
    Swap {
        key: String,
        /// Where the change is told.
        channel: String,
        /// The key that names the authority.
        authority: String,
        /// Version and token; `None`: absent.
        expected: Option<(u64, u64)>,
        token: TokenRule,
        body: Vec<u8>,
    },
}

/// What is answered.
pub(super) enum Answer {
    Read(Option<Stored>),
    Swapped(Swapped),
}

/// A call and who waits for its answer.
pub(super) struct Job {
    pub(super) call: Call,
    pub(super) answer: oneshot::Sender<Result<Answer>>,
}

impl Job {
    pub(super) fn is_waited_for(&self) -> bool {
        !self.answer.is_closed()
    }

    fn effect(&self) -> Effect {
        match self.call {
            Call::Read { .. } => Effect::None,
            Call::Swap { .. } => Effect::Write,
        }
    }
}

/// Returns when nobody waits for any of them.
pub(super) async fn all_gone(jobs: &mut [Job]) {
    for job in jobs {
        job.answer.closed().await;
    }
}

/// Returns when somebody has not waited any more for this long: what he asked for hangs.
pub(super) async fn one_gone(jobs: &mut [Job], patience: Duration) {
    select_all(jobs.iter_mut().map(|job| Box::pin(job.answer.closed()))).await;
    tokio::time::sleep(patience).await;
}

/// Gives all of them this error.
pub(super) fn fail(jobs: Vec<Job>, failure: &Error) {
    refuse(jobs, |_| failure.clone());
}

/// Gives each of them the error for what it may have done.
pub(super) fn refuse(jobs: Vec<Job>, failure: impl Fn(Effect) -> Error) {
    for job in jobs {
        let failure = failure(job.effect());
        let _ = job.answer.send(Err(failure));
    }
}

/// Jobs as they are sent.
pub(super) struct Request {
    read: Option<Cmd>,
    swap: Option<Cmd>,
}

/// A record as the script answers it.
type Found = Option<(u64, u64, Vec<u8>)>;
/// Version and token that a swap wrote.
type Written = Option<(u64, u64)>;

/// The answers to the jobs of one request, in their order.
pub(super) struct Answers {
    pub(super) lineage: String,
    /// Told with a write.
    pub(super) authority: Option<String>,
    read: Vec<Found>,
    swapped: Vec<Written>,
}

impl Request {
    /// `authority` is what a store without a name is called from now on; `mark` says who renews.
    pub(super) fn new(jobs: &[Job], authority: &str, mark: &str) -> Request {
        let reads: Vec<&String> = jobs
            .iter()
            .filter_map(|job| match &job.call {
                Call::Read { key } => Some(key),
                Call::Swap { .. } => None,
            })
            .collect();
        let mut read = None;
        if !reads.is_empty() {
            let script = read.insert(cmd("EVAL"));
            script.arg(READ).arg(reads.len()).arg(reads);
        }
        Request { read, swap: swap(jobs, authority, mark) }
    }

    /// Sends it and waits for all answers.
    pub(super) async fn send(&self, link: &Link) -> RedisResult<Answers> {
        let read = async {
            let mut connection = link.connection.clone();
            match &self.read {
                Some(script) => script.query_async::<(String, Vec<Found>)>(&mut connection).await.map(Some),
                None => Ok(None),
            }
        };
        let swap = async {
            let mut connection = link.connection.clone();
            match &self.swap {
                Some(script) => {
                    script.query_async::<(String, String, Vec<Written>)>(&mut connection).await.map(Some)
                }
                None => Ok(None),
            }
        };
        // Both to their ends: an answer that is not read would be in the way.
        let (read, swap) = tokio::join!(read, swap);
        let (swap, read) = (swap?, read?);
        let mut answers =
            Answers { lineage: String::new(), authority: None, read: Vec::new(), swapped: Vec::new() };
        if let Some((lineage, found)) = read {
            (answers.lineage, answers.read) = (lineage, found);
        }
        // The later of the two.
        if let Some((lineage, authority, written)) = swap {
            (answers.lineage, answers.authority, answers.swapped) = (lineage, Some(authority), written);
        }
        Ok(answers)
    }
}

fn swap(jobs: &[Job], authority: &str, mark: &str) -> Option<Cmd> {
    let swaps = || jobs.iter().filter(|job| job.effect() == Effect::Write);
    let name = jobs.iter().find_map(|job| match &job.call {
        Call::Swap { authority, .. } => Some(authority),
        Call::Read { .. } => None,
    })?;
    let mut script = cmd("EVAL");
    script.arg(SWAP).arg(swaps().count() + 1).arg(name);
    for job in swaps() {
        if let Call::Swap { key, .. } = &job.call {
            script.arg(key);
        }
    }
    script.arg(authority).arg(mark);
    for job in swaps() {
        if let Call::Swap { channel, expected, token, body, .. } = &job.call {
            script.arg(channel);
            match expected {
                Some((version, token)) => script.arg(version).arg(token),
                None => script.arg("").arg(""),
            };
            match token {
                TokenRule::Keep => script.arg("keep"),
                TokenRule::Raise => script.arg("raise"),
                TokenRule::Set(token) => script.arg(token.0),
            };
            script.arg(body);
        }
    }
    Some(script)
}

/// Gives each of them its answer.
pub(super) fn answer(jobs: Vec<Job>, answers: Answers, sent_at: BootInstant) {
    let (mut read, mut swapped) = (answers.read.into_iter(), answers.swapped.into_iter());
    for job in jobs {
        let answer = match job.call {
            Call::Read { .. } => read.next().map(|found| {
                Answer::Read(found.map(|(version, token, body)| Stored { version, token, body }))
            }),
            Call::Swap { .. } => swapped.next().map(|written| {
                Answer::Swapped(match written {
                    Some((version, token)) => Swapped::Done { version, token, sent_at },
                    None => Swapped::Conflict,
                })
            }),
        };
        // A script answers as many as it was asked.
        if let Some(answer) = answer {
            let _ = job.answer.send(Ok(answer));
        }
    }
}
