//! The figures, for a terminal.

use incumbent_sim::report::{Algorithm, Expected, Report};

use crate::output::{lines, table};

/// What is shown.
pub(super) fn for_people(reports: &[Report]) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let mut text = format!("{}\n\n{}\n", headline(first), figures(reports));
    for report in reports {
        text += &format!("{}: {}\n", title(report), report.story);
    }
    for report in reports {
        text += &format!("\n{}", messages(report));
    }
    for violation in reports.iter().flat_map(|report| &report.violations) {
        text += &format!("\nbroken: {violation}");
    }
    text
}

/// What was run, in a line.
fn headline(report: &Report) -> String {
    let seeds = match report.runs {
        1 => format!("seed {}", report.setup.seed),
        runs => format!("seeds {} to {}", report.setup.seed, report.setup.seed.wrapping_add(runs - 1)),
    };
    format!(
        "{}: {} nodes, {seeds}, {:.0} s each with a lease of {} ms. {}",
        report.setup.scenario.name(),
        report.setup.nodes,
        report.duration_ms / 1_000.0,
        report.ttl_ms,
        report.setup.scenario.summary(),
    )
}

/// The algorithm, as a heading names it.
pub(super) fn title(report: &Report) -> String {
    let name = match report.setup.algorithm {
        Algorithm::Bully => "Bully",
        Algorithm::Ring => "Ring",
        Algorithm::Raft => "Raft",
        Algorithm::Lease => "Lease",
    };
    match report.setup.majority && report.setup.algorithm.may_do_without_majority() {
        true => format!("{name} with a majority"),
        false => name.to_owned(),
    }
}

fn figures(reports: &[Report]) -> String {
    let mut table = table(&[
        "algorithm",
        "elections",
        "messages each",
        "by the papers",
        "elected after p50",
        "p95",
        "two leaders",
        "stale writes refused",
        "let in",
    ]);
    for report in reports {
        table.add_row([
            title(report),
            report.elections.to_string(),
            report.messages_per_election().map_or("-".to_owned(), |count| format!("{count:.1}")),
            report.theory.as_ref().map_or("-".to_owned(), |theory| range(theory.total)),
            time(report.time_to_elect_ms.p50),
            time(report.time_to_elect_ms.p95),
            two_leaders(report),
            report.stale_writes_refused.to_string(),
            report.stale_writes_let_in.to_string(),
        ]);
    }
    lines(&table)
}

fn messages(report: &Report) -> String {
    let title = format!("{}: messages", title(report));
    let mut table = table(&[&title, "sent", "per election", "by the papers"]);
    for (kind, sent) in &report.messages {
        let expected = report.theory.as_ref().and_then(|theory| theory.messages.get(kind));
        let each = *sent as f64 / (report.elections as f64).max(1.0);
        table.add_row([
            (*kind).to_owned(),
            sent.to_string(),
            expected.map_or(String::new(), |_| format!("{each:.1}")),
            expected.map_or(String::new(), |expected| range(*expected)),
        ]);
    }
    let source =
        report.theory.as_ref().map_or("nobody elects: each candidate asks the store", |theory| theory.source);
    format!("{}({source})\n", lines(&table))
}

/// `6 to 48`.
pub(super) fn range(expected: Expected) -> String {
    match expected {
        Expected { best, worst } if best == worst => best.to_string(),
        Expected { best, worst } => format!("{best} to {worst}"),
    }
}

/// A time, where there is one.
pub(super) fn time(ms: Option<f64>) -> String {
    ms.map_or("-".to_owned(), |ms| format!("{ms:.0} ms"))
}

/// A length of time.
pub(super) fn lasted(ms: f64) -> String {
    if ms < 100.0 { format!("{ms:.1} ms") } else { format!("{:.1} s", ms / 1_000.0) }
}

/// How long two led at once.
pub(super) fn two_leaders(report: &Report) -> String {
    if report.two_leaders_ms == 0.0 {
        return "never".to_owned();
    }
    let lasted = lasted(report.two_leaders_ms);
    match report.runs {
        1 => lasted,
        runs => format!("{lasted}, in {} of {runs} runs", report.runs_with_two_leaders),
    }
}
