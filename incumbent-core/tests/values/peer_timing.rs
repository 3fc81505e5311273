//! The deadlines of peers, in numbers worked out by hand, and the inequality on which they rest.

use std::time::Duration;

use incumbent_core::timing::PeerTiming;
use incumbent_core::{BootInstant, ErrorKind};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn at(millis: u64) -> BootInstant {
    BootInstant::ZERO + ms(millis)
}

#[test]
fn formulas() {
    let timing = PeerTiming::new(ms(1_000), 1_000).unwrap();
    // 1000·(1 − 0.001) − 100, and 1000·(1 + 0.001)
    assert_eq!(timing.deadline(at(5_000)), at(5_899));
    assert_eq!(timing.promise_end(at(5_000)), at(6_001));
    assert_eq!(timing.heartbeat_at(at(5_000)), at(5_100));
    assert_eq!(timing.election_at(at(5_000), 0, 0), at(5_000));
    assert_eq!(timing.election_at(at(5_000), 2, 512), at(5_625));
    assert_eq!(timing.election_at(at(5_000), 4, 0), timing.election_at(at(5_000), 63, 0));
    assert_eq!(timing.attempt_end(at(5_000), 512), at(5_750));
    assert_eq!(timing.retry_at(at(5_000), 0, 512), at(5_100));
    assert_eq!(timing.retry_at(at(5_000), 1, 512), at(5_200));
}

/// The leader's clock as slow and the voter's as fast as the bound allows: trust ends first, in true time.
#[test]
fn trust_ends_before_the_promise() {
    for drift_ppm in [0, 1, 1_000, 49_999] {
        for ttl in [ms(10), ms(150), ms(1_000), ms(15_000), ms(24 * 3_600_000)] {
            let timing = PeerTiming::new(ttl, drift_ppm).unwrap();
            let million = 1_000_000_u128;
            let trust = u128::from(timing.deadline(BootInstant::ZERO).as_nanos()) * million
                / (million - u128::from(drift_ppm));
            let promise = u128::from(timing.promise_end(BootInstant::ZERO).as_nanos()) * million
                / (million + u128::from(drift_ppm));
            assert!(
                trust + timing.margin.as_nanos() <= promise + 1,
                "{drift_ppm} ppm, {ttl:?}: {trust}, {promise}"
            );
        }
    }
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let refused = |ttl, drift_ppm| PeerTiming::new(ttl, drift_ppm).unwrap_err();
    assert_eq!(refused(ms(9), 0).kind(), ErrorKind::InvalidConfig);
    assert_eq!(
        refused(ms(9), 0).to_string(),
        "ttl 9 ms is not within 10 ms to 24 h, what peers can keep; change ttl"
    );
    assert_eq!(refused(ms(24 * 3_600_000 + 1), 0).kind(), ErrorKind::InvalidConfig);
    assert_eq!(
        refused(ms(1_000), 50_000).to_string(),
        "margin 100 ms must be more than twice the clock drift 50 ms over a ttl of 1 s; lower drift"
    );
}
