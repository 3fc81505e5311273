//! The language of the scenario scripts: commands in, trace out.
//!
//! | command | meaning |
//! | --- | --- |
//! | `new [ttl=15s] [drain=30s\|none] [grace=…] [margin=…] [slack=0s] [takeover=ttl] [id=a] [seed=1]` | a new elector at 0 s |
//! | `at 5s` | lets time pass to 5 s after the start; what is due on the way is done in its time |
//! | `wait` | lets time pass to the next timeout |
//! | `freeze 40s` | the process stands still until 40 s, then wakes and does what is due |
//! | `late 40s` | the process stands still until 40 s; the next command's input is the first that it hears of then |
//! | `answer acquire granted token=7 [ttl=15s] [sent=…]` | answers the call under way; `sent` defaults to its issue |
//! | `answer acquire held [by=b] [nonce=1\|#1] [token=3] try-again=20s` | `#1` is the nonce of campaign 1 |
//! | `answer renew extended [ttl=15s] [sent=…]`, `answer renew lost [by=b] [nonce=1] [token=8]` | |
//! | `answer release ok`, `answer read-handover none`, `answer read-handover token=7 [to=b]` | |
//! | `answer CALL error unavailable\|timeout\|denied\|corrupt` | |
//! | `answer … call=3` | answers call #3, which may be over |
//! | `look`, `work-stopped`, `expired`, `abandoned` | |
//! | `stop shutdown\|resigned\|stalled`, `stop handover [to=b]` | |
//! | `repeat 100 COMMAND` | |

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use incumbent_core::{
    Acquired, Answer, Authority, BootInstant, Call, CallId, CandidateId, Contender, Elector, ElectorConfig,
    Error, ErrorKind, Event, FencingToken, Grant, Guarantees, HandoverRequest, Input, Leader, LossReason,
    Nonce, Observation, Output, Renewed, Settings, StopReason, Timing,
};

use crate::invariants::Watched;

/// Runs the commands of one script, one elector at a time.
#[derive(Debug, Default)]
pub(crate) struct Runner {
    watched: Option<Watched>,
    /// Every call so far, so that a late answer can name one.
    calls: Vec<(CallId, BootInstant)>,
    /// Campaigns in order of appearance: random nonces read badly.
    campaigns: Vec<Nonce>,
    trace: String,
}

/// The rest of a command: words, then `key=value` pairs.
struct Args<'a> {
    words: Vec<&'a str>,
    pairs: BTreeMap<&'a str, &'a str>,
}

impl<'a> Args<'a> {
    fn parse(line: &'a str) -> Args<'a> {
        let mut args = Args { words: Vec::new(), pairs: BTreeMap::new() };
        for part in line.split_whitespace() {
            match part.split_once('=') {
                Some((key, value)) => {
                    args.pairs.insert(key, value);
                }
                None => args.words.push(part),
            }
        }
        args
    }

    fn duration(&mut self, key: &str) -> Option<Duration> {
        self.pairs.remove(key).map(duration)
    }

    fn instant(&mut self, key: &str) -> Option<BootInstant> {
        self.duration(key).map(|since_start| BootInstant::ZERO + since_start)
    }

    fn number(&mut self, key: &str) -> Option<u64> {
        self.pairs
            .remove(key)
            .map(|text| text.parse().unwrap_or_else(|_| panic!("{key}={text} is no number")))
    }

    /// Every argument was understood; a misspelt one must not pass silently.
    fn done(&self, line: &str) {
        assert!(self.pairs.is_empty(), "unknown arguments in {line:?}: {:?}", self.pairs);
    }
}

fn duration(text: &str) -> Duration {
    let (number, unit) =
        text.split_at(text.find(|c: char| c.is_alphabetic()).expect("a duration has a unit"));
    let number: f64 = number.parse().unwrap_or_else(|_| panic!("{text:?} is no duration"));
    let millis = match unit {
        "ms" => number,
        "s" => number * 1e3,
        "m" => number * 60e3,
        _ => panic!("{text:?}: the units are ms, s and m"),
    };
    Duration::from_micros((millis * 1e3).round() as u64)
}

impl Runner {
    /// Runs the commands of one block and returns its trace.
    pub(crate) fn run(&mut self, commands: &[&str]) -> String {
        for line in commands {
            // Shown only if the test fails: where a script went wrong.
            eprintln!("{}> {line}", self.trace);
            self.command(line);
        }
        if let Some(watched) = &self.watched {
            let timer = watched.poll_timeout().map_or("none".to_owned(), seconds);
            writeln!(self.trace, "timer: {timer}").expect("a string can be written");
        }
        std::mem::take(&mut self.trace)
    }

    fn command(&mut self, line: &str) {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut args = Args::parse(rest);
        match name {
            "new" => self.start(&mut args),
            "at" => self.run_to(BootInstant::ZERO + duration(args.words[0])),
            "wait" => {
                let next = self.watched().poll_timeout().expect("a timer is running");
                self.run_to(next);
            }
            "freeze" => {
                let outputs = self.watched().timeout(BootInstant::ZERO + duration(args.words[0]));
                self.show(&outputs);
            }
            "late" => self.watched().stand_still(BootInstant::ZERO + duration(args.words[0])),
            "answer" => self.answer(&mut args),
            "look" => self.input(Input::Look),
            "work-stopped" => self.input(Input::WorkStopped),
            "expired" => self.input(Input::Expired),
            "abandoned" => self.input(Input::Abandoned),
            "stop" => {
                let reason = match args.words[0] {
                    "shutdown" => StopReason::Shutdown,
                    "resigned" => StopReason::Resigned,
                    "stalled" => StopReason::Stalled,
                    "handover" => StopReason::Handover(args.pairs.remove("to").map(id)),
                    other => panic!("unknown reason {other:?}"),
                };
                self.input(Input::Stop(reason));
            }
            "repeat" => {
                let (times, command) = rest.split_once(' ').expect("repeat N COMMAND");
                for _ in 0..times.parse().expect("repeat N COMMAND") {
                    self.command(command);
                }
                return;
            }
            _ => panic!("unknown command {line:?}"),
        }
        args.done(line);
    }

    fn start(&mut self, args: &mut Args<'_>) {
        let ttl = args.duration("ttl").unwrap_or(Duration::from_secs(15));
        let drain = match args.pairs.remove("drain") {
            Some("none") => None,
            Some(drain) => Some(duration(drain)),
            None => Some(Duration::from_secs(30)),
        };
        let settings = Settings {
            ttl,
            drain,
            grace: args.duration("grace"),
            margin: args.duration("margin"),
            ..Settings::default()
        };
        let guarantees = guarantees(args.duration("slack").unwrap_or_default());
        let config = ElectorConfig {
            election: "billing".parse().expect("a valid name"),
            id: id(args.pairs.remove("id").unwrap_or("a")),
            address: None,
            timing: Timing::new(&settings, &guarantees).expect("valid settings"),
            takeover_max: args.duration("takeover").unwrap_or(ttl),
        };
        let seed = u128::from(args.number("seed").unwrap_or(1));
        self.calls.clear();
        self.campaigns.clear();
        self.watched = Some(Watched::new(Elector::new(config, seed)));
        self.run_to(BootInstant::ZERO);
    }

    fn watched(&mut self) -> &mut Watched {
        self.watched.as_mut().expect("a script starts with `new`")
    }

    fn run_to(&mut self, until: BootInstant) {
        while let Some(next) = self.watched().poll_timeout().filter(|next| *next < until) {
            let outputs = self.watched().timeout(next);
            self.show(&outputs);
        }
        let outputs = self.watched().timeout(until);
        self.show(&outputs);
    }

    fn input(&mut self, input: Input) {
        let outputs = self.watched().input(input);
        self.show(&outputs);
    }

    fn answer(&mut self, args: &mut Args<'_>) {
        let (id, issued_at) = match args.number("call") {
            Some(number) => self.calls[number as usize - 1],
            None => {
                let (pending, _) = self.watched().pending().expect("a call is under way");
                *self.calls.iter().find(|(id, _)| *id == pending).expect("every call was noted")
            }
        };
        let ttl = self.watched().ttl();
        let [call, outcome @ ..] = &args.words[..] else { panic!("answer what?") };
        let error = || match outcome {
            ["error", "unavailable"] => Error::new(ErrorKind::Unavailable, "the store is away"),
            ["error", "timeout"] => Error::new(ErrorKind::TimedOut, "no answer within a second"),
            ["error", "denied"] => Error::new(ErrorKind::Denied, "wrong password"),
            ["error", "corrupt"] => Error::new(ErrorKind::Corrupt, "it cannot be read"),
            _ => panic!("answer {call} {outcome:?}?"),
        };
        let (call, outcome) = (*call, outcome.to_vec());
        let answer = match (call, &outcome[..]) {
            ("acquire", ["granted"]) => Answer::Acquire(Ok(Acquired::Granted(Grant {
                token: Some(FencingToken(args.number("token").expect("a grant has a token"))),
                authority: Authority::new("script"),
                sent_at: args.instant("sent").unwrap_or(issued_at),
                ttl: args.duration("ttl").unwrap_or(ttl),
            }))),
            ("acquire", ["held"]) => Answer::Acquire(Ok(Acquired::Held {
                try_again: args.instant("try-again").expect("held has try-again"),
                observation: self.observation(args),
            })),
            ("renew", ["extended"]) => Answer::Renew(Ok(Renewed::Extended {
                sent_at: args.instant("sent").unwrap_or(issued_at),
                ttl: args.duration("ttl").unwrap_or(ttl),
            })),
            ("renew", ["lost"]) => Answer::Renew(Ok(Renewed::Lost(self.observation(args)))),
            ("release", ["ok"]) => Answer::Release(Ok(())),
            ("read-handover", ["none"]) => Answer::ReadHandover(Ok(None)),
            ("read-handover", []) => Answer::ReadHandover(Ok(Some(HandoverRequest {
                token: FencingToken(args.number("token").expect("a request names a token")),
                to: args.pairs.remove("to").map(self::id),
            }))),
            ("acquire", _) => Answer::Acquire(Err(error())),
            ("renew", _) => Answer::Renew(Err(error())),
            ("release", _) => Answer::Release(Err(error())),
            ("read-handover", _) => Answer::ReadHandover(Err(error())),
            _ => panic!("answer what?"),
        };
        self.input(Input::Answer(id, answer));
    }

    fn observation(&self, args: &mut Args<'_>) -> Observation {
        let nonce = args.pairs.remove("nonce").map(|nonce| match nonce.strip_prefix('#') {
            Some(campaign) => self.campaigns[campaign.parse::<usize>().expect("a campaign") - 1],
            None => Nonce(nonce.parse().expect("a number")),
        });
        let token = args.number("token").map(FencingToken);
        let leader = args.pairs.remove("by").map(|by| Leader {
            contender: Contender { id: by.to_owned(), nonce, address: None },
            token,
            since_unix_ms: None,
        });
        Observation { leader, candidates: None }
    }

    // ---- the trace ----

    fn show(&mut self, outputs: &[Output]) {
        let now = self.watched().now();
        for output in outputs {
            let text = match output {
                Output::Call(id, call) => {
                    self.calls.push((*id, now));
                    format!("call #{} {}", self.calls.len(), self.call(call))
                }
                Output::Cancel(id) => {
                    let number =
                        self.calls.iter().position(|(call, _)| call == id).expect("a known call") + 1;
                    format!("cancel #{number}")
                }
                Output::Event(event) => event_text(event),
            };
            writeln!(self.trace, "{:>9}  {text}", seconds(now)).expect("a string can be written");
        }
    }

    fn call(&mut self, call: &Call) -> String {
        match call {
            Call::Acquire(claim) => format!("acquire (campaign {})", self.campaign(claim.nonce)),
            Call::Renew(claim, grant) => {
                format!("renew (campaign {}, token {})", self.campaign(claim.nonce), token(grant.token))
            }
            Call::Release(claim, grant, next) => {
                let grant = grant
                    .as_ref()
                    .map_or("no grant".to_owned(), |grant| format!("token {}", token(grant.token)));
                let next = next.as_ref().map(|next| format!(", next is {next}")).unwrap_or_default();
                format!("release (campaign {}, {grant}{next})", self.campaign(claim.nonce))
            }
            Call::ReadHandover(election) => format!("read-handover ({election})"),
        }
    }

    fn campaign(&mut self, nonce: Nonce) -> usize {
        match self.campaigns.iter().position(|known| *known == nonce) {
            Some(position) => position + 1,
            None => {
                self.campaigns.push(nonce);
                self.campaigns.len()
            }
        }
    }
}

fn event_text(event: &Event) -> String {
    match event {
        Event::Elected(grant, deadline) => {
            format!("ELECTED token {}, valid until {}", token(grant.token), seconds(*deadline))
        }
        Event::Extended(deadline) => format!("extended until {}", seconds(*deadline)),
        Event::Stopping { reason, until } => {
            format!("STOPPING {}, until {}", stop_text(reason), until.map_or("done".to_owned(), seconds))
        }
        Event::Lost(reason) => match reason {
            LossReason::Stopped(reason) => format!("LOST stopped: {}", stop_text(reason)),
            LossReason::Expired => "LOST expired".to_owned(),
            LossReason::Superseded(leader) => format!("LOST superseded by {}", leader_text(leader.as_ref())),
            LossReason::DrainOverran(reason) => format!("LOST drain overran: {}", stop_text(reason)),
        },
        Event::LeaderChanged(leader) => format!("leader is {}", leader_text(leader.as_ref())),
        Event::SameId(leader) => format!("SAME ID as {}", leader_text(Some(leader))),
        Event::Trouble(error) => format!("trouble: {error}"),
        Event::HandoverIgnored(error) => format!("ignored: {error}"),
        Event::Recovered => "recovered".to_owned(),
        Event::Released { campaigning_at } => {
            format!("released, campaigning {}", campaigning_at.map_or("never".to_owned(), seconds))
        }
        Event::Ended => "ENDED".to_owned(),
    }
}

fn stop_text(reason: &StopReason) -> String {
    match reason {
        StopReason::Handover(Some(to)) => format!("handover to {to}"),
        StopReason::Handover(None) => "handover".to_owned(),
        StopReason::Resigned => "resigned".to_owned(),
        StopReason::Shutdown => "shutdown".to_owned(),
        StopReason::Stalled => "stalled".to_owned(),
        StopReason::Outage => "outage".to_owned(),
    }
}

fn leader_text(leader: Option<&Leader>) -> String {
    leader.map_or("nobody".to_owned(), |leader| {
        format!("{} (token {})", leader.contender.id, token(leader.token))
    })
}

fn token(token: Option<FencingToken>) -> String {
    token.map_or("none".to_owned(), |token| token.to_string())
}

fn seconds(at: BootInstant) -> String {
    let micros = at.as_nanos() / 1_000;
    format!("{}.{:03}s", micros / 1_000_000, micros / 1_000 % 1_000)
}

fn id(text: &str) -> CandidateId {
    text.parse().expect("a valid id")
}

/// A store that judges expiry by itself and exactly, unless `slack` says otherwise.
pub(crate) fn guarantees(slack: Duration) -> Guarantees {
    use incumbent_core::guarantees::{Exclusion, Expiry, Handover, Survives, TokenSource, Transfer};
    Guarantees {
        exclusion: Exclusion::SingleNode,
        expiry: Expiry::Server,
        token: TokenSource::Counter,
        transfer: Transfer::Targeted,
        ttl_min: Duration::from_millis(100),
        expiry_slack: slack,
        renew_spacing: Duration::ZERO,
        takeover_ttls: 1,
        takeover_extra: Duration::ZERO,
        handover: Handover::Pushed,
        survives: Survives { crash: true, power_loss: true, failover: false },
        lists_candidates: false,
        summary: "the author of the test",
        not_applicable: &[],
    }
}
