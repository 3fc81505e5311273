//! Random inputs from a seed, against every invariant of `invariants.rs`; then a quiet time in which all must end well.

use std::time::Duration;

use incumbent_core::{
    Acquired, Answer, Authority, BootInstant, Call, CallId, Contender, Elector, ElectorConfig, Error,
    ErrorKind, FencingToken, Grant, HandoverRequest, Input, Leader, Nonce, Observation, Output, Renewed,
    Settings, StopReason, Timing,
};

use crate::invariants::Watched;
use crate::script::guarantees;

const RUNS: u64 = 20_000;
const STEPS: usize = 120;

#[test]
fn invariants_hold_under_random_inputs() {
    let mut elections = 0;
    for seed in 0..RUNS {
        let run = std::panic::catch_unwind(|| Run::new(seed).go());
        match run {
            Ok(count) => elections += count,
            Err(panic) => {
                println!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    // Else the runs met too little of what they are about.
    assert!(elections as u64 > RUNS, "only {elections} terms in {RUNS} runs");
}

/// One elector, one seed.
struct Run {
    random: u64,
    watched: Watched,
    token: u64,
    old_calls: Vec<CallId>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut run = Run {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d,
            watched: Watched::new(elector(Duration::from_secs(15), Some(Duration::from_secs(30)), seed)),
            token: 0,
            old_calls: Vec::new(),
        };
        let ttl = Duration::from_millis(500 + run.below(30_000));
        let drain = match run.below(5) {
            0 => None,
            4 => Some(Duration::ZERO),
            1 => Some(ttl / 8),
            2 => Some(ttl),
            _ => Some(ttl * 3),
        };
        run.watched = Watched::new(elector(ttl, drain, seed));
        run
    }

    /// SplitMix64, so that a seed is all that a failure needs.
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn go(mut self) -> usize {
        for _ in 0..STEPS {
            self.step();
        }
        self.end_well();
        self.watched.elections
    }

    fn step(&mut self) {
        let outputs = match self.below(100) {
            0..30 => match self.watched.poll_timeout() {
                Some(next) => self.watched.timeout(next),
                None => Vec::new(),
            },
            // Late by a little, or frozen for long.
            30..36 => {
                let late = Duration::from_millis(self.below(2_000));
                self.watched.timeout(self.watched.now() + late)
            }
            36..38 => {
                let late = Duration::from_millis(self.below(60_000));
                self.watched.timeout(self.watched.now() + late)
            }
            38..78 => {
                let Some((id, call)) = self.watched.pending().map(|(id, call)| (id, call.clone())) else {
                    return;
                };
                // An answer takes time, and in a frozen process it may be heard of before the clock is looked at.
                let span = [100, 100, 100, 30_000][self.below(4) as usize];
                let late = Duration::from_millis(self.below(span));
                self.watched.stand_still(self.watched.now() + late);
                self.old_calls.push(id);
                let answer = self.answer(&call, 20);
                self.watched.input(Input::Answer(id, answer))
            }
            // A late or doubled answer.
            78..80 if !self.old_calls.is_empty() => {
                let index = self.below(self.old_calls.len() as u64) as usize;
                let id = self.old_calls[index];
                if self.watched.pending().is_some_and(|(pending, _)| pending == id) {
                    return;
                }
                self.token += 1;
                let answer = Answer::Acquire(Ok(Acquired::Granted(self.grant())));
                self.watched.input(Input::Answer(id, answer))
            }
            78..86 => self.watched.input(Input::Look),
            86..88 => {
                let reason = match self.below(8) {
                    0..2 => StopReason::Resigned,
                    2..4 => StopReason::Stalled,
                    4..7 => StopReason::Handover(None),
                    _ => StopReason::Shutdown,
                };
                self.watched.input(Input::Stop(reason))
            }
            88..97 if self.watched.work_running() => self.watched.input(Input::WorkStopped),
            97..98 if self.watched.leads() => self.watched.input(Input::Expired),
            98 if self.below(10) == 0 => self.watched.input(Input::Abandoned),
            _ => return,
        };
        self.note(&outputs);
    }

    fn note(&mut self, outputs: &[Output]) {
        for output in outputs {
            if let Output::Cancel(id) = output {
                self.old_calls.push(*id);
            }
        }
    }

    fn answer(&mut self, call: &Call, error_percent: u64) -> Answer {
        let error = (self.below(100) < error_percent).then(|| {
            let kinds = [ErrorKind::Unavailable, ErrorKind::TimedOut, ErrorKind::Denied, ErrorKind::Corrupt];
            let kind = kinds[self.below(4) as usize];
            Error::new(kind, "an error")
        });
        match (call, error) {
            (Call::Acquire(_), Some(error)) => Answer::Acquire(Err(error)),
            (Call::Renew(..), Some(error)) => Answer::Renew(Err(error)),
            (Call::Release(..), Some(error)) => Answer::Release(Err(error)),
            (Call::ReadHandover(_), Some(error)) => Answer::ReadHandover(Err(error)),
            (Call::Acquire(claim), None) => Answer::Acquire(Ok(match self.below(3) {
                0 => Acquired::Held {
                    observation: self.observation(),
                    try_again: self.watched.now() + claim.ttl.mul_f64(self.below(100) as f64 / 100.0),
                },
                _ => {
                    self.token += 1;
                    Acquired::Granted(Grant { ttl: claim.ttl, ..self.grant() })
                }
            })),
            (Call::Renew(claim, _), None) => Answer::Renew(Ok(match self.below(20) {
                0 => Renewed::Lost(self.observation()),
                _ => Renewed::Extended { sent_at: self.sent_at(), ttl: claim.ttl },
            })),
            (Call::Release(..), None) => Answer::Release(Ok(())),
            (Call::ReadHandover(_), None) => Answer::ReadHandover(Ok((self.below(4) == 0)
                .then(|| HandoverRequest { token: FencingToken(self.token - self.below(2)), to: None }))),
        }
    }

    /// Mostly a moment ago, sometimes long ago (a shared proof), sometimes nonsense from the future.
    fn sent_at(&mut self) -> BootInstant {
        let now = self.watched.now();
        match self.below(10) {
            0 => now - Duration::from_millis(self.below(20_000)),
            1 => now + Duration::from_millis(self.below(20_000)),
            _ => now - Duration::from_millis(self.below(200)),
        }
    }

    fn grant(&mut self) -> Grant {
        Grant {
            token: Some(FencingToken(self.token)),
            authority: Authority::new("random"),
            sent_at: self.sent_at(),
            ttl: Duration::from_secs(15),
        }
    }

    fn observation(&mut self) -> Observation {
        let leader = (self.below(4) > 0).then(|| Leader {
            contender: Contender {
                id: ["a", "b", "c"][self.below(3) as usize].to_owned(),
                nonce: (self.below(4) > 0).then_some(Nonce(7)),
                address: None,
            },
            token: Some(FencingToken(self.token)),
            since_unix_ms: None,
        });
        Observation { leader, candidates: None }
    }

    /// From here on every call is answered, the work stops when told, and the candidate is shut down.
    fn end_well(&mut self) {
        self.watched.input(Input::Stop(StopReason::Shutdown));
        for _ in 0..100 {
            if self.watched.ended() {
                return;
            }
            if self.watched.work_running() {
                self.watched.input(Input::WorkStopped);
            } else if let Some((id, call)) = self.watched.pending().map(|(id, call)| (id, call.clone())) {
                let answer = self.answer(&call, 0);
                self.watched.input(Input::Answer(id, answer));
            } else if let Some(next) = self.watched.poll_timeout() {
                self.watched.timeout(next);
            }
        }
        panic!("told to shut down, it never ended");
    }
}

pub(crate) fn elector(ttl: Duration, drain: Option<Duration>, seed: u64) -> Elector {
    let settings = Settings { ttl, drain, ..Settings::default() };
    let config = ElectorConfig {
        election: "billing".parse().expect("a valid name"),
        id: "a".parse().expect("a valid id"),
        address: None,
        timing: Timing::new(&settings, &guarantees(Duration::ZERO)).expect("valid settings"),
        takeover_max: ttl,
    };
    Elector::new(config, u128::from(seed) << 64 | 1)
}
