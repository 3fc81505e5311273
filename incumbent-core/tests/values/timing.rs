//! Every deadline formula and every refusal, in numbers worked out by hand.

use std::time::Duration;

use incumbent_core::guarantees::{Exclusion, Expiry, Handover, Survives, TokenSource, Transfer};
use incumbent_core::time::{exact, rounded};
use incumbent_core::timing::challenge_after;
use incumbent_core::{BootInstant, ErrorKind, Guarantees, Settings, Timing};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn at(millis: u64) -> BootInstant {
    BootInstant::ZERO + ms(millis)
}

fn guarantees(ttl_min: Duration, slack: Duration) -> Guarantees {
    Guarantees {
        exclusion: Exclusion::Consensus,
        expiry: Expiry::Server,
        token: TokenSource::Revision,
        transfer: Transfer::Targeted,
        ttl_min,
        expiry_slack: slack,
        renew_spacing: Duration::ZERO,
        takeover_ttls: 2,
        takeover_extra: ms(1_500),
        handover: Handover::Pushed,
        survives: Survives { crash: true, power_loss: true, failover: true },
        lists_candidates: true,
        summary: "",
        not_applicable: &[],
    }
}

fn timing(settings: Settings) -> Timing {
    Timing::new(&settings, &guarantees(ms(500), Duration::ZERO)).expect("valid settings")
}

fn refusal(settings: Settings, slack: Duration) -> String {
    let error = Timing::new(&settings, &guarantees(ms(500), slack)).expect_err("invalid settings");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    error.to_string()
}

fn defaults() -> Timing {
    timing(Settings::default())
}

#[test]
fn defaults_follow_from_the_ttl() {
    assert_eq!(
        defaults(),
        Timing {
            ttl: ms(15_000),
            renew_interval: ms(5_000),
            renew_spacing: Duration::ZERO,
            call_timeout: ms(2_500),
            retry_pause: ms(500),
            backoff_max: ms(5_000),
            grace: ms(3_750),
            margin: ms(1_500),
            slack: Duration::ZERO,
            drain: Some(ms(30_000)),
            drift_ppm: 1_000,
        }
    );
    let long = timing(Settings { ttl: ms(60_000), ..Settings::default() });
    assert_eq!(long.grace, ms(5_000), "the default grace is at most 5 s");
}

/// A leader on Kubernetes makes no more than six requests a minute with a lease of 15 s.
#[test]
fn a_backend_that_counts_requests_is_asked_less_often() {
    let sparing = Guarantees { renew_spacing: ms(10_000), ..guarantees(ms(500), Duration::ZERO) };
    let timing = |ttl| {
        let settings = Settings { ttl: ms(ttl), ..Settings::default() };
        Timing::new(&settings, &sparing).expect("valid settings")
    };
    let fifteen = timing(15_000);
    assert_eq!((fifteen.renew_interval, fifteen.renew_spacing), (ms(10_000), ms(10_000)));
    assert_eq!((fifteen.call_timeout, fifteen.retry_pause), (ms(1_250), ms(250)));
    assert_eq!((fifteen.grace, fifteen.margin), (ms(1_875), ms(1_500)));
    assert_eq!(fifteen.renew_at(at(0), 1023), at(10_000), "never earlier");
    let deadline = fifteen.deadline(at(0), ms(15_000));
    let second_try = at(0) + fifteen.renew_interval + fifteen.call_timeout + fifteen.retry_pause;
    assert!(second_try < fifteen.outage_at(deadline), "one renewal may fail before anyone is told");
    // Too short to leave room: as everywhere else.
    let brisk = Timing::new(
        &Settings { ttl: ms(14_000), ..Settings::default() },
        &guarantees(ms(500), Duration::ZERO),
    );
    assert_eq!(Ok(timing(14_000)), brisk);
    // Long enough for both.
    let minute = timing(60_000);
    assert_eq!((minute.renew_interval, minute.call_timeout), (ms(20_000), ms(10_000)));
    let mut ttl = 15_000;
    while ttl <= 30_000 {
        timing(ttl);
        ttl += 250;
    }
}

#[test]
fn defaults_are_valid_from_half_a_second_to_an_hour() {
    let mut ttl = ms(500);
    while ttl <= Duration::from_secs(3600) {
        let timing = timing(Settings { ttl, ..Settings::default() });
        let deadline = timing.deadline(BootInstant::ZERO, ttl);
        let last_renewal =
            BootInstant::ZERO + timing.renew_interval + timing.call_timeout + timing.retry_pause;
        assert!(
            last_renewal < timing.outage_at(deadline),
            "{ttl:?}: one renewal may fail before anyone is told"
        );
        ttl = ttl.mul_f64(1.07) + Duration::from_nanos(1);
    }
}

#[test]
fn trust_ends_at_send_plus_the_shorter_ttl_less_drift_margin_and_slack() {
    // 15 s − 15 ms − 1.5 s
    assert_eq!(defaults().deadline(at(1_000), ms(15_000)), at(14_485));
    assert_eq!(
        defaults().deadline(at(1_000), ms(99_000)),
        at(14_485),
        "a longer ttl than asked for is not used"
    );
    // 10 s − 10 ms − 1.5 s
    assert_eq!(defaults().deadline(at(1_000), ms(10_000)), at(9_490));
    assert_eq!(defaults().deadline(at(1_000), ms(100)), at(1_000), "never before the send");
    let slack = Timing { slack: ms(2_000), ..defaults() };
    assert_eq!(slack.deadline(at(1_000), ms(15_000)), at(12_485));
}

#[test]
fn renewals_are_due_at_a_third_of_the_ttl_or_up_to_a_tenth_earlier() {
    assert_eq!(defaults().renew_at(at(1_000), 0), at(6_000));
    assert_eq!(defaults().renew_at(at(1_000), 512), at(5_750));
    let earliest = defaults().renew_at(at(1_000), 1023);
    assert!(earliest > at(5_500) && earliest < at(5_501));
    assert_eq!(defaults().renew_at(at(1_000), u32::MAX), earliest, "jitter is bounded");
}

#[test]
fn work_is_told_grace_before_the_deadline_and_killed_in_time() {
    assert_eq!(defaults().outage_at(at(13_485)), at(9_735));
    assert_eq!(defaults().kill_lead(), ms(250));
    assert_eq!(Timing { grace: ms(500), ..defaults() }.kill_lead(), ms(100));
}

#[test]
fn pauses_double_up_to_a_third_of_the_ttl_with_half_of_jitter() {
    let least: Vec<_> = (0..8).map(|failures| defaults().retry_after(failures, 0)).collect();
    assert_eq!(least, [250, 250, 500, 1_000, 2_000, 2_500, 2_500, 2_500].map(ms));
    let middle: Vec<_> = (1..7).map(|failures| defaults().retry_after(failures, 512)).collect();
    assert_eq!(middle, [500, 1_000, 2_000, 4_000, 5_000, 5_000].map(ms));
    assert!(defaults().retry_after(u32::MAX, 1023) < ms(7_500));
    assert_eq!(defaults().resign_pause(0), ms(5_000));
    assert_eq!(defaults().resign_pause(512), ms(5_625));
}

#[test]
fn calls_keep_a_distance() {
    assert_eq!(defaults().call_spacing(), Duration::from_micros(62_500));
    assert_eq!(defaults().hint_spacing(), ms(5));
}

#[test]
fn worst_cases_count_the_drift_of_the_own_clock() {
    assert_eq!(guarantees(ms(500), ms(0)).takeover_max(ms(15_000)), ms(31_500));
    // 31.5 s + 31.5 ms
    assert_eq!(defaults().gone_from_store_at(at(1_000), ms(31_500)), BootInstant::from_nanos(32_531_500_000));
    // … + retry pause 0.5 s + call 2.5 s
    assert_eq!(defaults().crash_failover_max(ms(31_500)), Duration::from_micros(34_531_500));
    assert_eq!(challenge_after(ms(15_000), ms(2_000)), ms(17_015));
}

/// The inequality on which exclusion rests where a challenger judges expiry: the leader's clock runs slow, the
/// challenger's fast, both by the allowed drift, and still the leader stops before the challenger starts.
#[test]
fn a_slow_leader_stops_before_a_fast_challenger_starts() {
    for ttl_ms in [500, 1_000, 2_000, 15_000, 60_000, 3_600_000] {
        let timing = timing(Settings { ttl: ms(ttl_ms), ..Settings::default() });
        let trusted = timing.deadline(BootInstant::ZERO, ms(ttl_ms)).as_nanos() as f64 / (1.0 - 0.001);
        let waited = challenge_after(ms(ttl_ms), Duration::ZERO).as_nanos() as f64 / (1.0 + 0.001);
        assert!(trusted < waited, "ttl {ttl_ms} ms: trusted for {trusted} ns, waited for {waited} ns");
    }
}

#[test]
fn the_arithmetic_stands_in_the_refusal() {
    assert_eq!(
        refusal(Settings { grace: Some(ms(6_000)), ..Settings::default() }, Duration::ZERO),
        "the intervals do not fit into the ttl: renew interval 5 s + retry 3 s + grace 6 s + margin 1.5 s + slack 0 s + \
         drift 15 ms = 15.5 s, which must be less than ttl 15 s; raise ttl or lower grace"
    );
    let set = Settings { grace: Some(ms(6_000)), margin: Some(ms(1_500)), ..Settings::default() };
    assert!(refusal(set, Duration::ZERO).ends_with("raise ttl or lower grace or margin"));
    // Exactly the ttl is too much: 5 + 3 + 3.75 + 1.5 + 1.735 + 0.015.
    assert!(refusal(Settings::default(), ms(1_735)).contains("= 15 s, which must be less than ttl 15 s"));
    assert!(Timing::new(&Settings::default(), &guarantees(ms(500), ms(1_734))).is_ok());
}

#[test]
fn a_margin_of_the_ttl_or_more_is_refused() {
    for margin in [ms(15_000), ms(60_000), Duration::MAX] {
        let text = refusal(Settings { margin: Some(margin), ..Settings::default() }, Duration::ZERO);
        assert!(text.contains(&format!("margin {}", exact(margin))), "{text}");
    }
    refusal(
        Settings { grace: Some(Duration::MAX), margin: Some(Duration::MAX), ..Settings::default() },
        Duration::MAX,
    );
}

#[test]
fn a_margin_must_cover_the_drift_of_both_clocks() {
    assert_eq!(
        refusal(Settings { margin: Some(ms(30)), ..Settings::default() }, Duration::ZERO),
        "margin 30 ms must be more than twice the clock drift 15 ms over a ttl of 15 s; raise margin"
    );
    timing(Settings { margin: Some(ms(31)), ..Settings::default() });
    refusal(Settings { drift_ppm: 60_000, ..Settings::default() }, Duration::ZERO);
    refusal(Settings { drift_ppm: u32::MAX, ..Settings::default() }, Duration::ZERO);
}

#[test]
fn a_ttl_out_of_bounds_is_refused() {
    assert_eq!(
        refusal(Settings { ttl: ms(499), ..Settings::default() }, Duration::ZERO),
        "ttl 499 ms is below the shortest that this backend can keep, 500 ms; raise ttl"
    );
    timing(Settings { ttl: ms(500), ..Settings::default() });
    let day = Duration::from_secs(24 * 3600);
    timing(Settings { ttl: day, ..Settings::default() });
    assert_eq!(
        refusal(Settings { ttl: day + ms(1), ..Settings::default() }, Duration::ZERO),
        "ttl 86400.001 s is above the longest allowed, 24 h; lower ttl"
    );
    refusal(Settings { ttl: Duration::MAX, ..Settings::default() }, Duration::ZERO);
    let zero =
        Timing::new(&Settings { ttl: Duration::ZERO, ..Settings::default() }, &guarantees(ms(0), ms(0)));
    assert!(zero.is_err());
}

#[test]
fn spans_are_exact_and_have_a_space_before_the_unit() {
    let cases = [(0, "0 s"), (1_500, "1.5 µs"), (10_000_000, "10 ms"), (23_515_000_000, "23.515 s")];
    for (nanos, text) in cases {
        assert_eq!(exact(Duration::from_nanos(nanos)), text);
    }
    assert_eq!(exact(Duration::from_secs(24 * 3600)), "24 h");
}

#[test]
fn rounded_spans_have_three_digits() {
    let cases = [
        (0, "0 s"),
        (7, "7 ns"),
        (999_999_999, "1 s"),
        (1_666_666_666, "1.67 s"),
        (15_515_000_000, "15.5 s"),
        (12_000_000, "12 ms"),
    ];
    for (nanos, text) in cases {
        assert_eq!(rounded(Duration::from_nanos(nanos)), text);
    }
    rounded(Duration::MAX);
}
