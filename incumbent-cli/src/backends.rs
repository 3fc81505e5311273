//! `backends`: what each backend promises, from the registry; the README's table is the same.

use std::process::ExitCode;

use incumbent::backend::{REGISTRY, Scheme};
use incumbent::{Guarantees, Settings, Timing};
use incumbent_core::guarantees::{Exclusion, Expiry, Handover, TokenSource, Transfer};
use serde::Serialize;

use crate::args::BackendsArgs;
use crate::output;
use crate::text;

const HEADER: [&str; 8] = [
    "backend",
    "excludes by",
    "token",
    "expiry judged by",
    "standbys",
    "hand-over",
    "survives",
    "after a crash",
];

#[derive(Serialize)]
struct Report {
    backends: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    scheme: &'static str,
    example: &'static str,
    feature: Option<&'static str>,
    /// `None` if this build lacks it.
    guarantees: Option<Guarantees>,
}

pub(crate) fn backends(args: &BackendsArgs) -> ExitCode {
    let printed = if args.json {
        output::print_json(&Report { backends: REGISTRY.iter().map(row).collect() })
    } else if args.markdown {
        output::print(markdown().as_bytes())
    } else {
        output::print(for_people().as_bytes())
    };
    output::conclude(args.json, printed.map(|()| ExitCode::SUCCESS))
}

fn row(scheme: &Scheme) -> Row {
    let Scheme { name, example, feature, guarantees, .. } = scheme;
    Row { scheme: name, example, feature: *feature, guarantees: guarantees.map(|promised| promised()) }
}

fn for_people() -> String {
    let mut table = output::table(&HEADER);
    let mut summaries = String::new();
    for Row { scheme, example, guarantees, .. } in REGISTRY.iter().map(row) {
        match guarantees {
            Some(promised) => {
                table.add_row(cells(example, &promised));
                summaries += &format!("{scheme}: {}\n", promised.summary);
            }
            None => {
                table.add_row([example.to_owned(), "not in this build".to_owned()]);
            }
        }
    }
    format!("{}\n{summaries}", output::lines(&table))
}

fn markdown() -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut header: Vec<String> = HEADER.iter().map(|cell| (*cell).to_owned()).collect();
    header.push("in words".to_owned());
    let mut text = line(&header) + &line(&vec!["---".to_owned(); header.len()]);
    for Row { example, guarantees, .. } in REGISTRY.iter().map(row) {
        if let Some(promised) = guarantees {
            let mut cells = cells(&format!("`{example}`"), &promised);
            cells.push(promised.summary.to_owned());
            text += &line(&cells);
        }
    }
    text
}

fn cells(example: &str, promised: &Guarantees) -> Vec<String> {
    let survives: Vec<&str> = [
        (promised.survives.crash, "crash"),
        (promised.survives.power_loss, "power loss"),
        (promised.survives.failover, "fail-over"),
    ]
    .into_iter()
    .filter_map(|(does, what)| does.then_some(what))
    .collect();
    vec![
        example.to_owned(),
        exclusion(promised.exclusion).to_owned(),
        token(promised.token).to_owned(),
        match promised.expiry {
            Expiry::Server => "the server",
            Expiry::Challenger => "the challenger",
            Expiry::Peers => "the peers",
        }
        .to_owned(),
        match promised.handover {
            Handover::Pushed => "are told",
            Handover::Polled => "ask",
        }
        .to_owned(),
        match promised.transfer {
            Transfer::Targeted => "to a named one",
            Transfer::NextInLine => "to the next",
        }
        .to_owned(),
        if survives.is_empty() { "-".to_owned() } else { survives.join(", ") },
        takeover(promised),
    ]
}

fn exclusion(exclusion: Exclusion) -> &'static str {
    match exclusion {
        Exclusion::Consensus => "consensus",
        Exclusion::SingleNode => "one node",
        Exclusion::AsyncReplicated => "one node, replicated later",
        Exclusion::None => "nothing",
    }
}

fn token(token: TokenSource) -> &'static str {
    match token {
        TokenSource::Revision => "revision",
        TokenSource::Hybrid => "counter and clock",
        TokenSource::Counter => "counter",
        TokenSource::Term => "term",
        TokenSource::Epoch => "epoch",
        TokenSource::None => "none",
    }
}

/// The longest fail-over with the default settings, as `doctor` tells it.
fn takeover(promised: &Guarantees) -> String {
    let takeover = |timing: Timing| timing.crash_failover_max(promised.takeover_max(timing.ttl));
    match Timing::new(&Settings::default(), promised) {
        Ok(timing) => format!("≤ {}", text::bound(takeover(timing))),
        Err(_) => "-".to_owned(), // the default ttl is below this backend's shortest
    }
}
