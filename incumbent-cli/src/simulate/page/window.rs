//! The time that the near pictures show: the same for all algorithms, so that they can be compared.

use incumbent_sim::report::{Report, Span, Timeline};

#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) span: Span,
}

impl Window {
    /// Around the fault in which two led, or else around the first.
    pub(super) fn around_what_tells_most(reports: &[Report]) -> Window {
        let split = reports.iter().find_map(|report| Some((report, report.timeline.telling_overlap()?)));
        let Some(first) = reports.first() else {
            return Window { span: Span { from_ms: 0.0, until_ms: 1.0 } };
        };
        let (ttl, end) = (first.ttl_ms as f64, first.duration_ms);
        let faults =
            |report: &Report| report.timeline.faults.iter().map(Timeline::span_of).collect::<Vec<_>>();
        let around = match split {
            Some((report, overlap)) => {
                let before = faults(report).into_iter().rfind(|fault| fault.from_ms <= overlap.from_ms);
                let from_ms = before.map_or(overlap.from_ms, |fault| fault.from_ms);
                let until_ms = before.map_or(overlap.until_ms, |fault| fault.until_ms.max(overlap.until_ms));
                Span { from_ms, until_ms: until_ms.min(from_ms + 10.0 * ttl) }
            }
            None => faults(first).first().copied().unwrap_or(Span { from_ms: ttl, until_ms: 3.0 * ttl }),
        };
        let span = Span {
            from_ms: (around.from_ms - ttl).max(0.0),
            until_ms: (around.until_ms + 1.5 * ttl).min(end),
        };
        Window { span }
    }
}
