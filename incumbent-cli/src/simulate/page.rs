//! The page: one file that needs nothing else, neither a network nor a script, on a screen and on paper.

mod picture;
mod window;

use std::fmt::Write;

use incumbent_sim::report::{Report, Scenario};

use self::picture::Picture;
use self::window::Window;
use super::table::{lasted, range, time, title, two_leaders};

const STYLE: &str = include_str!("page/style.css");
/// Patterns, which tell on grey paper what colours tell on a screen.
const PATTERNS: &str = include_str!("page/patterns.svg");

/// Text that means itself in HTML.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// The page of these reports, which are of one scenario, one seed and so many nodes.
pub(super) fn page(reports: &[Report]) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let heading = format!("Elections under {}", in_words(first.setup.scenario));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{heading}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{PATTERNS}"
    );
    page += &format!(
        "<header>\n<h1>{heading}</h1>\n<p class=\"verdict\">{}</p>\n<p>{} There are {} nodes; the lease lasts {:.0} s.</p>\n</header>\n<main>\n",
        escape(&verdict(reports)),
        escape(first.setup.scenario.summary()),
        first.setup.nodes,
        first.ttl_ms as f64 / 1_000.0,
    );
    page += &figures(reports);
    page += &legend(reports);
    let window = Window::around_what_tells_most(reports);
    for (number, report) in reports.iter().enumerate() {
        page += &section(number, report, &window);
    }
    let _ = write!(
        page,
        "</main>\n<footer>\n<p>Simulated in virtual time with the code that elects for real. The same again: <code>{}</code></p>\n</footer>\n</body>\n</html>\n",
        escape(&command(reports))
    );
    page
}

fn in_words(scenario: Scenario) -> &'static str {
    match scenario {
        Scenario::LeaderCrash => "crashes of the leader",
        Scenario::Partition => "partitions",
        Scenario::Flapping => "a node that comes and goes",
        Scenario::SlowNetwork => "a slow network",
        Scenario::FrozenLeader => "leaders that stand still",
        Scenario::ClockSkew => "clocks that are off",
    }
}

/// Who split and who did not, in a sentence or two.
fn verdict(reports: &[Report]) -> String {
    let list = |split: bool| {
        let of = reports.iter().filter(|report| (report.two_leaders_ms > 0.0) == split);
        of.map(|report| match split {
            true => format!("{} (for {})", title(report), lasted(report.two_leaders_ms)),
            false => title(report),
        })
        .collect::<Vec<_>>()
        .join(" and ")
    };
    let simulated: f64 = reports.first().map_or(0.0, |first| first.duration_ms * first.runs as f64);
    let of = format!("Two leaders at once in {:.0} s", simulated / 1_000.0);
    match (list(true).as_str(), list(false).as_str()) {
        ("", never) => format!("{of}: never with {never}."),
        (split, "") => format!("{of}: with {split}."),
        (split, never) => format!("{of}: with {split}. Never with {never}."),
    }
}

fn command(reports: &[Report]) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let setup = &first.setup;
    let mut command = "incumbent simulate".to_owned();
    match reports.len() {
        1 => command += &format!(" --algorithm {}", setup.algorithm.name()),
        _ => command += " --compare",
    }
    if reports.iter().any(|report| report.setup.majority && report.setup.algorithm.may_do_without_majority())
    {
        command += " --majority";
    }
    command +=
        &format!(" --scenario {} --nodes {} --seed {}", setup.scenario.name(), setup.nodes, setup.seed);
    if first.runs > 1 {
        command += &format!(" --runs {}", first.runs);
    }
    command + " --html report.html"
}

/// A cell's text and whether it is bad news.
fn row(cells: &[(String, bool)]) -> String {
    let mut row = String::from("<tr>");
    for (number, (text, bad)) in cells.iter().enumerate() {
        let class = if *bad { " class=\"bad\"" } else { "" };
        let _ = match number {
            0 => write!(row, "<th scope=\"row\">{}</th>", escape(text)),
            _ => write!(row, "<td{class}>{}</td>", escape(text)),
        };
    }
    row + "</tr>\n"
}

fn table(caption: &str, header: &[&str], rows: &str) -> String {
    let head: String = header.iter().map(|cell| format!("<th scope=\"col\">{}</th>", escape(cell))).collect();
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\">\n<table>\n<caption>{caption}</caption>\n\
         <thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n",
        caption = escape(caption),
    )
}

fn figures(reports: &[Report]) -> String {
    let rows: String = reports
        .iter()
        .map(|report| {
            let good = |text: String| (text, false);
            row(&[
                good(title(report)),
                (two_leaders(report), report.two_leaders_ms > 0.0),
                good(report.elections.to_string()),
                good(time(report.time_to_elect_ms.p50)),
                good(time(report.time_to_elect_ms.p95)),
                good(report.messages_per_election().map_or("-".to_owned(), |count| format!("{count:.1}"))),
                good(report.theory.as_ref().map_or("-".to_owned(), |theory| range(theory.total))),
                good(report.stale_writes_refused.to_string()),
                (report.stale_writes_let_in.to_string(), report.stale_writes_let_in > 0),
            ])
        })
        .collect();
    let runs = reports.first().map_or(1, |first| first.runs);
    let caption = match runs {
        1 => "Figures".to_owned(),
        runs => format!("Figures of {runs} runs; the pictures below are of the first"),
    };
    let header = [
        "algorithm",
        "two leaders",
        "elections",
        "elected after, p50",
        "p95",
        "messages an election",
        "by the papers",
        "stale writes refused",
        "stale writes let in",
    ];
    let note = "Messages an election: those that elect, over the terms that began; attempts in vain count, too. By the papers: one \
                election in which nothing goes wrong. Stale writes: of an older leader, after a newer one has written; the fence \
                refuses them by their token, where there is one.";
    format!("{}<p class=\"note\">{note}</p>\n", table(&caption, &header, &rows))
}

fn legend(reports: &[Report]) -> String {
    let key = |class: &str, text: &str| {
        format!(
            "<li><svg viewBox=\"0 0 36 18\" width=\"36\" height=\"18\" aria-hidden=\"true\">{class}</svg> {text}</li>\n"
        )
    };
    let boxed = |class: &str| format!("<rect class=\"{class}\" x=\"1\" y=\"2\" width=\"34\" height=\"14\"/>");
    let line = |class: &str| format!("<path class=\"{class}\" d=\"M4 16 L4 2 M14 16 L14 2 M24 16 L24 2\"/>");
    let store = reports.iter().any(|report| report.timeline.views.is_empty());
    let mut keys = String::new();
    keys += &key(&boxed("leads k0"), "leads, as a check of its term says");
    keys += &key(&boxed("follows k0"), "takes the node of that colour for the leader");
    keys += &key(
        &boxed("cut"),
        if store { "cut off from the others, or from the store" } else { "cut off from the others" },
    );
    keys += &key(&boxed("frozen"), "stands still");
    keys += &key(&boxed("down"), "is down");
    keys += &key(&(boxed("overlap") + &boxed("overlap-edge")), "two lead at once");
    keys += &key(&line("election"), "messages of an election");
    keys += &key(&line("upkeep"), "heartbeats and renewals; their answers are not drawn");
    keys += &key("<path class=\"lost\" d=\"M8 16 L8 6 M5 3 l6 6 m0 -6 l-6 6\"/>", "lost on the way");
    format!(
        "<section aria-labelledby=\"key\">\n<h2 id=\"key\">How to read the pictures</h2>\n<ul class=\"key\">\n{keys}</ul>\n</section>\n"
    )
}

fn section(number: usize, report: &Report, window: &Window) -> String {
    let name = title(report);
    let split = report.two_leaders_ms > 0.0;
    let badge = match split {
        true => format!("<span class=\"badge bad\">two leaders: {}</span>", escape(&two_leaders(report))),
        false => "<span class=\"badge\">never two leaders</span>".to_owned(),
    };
    let near = Picture::near(report, window).draw(&format!("near{number}"));
    let whole = Picture::whole(report).draw(&format!("whole{number}"));
    let rows: String = report
        .messages
        .iter()
        .map(|(kind, sent)| {
            let expected = report.theory.as_ref().and_then(|theory| theory.messages.get(kind));
            let each = *sent as f64 / (report.elections as f64).max(1.0);
            row(&[
                ((*kind).to_owned(), false),
                (sent.to_string(), false),
                (expected.map_or("-".to_owned(), |_| format!("{each:.1}")), false),
                (expected.map_or("-".to_owned(), |expected| range(*expected)), false),
            ])
        })
        .collect();
    let source =
        report.theory.as_ref().map_or("Nobody elects: each candidate asks the store.".to_owned(), |theory| {
            format!("By the papers: {}.", theory.source)
        });
    let messages =
        table(&format!("Messages of {name}"), &["kind", "sent", "an election", "by the papers"], &rows);
    format!(
        "<section aria-labelledby=\"alg{number}\">\n<h2 id=\"alg{number}\">{} {badge}</h2>\n<p class=\"story\">{}</p>\n{near}{whole}{messages}<p class=\"note\">{}</p>\n</section>\n",
        escape(&name),
        escape(&report.story),
        escape(&source),
    )
}
