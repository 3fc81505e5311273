//! A thousand elections in one process: what they cost the process, and what they ask of the store, beside as many native locks.

use super::Bench;
use super::report::Report;
use crate::Result;

/// How long they are held after all were won; the program's.
pub(super) const IDLE_S: f64 = 20.0;
/// The default ttl, in seconds.
pub(super) const TTL_S: f64 = 15.0;
/// Until all are won where a record that is not there counts as held for a ttl.
pub(super) const NEW_RECORDS_MS: f64 = TTL_S * 1000.0 + 5000.0;

/// What is expected of a backend.
pub(super) struct Bars {
    /// Until all are won.
    pub(super) acquired_ms: f64,
    /// Of a core, while nothing happens.
    pub(super) idle_percent: f64,
    /// Requests in all, from the first to the end of the idle time.
    pub(super) requests: f64,
    /// Where that number comes from.
    pub(super) because: String,
}

/// `requests` counts what the store was asked so far.
pub(super) fn measure(
    bench: &Bench,
    report: &mut Report,
    backend: &str,
    url: &str,
    requests: impl Fn() -> f64,
    bars: Bars,
) -> Result {
    let before = requests();
    let value = bench.program("thousand", Some(url))?;
    let asked = requests() - before;
    let figure = |name: &str| value[name].as_f64().unwrap_or(f64::NAN);
    for (name, unit, value, most) in [
        ("all acquired", "ms", figure("acquired_ms"), bars.acquired_ms),
        ("lost while idle", "terms", 1000.0 - figure("kept"), 0.0),
        ("resident memory", "MiB", figure("rss_mib"), 64.0),
        ("idle", "% of a core", figure("idle_core_percent"), bars.idle_percent),
    ] {
        let what = format!("{backend}: 1000 elections, {name}");
        report.at_most(what, unit, value, most, "1000 elections in one process".to_owned());
    }
    let what = format!("{backend}: 1000 elections, requests to win and hold them for {IDLE_S} s");
    report.at_most(what, "requests", asked, bars.requests, bars.because);
    Ok(())
}

/// How many renewals fall into the idle time at most: one may come up to a tenth of its interval early, and one more while the
/// others are still being won.
pub(super) fn renewals() -> f64 {
    IDLE_S / (TTL_S / 3.0) * 1.12 + 1.0
}
