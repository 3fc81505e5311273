//! `doctor`: the settings in force and where each comes from, what follows from them, and what this machine lacks.

use std::process::ExitCode;

use incumbent::{CandidateId, Connection, Error, Guarantees, Result, Timing};
use incumbent_core::guarantees::Exclusion;
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::output::{Answer, answer, lines, print, print_json, table};
use crate::store::{Source, Store};
use crate::{exit, identity, platform, text};

#[derive(Serialize)]
struct Report {
    settings: Vec<Setting>,
    /// What follows from them; empty if they contradict each other.
    consequences: Vec<Consequence>,
    checks: Vec<Check>,
}

#[derive(Serialize)]
struct Setting {
    name: &'static str,
    value: String,
    from: String,
}

/// A figure; `None` is without bound.
#[derive(Serialize)]
struct Consequence {
    /// For programs; the name is for people.
    key: &'static str,
    name: &'static str,
    ms: Option<u64>,
}

/// Something that was looked at.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) state: State,
    pub(crate) detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Ok,
    /// It works, with less protection.
    Lacking,
    /// `run` would fail.
    Wrong,
}

impl Check {
    pub(crate) fn new(name: &'static str, state: State, detail: impl Into<String>) -> Check {
        Check { name, state, detail: detail.into() }
    }

    fn wrong(name: &'static str, error: &Error) -> Check {
        Check::new(name, State::Wrong, text::error(error))
    }
}

pub(crate) fn doctor(args: &DoctorArgs) -> ExitCode {
    answer(args.json, examine(args))
}

async fn examine(args: &DoctorArgs) -> Answer {
    if args.print_schema {
        let store = Store::choose(&args.store, Some(&args.term))?;
        print(incumbent::backend::schema(&store.url)?.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = Report { settings: Vec::new(), consequences: Vec::new(), checks: Vec::new() };
    let id = match identity::choose(args.id.as_ref()) {
        Ok((id, from)) => {
            report.settings.push(Setting { name: "id", value: id.to_string(), from: from.text() });
            Some(id)
        }
        Err(error) => {
            report.checks.push(Check::wrong("id", &error));
            None
        }
    };
    match Store::choose(&args.store, Some(&args.term)) {
        Ok(store) => examine_store(args, &store, id.as_ref(), &mut report).await,
        Err(error) => report.checks.push(Check::wrong("backend", &error)),
    }
    report.checks.extend(platform::checks());
    if args.json {
        print_json(&report)?;
    } else {
        print(for_people(&report).as_bytes())?;
    }
    let wrong = report.checks.iter().any(|check| check.state == State::Wrong);
    Ok(ExitCode::from(if wrong { exit::NO } else { exit::OK }))
}

async fn examine_store(args: &DoctorArgs, store: &Store, id: Option<&CandidateId>, report: &mut Report) {
    report.settings.push(Setting { name: "backend", value: store.shown(), from: store.source.text() });
    for warning in store.warnings() {
        report.checks.push(Check::new("advice", State::Lacking, warning));
    }
    let connection = match store.connect().await {
        Ok(connection) => connection,
        Err(error) => return report.checks.push(Check::wrong("backend", &error)),
    };
    let guarantees = connection.guarantees();
    match timing(args, &connection, id) {
        Ok(timing) => {
            report.settings.extend(settings(args, store, &timing));
            report.consequences = consequences(&timing, guarantees);
        }
        Err(error) => report.checks.push(Check::wrong("settings", &error)),
    }
    report.checks.push(match guarantees.exclusion {
        Exclusion::None => {
            let detail = format!("{}; run refuses it unless told --allow-split-brain", guarantees.summary);
            Check::new("backend", State::Lacking, detail)
        }
        _ => Check::new("backend", State::Ok, guarantees.summary),
    });
    let answers = match store.missing_dir() {
        Some(dir) => {
            let detail = format!("there is no directory {} yet; the first run makes it", dir.display());
            Check::new("store", State::Ok, detail)
        }
        None => ask(args, &connection).await,
    };
    if answers.state == State::Ok {
        match connection.advice().await {
            Ok(advice) => {
                let lines = advice.into_iter().map(|line| Check::new("advice", State::Lacking, line));
                report.checks.extend(lines);
            }
            // The store answers whoever asks, and `run` would fail all the same.
            Err(error) if !error.is_retryable() => report.checks.push(Check::wrong("advice", &error)),
            Err(_) => {}
        }
    }
    report.checks.push(answers);
}

fn timing(args: &DoctorArgs, connection: &Connection, id: Option<&CandidateId>) -> Result<Timing> {
    let id = id.map_or("doctor", CandidateId::as_str);
    let mut candidate = connection.election(name(args)).candidate(id);
    if let Some(grace) = args.term.grace {
        candidate = candidate.grace(grace);
    }
    candidate.timing()
}

/// The election that is looked at. Without one, a name that nobody uses: the answer shows all the same that there is one.
fn name(args: &DoctorArgs) -> String {
    args.election.as_ref().map_or("incumbent-doctor".to_owned(), ToString::to_string)
}

async fn ask(args: &DoctorArgs, connection: &Connection) -> Check {
    let election = connection.election(name(args));
    match election.observe().await {
        Err(error) => Check::wrong("store", &error),
        Ok(observation) => {
            let who = match (&args.election, &observation.leader) {
                (None, _) => String::new(),
                (Some(election), None) => format!("; nobody leads {election}"),
                (Some(election), Some(leader)) => format!("; {election} is led by {}", text::leader(leader)),
            };
            Check::new("store", State::Ok, format!("answers{who}"))
        }
    }
}

fn settings(args: &DoctorArgs, store: &Store, timing: &Timing) -> Vec<Setting> {
    let from = |given: bool, otherwise: &str| {
        if given { Source::Flag.text() } else { format!("{}: {otherwise}", Source::Default.text()) }
    };
    let drain = timing.drain.map_or("none".to_owned(), text::span);
    vec![
        Setting { name: "ttl", value: text::span(timing.ttl), from: store.ttl_source.text() },
        Setting {
            name: "grace",
            value: exact(crate::report::ms(timing.grace)),
            from: from(args.term.grace.is_some(), "ttl/4, at most 5 s"),
        },
        Setting { name: "drain", value: drain, from: from(args.term.drain.is_some(), "30 s") },
        Setting {
            name: "margin",
            value: exact(crate::report::ms(timing.margin)),
            from: from(false, "ttl/10"),
        },
        Setting {
            name: "clock drift",
            value: format!("{} ppm", timing.drift_ppm),
            from: from(false, "the most that a clock's rate is off"),
        },
    ]
}

fn consequences(timing: &Timing, guarantees: &Guarantees) -> Vec<Consequence> {
    let trust = timing.deadline(incumbent::BootInstant::ZERO, timing.ttl).since(incumbent::BootInstant::ZERO);
    let takeover = guarantees.takeover_max(timing.ttl);
    let figure = |key, name, span| Consequence { key, name, ms: Some(crate::report::ms(span)) };
    vec![
        figure("renewed_every", "a lease is renewed every", timing.renew_interval),
        figure(
            "told_to_stop_after",
            "without a renewal, the command is told to stop after",
            trust.saturating_sub(timing.grace),
        ),
        figure("killed_after", "and killed after", trust.saturating_sub(timing.kill_lead())),
        figure(
            "store_lets_go_after",
            "the store lets go of the lease not before",
            timing.ttl.saturating_sub(timing.slack),
        ),
        figure(
            "left_after_kill",
            "between the kill and that",
            timing.ttl.saturating_sub(timing.slack + trust) + timing.kill_lead(),
        ),
        figure("crash_failover_max", "fail-over after a crash, at most", timing.crash_failover_max(takeover)),
        Consequence {
            key: "handover_max",
            name: "hand-over after SIGTERM, at most (the command's own time to end and one write)",
            ms: timing.drain.map(|drain| crate::report::ms(drain + timing.call_timeout)),
        },
    ]
}

fn for_people(report: &Report) -> String {
    let mut settings = table(&["setting", "value", "from"]);
    for Setting { name, value, from } in &report.settings {
        settings.add_row([name, value.as_str(), from]);
    }
    let mut text = lines(&settings) + "\n";
    if !report.consequences.is_empty() {
        let mut consequences = table(&["what follows", ""]);
        for Consequence { name, ms, .. } in &report.consequences {
            let span = ms.map_or("no bound".to_owned(), exact);
            consequences.add_row([(*name).to_owned(), span]);
        }
        text += &(lines(&consequences) + "\n");
    }
    let mut checks = table(&["check", "", ""]);
    for Check { name, state, detail } in &report.checks {
        let state = match state {
            State::Ok => "ok",
            State::Lacking => "lacking",
            State::Wrong => "WRONG",
        };
        checks.add_row([name, state, detail.as_str()]);
    }
    text + &lines(&checks)
}

/// Milliseconds as seconds, without rounding: a reader adds and subtracts these figures.
fn exact(ms: u64) -> String {
    format!("{} s", ms as f64 / 1000.0)
}
