//! What `run` tells: each report is a line for people and an event for programs.

use std::time::Duration;

use incumbent::{Authority, ErrorKind, FencingToken, Leader, LossReason, StopReason};
use incumbent_guardian::{ExitStatus, KillCause};
use serde::Serialize;

use crate::narrator::{Narrator, Tone};
use crate::{clock, exit, text};

/// The version of the events.
pub(crate) const FORMAT: u32 = 1;

/// Something that happened.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Report<'a> {
    /// A campaign began.
    Campaigning { backend: &'a str },
    /// Another leads, or nobody does.
    Standby { leader: Option<&'a Leader> },
    /// A term began.
    Elected { token: Option<FencingToken>, authority: &'a Authority, valid_ms: u64 },
    /// The command runs.
    Started { pid: i32, lease_file: &'a str },
    /// The term is good for longer.
    Extended { valid_ms: u64 },
    /// The command was told to stop; without a bound nothing kills it.
    Stopping { reason: &'static str, to: Option<&'a str>, kill_in_ms: Option<u64> },
    /// The command's tree is being killed.
    Killing { reason: &'static str },
    /// Processes of the command cannot be killed yet.
    NotEmpty { pids: &'a [i32] },
    /// What an earlier run left on this machine cannot be killed yet: this candidate does not campaign until it is gone.
    Blocked { pids: &'a [i32] },
    /// The command's own process ended.
    Exited { code: Option<i32>, signal: Option<i32> },
    /// The term is over, against its will.
    Lost { reason: &'static str, leader: Option<&'a Leader> },
    /// The store gives trouble, for so long already; the term is still good for so long. What failed is tried again for so
    /// long, or without an end.
    Trouble { kind: String, message: String, lasts_ms: u64, valid_ms: Option<u64>, tries_for_ms: Option<u64> },
    /// The store answers again.
    Recovered { lasted_ms: u64 },
    /// Another process campaigns under the same id.
    SameId { leader: &'a Leader },
    /// The term was given back; this candidate stays away for so long, so that another can win.
    Released { campaigning_in_ms: u64 },
    /// The command will be started again in a new term.
    Pause { restart_in_ms: u64, released: bool },
    /// A peer takes part in elections.
    Voting { address: &'a str, cluster: &'a str, peers: usize },
    /// Something that is good to know.
    Note { message: &'a str },
    /// Something that should be changed.
    Warning { message: &'a str },
    /// What the library logs.
    Log { message: &'a str },
    /// Why this process ends.
    Error { kind: String, message: &'a str },
    /// This process ends. A lease that it held and could not release runs out by itself, within so long.
    Ended { exit_code: u8, released: bool, lease_left_ms: Option<u64> },
}

/// Milliseconds for an event.
pub(crate) fn ms(span: Duration) -> u64 {
    span.as_millis().try_into().unwrap_or(u64::MAX)
}

pub(crate) fn stop_word(reason: &StopReason) -> &'static str {
    match reason {
        StopReason::Resigned => "resigned",
        StopReason::Handover(_) => "handover",
        StopReason::Shutdown => "shutdown",
        StopReason::Stalled => "stalled",
        StopReason::Outage => "outage",
    }
}

pub(crate) fn loss_word(reason: &LossReason) -> &'static str {
    match reason {
        LossReason::Stopped(reason) | LossReason::DrainOverran(reason) => stop_word(reason),
        LossReason::Expired => "expired",
        LossReason::Superseded(_) => "superseded",
    }
}

pub(crate) fn kill_word(cause: KillCause) -> &'static str {
    match cause {
        KillCause::Deadline => "deadline",
        KillCause::Requested => "requested",
        KillCause::GuardianLost => "guardian_lost",
        KillCause::GuardianSilent => "guardian_silent",
        KillCause::LauncherSilent => "launcher_silent",
        KillCause::ParentLost => "parent_lost",
    }
}

impl Report<'_> {
    pub(crate) fn exited(status: ExitStatus) -> Report<'static> {
        match status {
            ExitStatus::Code(code) => Report::Exited { code: Some(code), signal: None },
            ExitStatus::Signal(signal) => Report::Exited { code: None, signal: Some(signal) },
        }
    }
}

/// For people, as in `processes 3, 4`.
fn processes(pids: &[i32]) -> String {
    let numbers = pids.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
    if pids.len() == 1 { format!("process {numbers}") } else { format!("processes {numbers}") }
}

/// Which reports are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Quiet,
    Normal,
    Verbose,
}

/// Whose reports these are, and how they are told.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    pub(crate) narrator: Narrator,
    pub(crate) election: String,
    pub(crate) id: String,
    /// The name of the command, without its arguments.
    pub(crate) program: String,
    pub(crate) level: Level,
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct Event<'a> {
    v: u32,
    #[serde(flatten)]
    report: &'a Report<'a>,
    election: &'a str,
    id: &'a str,
    at_unix_ms: u64,
}

impl Reporter {
    pub(crate) fn tell(&self, report: &Report<'_>) {
        let (level, tone, label, text) = self.line(report);
        if level > self.level {
            return;
        }
        if self.json {
            let (election, id) = (self.election.as_str(), self.id.as_str());
            let event = Event { v: FORMAT, report, election, id, at_unix_ms: clock::unix_ms() };
            self.narrator.raw(&serde_json::to_string(&event).unwrap_or_default());
        } else if !text.is_empty() {
            self.narrator.line(tone, label, &text);
        }
    }

    pub(crate) fn note(&self, message: &str) {
        self.tell(&Report::Note { message });
    }

    pub(crate) fn warn(&self, message: &str) {
        self.tell(&Report::Warning { message });
    }

    pub(crate) fn error(&self, kind: ErrorKind, message: &str) {
        self.tell(&Report::Error { kind: text::kind(kind), message });
    }

    fn line(&self, report: &Report<'_>) -> (Level, Tone, &'static str, String) {
        use Level::{Normal, Quiet, Verbose};
        let (election, id, program) = (&self.election, &self.id, &self.program);
        let span = |ms: u64| text::span(Duration::from_millis(ms));
        match report {
            Report::Campaigning { backend } => {
                (Verbose, Tone::Calm, "standby", format!("{id} campaigns for {election} on {backend}"))
            }
            Report::Standby { leader: Some(leader) } => {
                let text =
                    format!("{election} is led by {}{}", text::leader(leader), text::for_how_long(leader));
                (Normal, Tone::Calm, "standby", text)
            }
            Report::Standby { leader: None } => {
                (Normal, Tone::Calm, "standby", format!("nobody leads {election} now; campaigning"))
            }
            Report::Elected { token, valid_ms, .. } => {
                let token = token.map_or("no token".to_owned(), |token| format!("token {token}"));
                let text = format!("{id} leads {election} ({token}); starting {program}");
                let more = format!("{text}; the term is good for {} and is renewed", span(*valid_ms));
                (Normal, Tone::Good, "leader", if self.level == Verbose { more } else { text })
            }
            Report::Started { pid, lease_file } => (
                Verbose,
                Tone::Good,
                "leader",
                format!("{program} runs as process {pid}; its lease file is {lease_file}"),
            ),
            Report::Extended { valid_ms } => {
                (Verbose, Tone::Good, "leader", format!("renewed; the term is good for {}", span(*valid_ms)))
            }
            Report::Stopping { reason, to, kill_in_ms } => {
                let why = match (*reason, to) {
                    ("handover", Some(to)) => format!("asked to hand {election} over to {to}"),
                    ("handover", None) | ("resigned", _) => format!("asked to give up {election}"),
                    ("outage", _) => format!("the lease of {election} could not be renewed"),
                    _ => "told to stop".to_owned(),
                };
                let bound = match kill_in_ms {
                    Some(limit) => format!("{program} has {} to end, then it is killed", span(*limit)),
                    None => format!("waiting for {program} to end"),
                };
                let hint = if *reason == "shutdown" { "; a second signal kills it now" } else { "" };
                (Normal, Tone::Warning, "stopping", format!("{why}; {bound}{hint}"))
            }
            Report::Killing { reason } => {
                let why = match *reason {
                    "deadline" => format!("the term of {election} is over"),
                    "drain" => format!("{program} has not ended in time"),
                    "signal" => "told to stop again".to_owned(),
                    "superseded" => format!("{id} leads {election} no longer"),
                    "expired" => format!("the lease of {election} ran out"),
                    "guardian_lost" => format!("the guardian of {program} died"),
                    "guardian_silent" => format!("the guardian of {program} does not answer"),
                    "launcher_silent" => format!("the process that should become {program} does not answer"),
                    _ => "told to".to_owned(),
                };
                (
                    Normal,
                    Tone::Warning,
                    "killing",
                    format!("{why}: {program} and all that it started is killed"),
                )
            }
            Report::Blocked { pids } => {
                let text = match pids {
                    [] => {
                        format!("what an earlier run of {election} left is only gone now; campaigning again")
                    }
                    pids => format!(
                        "{} of an earlier run of {election} cannot be killed yet; {id} waits until that is gone",
                        processes(pids)
                    ),
                };
                (Quiet, Tone::Warning, "standby", text)
            }
            Report::NotEmpty { pids } => {
                let pids = pids.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
                let text = format!("{pids} cannot be killed yet; {election} is not released while they live");
                (Quiet, Tone::Error, "killing", text)
            }
            Report::Exited { code: Some(code), .. } => {
                (Normal, Tone::Calm, "ended", format!("{program} exited with {code}"))
            }
            Report::Exited { signal, .. } => {
                let signal = text::signal(signal.unwrap_or_default());
                (Normal, Tone::Calm, "ended", format!("{program} was ended by {signal}"))
            }
            Report::Lost { leader, reason } => {
                let text = match leader {
                    Some(leader) => format!("{election} is led by {} now", text::leader(leader)),
                    None if *reason == "superseded" => format!(
                        "the store shows {id} as the leader of {election} no longer: what said so was removed or changed"
                    ),
                    None => format!("{id} leads {election} no longer"),
                };
                (Normal, Tone::Warning, "lost", text)
            }
            Report::Trouble { message, lasts_ms, valid_ms, tries_for_ms, .. } => {
                let lasts =
                    if *lasts_ms < 1000 { String::new() } else { format!(", for {} now", span(*lasts_ms)) };
                let then = match (valid_ms, tries_for_ms) {
                    (Some(left), _) => format!("; the term is good for another {}", span(*left)),
                    (None, None) => "; trying again".to_owned(),
                    (None, Some(0)) => "; not tried again".to_owned(),
                    (None, Some(limit)) => format!("; trying again for {}", span(*limit)),
                };
                (Quiet, Tone::Warning, "warning", format!("{message}{lasts}{then}"))
            }
            Report::Recovered { lasted_ms } => {
                let text = format!("the store answers again after {}", span(*lasted_ms));
                (Quiet, Tone::Calm, "note", text)
            }
            Report::SameId { leader } => {
                let nonce =
                    leader.contender.nonce.map(|nonce| format!(" (nonce {nonce})")).unwrap_or_default();
                let text = format!(
                    "another process campaigns for {election} as {id}{nonce}; they exclude each other, but give each its own --id"
                );
                (Quiet, Tone::Warning, "warning", text)
            }
            Report::Released { campaigning_in_ms } => {
                let text = format!("{election}; campaigning again in {}", span(*campaigning_in_ms));
                (Normal, Tone::Calm, "released", text)
            }
            Report::Pause { restart_in_ms, released } => {
                let given_back = if *released { "given back; " } else { "" };
                let text =
                    format!("{given_back}campaigning for {election} again in {}", span(*restart_in_ms));
                (Normal, Tone::Calm, "restart", text)
            }
            Report::Voting { address, cluster, peers } => (
                Normal,
                Tone::Good,
                "peer",
                format!("{id} of {cluster} votes, at {address}, as one of {peers}"),
            ),
            Report::Note { message } => (Normal, Tone::Calm, "note", (*message).to_owned()),
            Report::Warning { message } => (Quiet, Tone::Warning, "warning", (*message).to_owned()),
            Report::Log { message } => (Verbose, Tone::Calm, "log", (*message).to_owned()),
            Report::Error { message, .. } => (Quiet, Tone::Error, "error", (*message).to_owned()),
            Report::Ended { released: true, .. } => (Normal, Tone::Calm, "released", election.clone()),
            Report::Ended { lease_left_ms: Some(left), .. } => {
                let lease = match left {
                    0 => "has run out".to_owned(),
                    left => format!("runs out by itself, within {}", span(*left)),
                };
                let text = format!("{election} could not be released; its lease {lease}");
                (Quiet, Tone::Warning, "warning", text)
            }
            Report::Ended { exit_code: 0, .. } => {
                (Normal, Tone::Calm, "ended", format!("{id} no longer stands for {election}"))
            }
            Report::Ended { exit_code: exit::ANOTHER_LEADS, .. } => {
                (Normal, Tone::Calm, "ended", format!("another leads {election}, and --no-wait was given"))
            }
            // The reason was told.
            Report::Ended { .. } => (Normal, Tone::Calm, "ended", String::new()),
        }
    }
}
