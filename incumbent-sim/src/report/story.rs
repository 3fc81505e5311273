//! What happened, and why, in plain words.

use super::{Algorithm, Leadership, Setup, Span, Timeline, Trouble};
use crate::outcome::Illness;
use crate::plan::Kind;

/// The name of a node, for people: they count from 1.
pub fn node_name(node: usize) -> String {
    format!("node-{}", node + 1)
}

/// Those that are cut off together: `node-1, node-2 and node-7`, or, if there are many, `node-7 and 23 others`.
fn names(together: &[usize], first: usize) -> String {
    let all: Vec<String> = together.iter().map(|node| node_name(*node)).collect();
    match &all[..] {
        many if many.len() > 4 => format!("{} and {} others", node_name(first), many.len() - 1),
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => node_name(first),
    }
}

fn seconds(ms: f64) -> String {
    format!("{:.1} s", ms / 1_000.0)
}

fn length(ms: f64) -> String {
    if ms < 100.0 { format!("{ms:.1} ms") } else { seconds(ms) }
}

pub(super) fn tell(setup: &Setup, timeline: &Timeline) -> String {
    if let Some(overlap) = timeline.telling_overlap() {
        return two_led(setup, timeline, &overlap);
    }
    let what = one_led(setup, timeline);
    if timeline.overlaps.is_empty() {
        return format!("{what} Two never led at once.");
    }
    let (sum, times) = sum(timeline);
    format!("{what} Until the news of another leader had come, two led for {sum} in all, at {times}.")
}

/// How long two led, and how often.
fn sum(timeline: &Timeline) -> (String, String) {
    let whole: f64 = timeline.overlaps.iter().map(Span::length_ms).sum();
    let times = match timeline.overlaps.len() {
        1 => "one time".to_owned(),
        times => format!("{times} times"),
    };
    (length(whole), times)
}

// ---- two ----

fn two_led(setup: &Setup, timeline: &Timeline, overlap: &Span) -> String {
    let at = overlap.from_ms;
    let mut leaders: Vec<&Leadership> = timeline.leaders_at(at).collect();
    leaders.sort_by(|a, b| a.span.from_ms.total_cmp(&b.span.from_ms));
    let [older, .., newer] = leaders[..] else { return one_led(setup, timeline) };
    let (old, new) = (node_name(older.node), node_name(newer.node));
    let what = match (timeline.trouble_of(older.node, at), timeline.trouble_of(newer.node, at)) {
        (Some(trouble), None) if trouble.what == Illness::Frozen => format!(
            "{old} stood still from {} on, and {new} began to lead before {old}'s term was over.",
            seconds(trouble.span.from_ms)
        ),
        (Some(trouble), None) => {
            let together = company(timeline, trouble);
            let (of_whom, place) = if together.len() > 1 { ("them", "there") } else { ("it", "for itself") };
            format!(
                "{} {} cut off at {}. {old} still led {place}; the others heard nothing of {of_whom}, and {new} became their leader.",
                names(&together, older.node),
                if together.len() > 1 { "were" } else { "was" },
                seconds(trouble.span.from_ms),
            )
        }
        (None, Some(trouble)) => {
            let together = company(timeline, trouble);
            format!(
                "{} {} cut off at {}, heard of no leader any more, and made {new} one, while {old} still led the others.",
                names(&together, newer.node),
                if together.len() > 1 { "were" } else { "was" },
                seconds(trouble.span.from_ms),
            )
        }
        _ => format!("{old} led when {new} began to lead, too, at {}.", seconds(at)),
    };
    let why = match setup.algorithm {
        _ if setup.excludes() => {
            "The clocks ran further apart than the nodes were told, so one trusted its lease for longer than the others waited"
        }
        Algorithm::Bully => "Bully asks for no majority: whoever hears nobody greater leads",
        _ => {
            "The ring asks for no majority: whoever's number comes back leads, however few are left in the ring"
        }
    };
    let (sum, times) = sum(timeline);
    let also = if timeline.overlaps.len() == 1 {
        String::new()
    } else {
        format!(", and for {sum} in all, at {times}")
    };
    format!("{what} {why}. So two led at once for {}{also}.", length(overlap.length_ms()))
}

/// Those with whom a node is cut off, itself included.
fn company(timeline: &Timeline, trouble: &Trouble) -> Vec<usize> {
    let same = |other: &&Trouble| other.what == trouble.what && other.span == trouble.span;
    let mut nodes: Vec<usize> = timeline.troubles.iter().filter(same).map(|other| other.node).collect();
    nodes.sort_unstable();
    nodes
}

// ---- one ----

fn one_led(setup: &Setup, timeline: &Timeline) -> String {
    let told = timeline.faults.iter().find_map(|fault| {
        let span = Timeline::span_of(fault);
        let leader = timeline.leaders_at(span.from_ms - 0.001).next()?;
        let trouble = timeline.trouble_of(leader.node, span.from_ms)?;
        let next = timeline.leaderships.iter().find(|next| next.span.from_ms >= leader.span.until_ms)?;
        Some(change(setup, timeline, fault.kind, leader, trouble, next))
    });
    told.unwrap_or_else(|| match timeline.leaderships.len() {
        0 => "Nobody was elected.".to_owned(),
        1 => format!("{} led all the time.", node_name(timeline.leaderships[0].node)),
        terms => format!("{terms} terms began, one after the other."),
    })
}

/// How one leader followed another.
fn change(
    setup: &Setup,
    timeline: &Timeline,
    kind: Kind,
    leader: &Leadership,
    trouble: &Trouble,
    next: &Leadership,
) -> String {
    let (old, new) = (node_name(leader.node), node_name(next.node));
    let (since, over, from) =
        (seconds(trouble.span.from_ms), seconds(leader.span.until_ms), seconds(next.span.from_ms));
    let new = if leader.node == next.node { "it again".to_owned() } else { new };
    if kind == Kind::Crash {
        return format!("{old} crashed at {since}. Nobody led until the others elected {new} at {from}.");
    }
    if kind == Kind::Freeze {
        let woke = seconds(trouble.span.until_ms);
        return format!(
            "{old} stood still from {since} to {woke}. Its lease ended by its own clock at {over}, so that it did not lead when it woke; \
             the next was {new}, at {from}."
        );
    }
    if setup.algorithm == Algorithm::Lease {
        return format!(
            "{old} was cut off from the store at {since} and could not renew its lease. It stopped leading by its own clock at {over}; the \
             store let the lease go later, and gave it to {new} at {from}."
        );
    }
    let together = company(timeline, trouble);
    let part = if together.len() > 1 { "were" } else { "was" };
    let (there, needed) = (together.len(), setup.nodes / 2 + 1);
    format!(
        "{} {part} cut off at {since}. A leader needs {needed} of {} nodes, and {old} had {there}: its lease was not renewed, and it stopped \
         leading by its own clock at {over}. The others had promised it to wait that long, and elected {new} at {from}.",
        names(&together, leader.node),
        setup.nodes,
    )
}
