//! The record protocol: what is understood, and what a challenger does about what it saw.

use std::time::Duration;

use incumbent_core::record::{Challenger, Foreign, Holder, Move, Record, Seen, still_held};
use incumbent_core::{BootInstant, Claim, ErrorKind, FencingToken, Nonce, Stored};

const TTL: Duration = Duration::from_secs(15);
/// 15 s and 1000 ppm of it.
const PATIENCE: Duration = Duration::from_millis(15_015);

fn at(seconds: u64) -> BootInstant {
    BootInstant::ZERO + Duration::from_secs(seconds)
}

fn claim(id: &str, nonce: u128) -> Claim {
    Claim {
        election: "billing".parse().expect("a valid name"),
        id: id.parse().expect("a valid id"),
        nonce: Nonce(nonce),
        address: None,
        ttl: TTL,
    }
}

fn holder(id: &str, nonce: u128) -> Holder {
    Holder {
        id: id.parse().expect("a valid id"),
        nonce: Nonce(nonce),
        address: None,
        since_unix_ms: None,
        liveness: None,
    }
}

fn seen(version: u64, token: u64, record: &Record) -> Seen {
    Seen::new(Some(Stored { version, token, body: record.encode() })).expect("a format of our own")
}

fn held(version: u64, id: &str, nonce: u128) -> Seen {
    seen(version, 7, &Record::held(holder(id, nonce), TTL))
}

fn challenger() -> Challenger {
    Challenger::new(Duration::ZERO)
}

#[test]
fn another_holder_is_waited_for_from_the_first_sight_of_its_version() {
    let mut challenger = challenger();
    let me = claim("a", 1);
    assert_eq!(challenger.judge(&me, &held(3, "b", 2), None, at(100), false), Move::Wait(at(100) + PATIENCE));
    assert_eq!(challenger.judge(&me, &held(3, "b", 2), None, at(110), false), Move::Wait(at(100) + PATIENCE));
    // It renewed: all over again.
    assert_eq!(challenger.judge(&me, &held(4, "b", 2), None, at(112), false), Move::Wait(at(112) + PATIENCE));
    let due = at(112) + PATIENCE;
    assert_eq!(
        challenger.judge(&me, &held(4, "b", 2), None, due - Duration::from_nanos(1), false),
        Move::Wait(due)
    );
    assert_eq!(challenger.judge(&me, &held(4, "b", 2), None, due, false), Move::Take);
}

#[test]
fn the_holders_ttl_counts_and_the_stores_slack_is_added() {
    let record = Record::held(holder("b", 2), Duration::from_secs(60));
    let mut challenger = Challenger::new(Duration::from_secs(2));
    let patience = Duration::from_millis(62_060);
    assert_eq!(
        challenger.judge(&claim("a", 1), &seen(3, 7, &record), None, at(0), false),
        Move::Wait(at(0) + patience)
    );
}

#[test]
fn a_ttl_is_stored_rounded_up() {
    let ttl = Duration::from_micros(1_500_001);
    assert_eq!(Record::held(holder("b", 2), ttl).ttl(), Duration::from_millis(1_501));
    assert_eq!(Record::unheld(Duration::MAX, None).ttl(), Duration::from_millis(u64::MAX));
}

#[test]
fn a_holder_whose_process_is_gone_is_followed_at_once() {
    assert_eq!(challenger().judge(&claim("a", 1), &held(3, "b", 2), None, at(0), true), Move::Take);
}

#[test]
fn only_the_same_campaign_is_confirmed() {
    let me = claim("a", 1);
    assert_eq!(challenger().judge(&me, &held(3, "a", 1), None, at(0), false), Move::Confirm);
    // The same name with another nonce, and the same nonce with another name, are others.
    assert_eq!(challenger().judge(&me, &held(3, "a", 2), None, at(0), false), Move::Wait(at(0) + PATIENCE));
    assert_eq!(challenger().judge(&me, &held(3, "b", 1), None, at(0), false), Move::Wait(at(0) + PATIENCE));
}

#[test]
fn a_released_record_is_taken_at_once() {
    assert_eq!(
        challenger().judge(&claim("a", 1), &seen(3, 7, &Record::unheld(TTL, None)), None, at(0), false),
        Move::Take
    );
}

#[test]
fn a_named_successor_is_preferred_for_one_ttl() {
    let released = seen(3, 7, &Record::unheld(TTL, Some("b".parse().expect("a valid id"))));
    assert_eq!(challenger().judge(&claim("b", 1), &released, None, at(0), false), Move::Take);
    let mut other = challenger();
    assert_eq!(other.judge(&claim("a", 1), &released, None, at(0), false), Move::Wait(at(0) + PATIENCE));
    assert_eq!(other.judge(&claim("a", 1), &released, None, at(16), false), Move::Take);
}

#[test]
fn an_absent_record_is_created_and_then_waited_for() {
    let mut challenger = challenger();
    let me = claim("a", 1);
    assert_eq!(challenger.judge(&me, &Seen::Absent, None, at(0), false), Move::Create);
    let created = seen(1, 0, &Record::unheld(TTL, None));
    assert_eq!(challenger.judge(&me, &created, None, at(1), false), Move::Wait(at(1) + PATIENCE));
    assert_eq!(challenger.judge(&me, &created, None, at(17), false), Move::Take);
}

#[test]
fn an_absent_record_is_taken_at_once_where_certainly_nobody_leads() {
    let created = seen(1, 0, &Record::unheld(TTL, None));
    for absent in [Seen::Absent, created] {
        assert_eq!(challenger().judge(&claim("a", 1), &absent, None, at(0), true), Move::Take);
    }
}

#[test]
fn a_record_that_vanished_in_between_is_seen_anew() {
    let mut challenger = challenger();
    let me = claim("a", 1);
    challenger.judge(&me, &held(3, "b", 2), None, at(0), false);
    challenger.judge(&me, &Seen::Absent, None, at(10), false);
    assert_eq!(challenger.judge(&me, &held(3, "b", 2), None, at(16), false), Move::Wait(at(16) + PATIENCE));
}

/// As [`PATIENCE`] after a change of the store's history, whatever the record says: a later grant may be lost with the history.
#[test]
fn postgres_async_failover_a_record_of_another_history_is_waited_for() {
    let me = claim("a", 1);
    let unheld = Record::unheld(TTL, Some("a".parse().expect("a valid id")));
    let own = Record::held(holder("a", 1), TTL);
    for record in [unheld, own, Record::held(holder("b", 2), TTL)] {
        let seen = seen(3, 7, &record.within(Some("before".to_owned())));
        let mut challenger = challenger();
        let mut judge = |lineage, seconds| challenger.judge(&me, &seen, Some(lineage), at(seconds), false);
        judge("before", 0);
        assert_eq!(judge("after", 14), Move::Wait(at(14) + PATIENCE));
        assert_eq!(judge("after", 29), Move::Wait(at(14) + PATIENCE));
        assert_eq!(judge("after", 30), Move::Take);
    }
}

#[test]
fn a_record_of_the_present_history_is_judged_as_ever() {
    let own = Record::held(holder("a", 1), TTL).within(Some("now".to_owned()));
    let judged = challenger().judge(&claim("a", 1), &seen(3, 7, &own), Some("now"), at(0), false);
    assert_eq!(judged, Move::Confirm);
}

#[test]
fn garbage_counts_as_an_unknown_holder() {
    for body in [
        "",
        "garbage",
        "null",
        "[]",
        "{}",
        "{\"v\":1}",
        "{\"holder\":null,\"ttl_ms\":1}",
        "{\"v\":1,\"holder\":{\"id\":\"b\",\"nonce\":\"xyz\"},\"ttl_ms\":1}",
    ] {
        let stored = Stored { version: 3, token: 7, body: body.into() };
        let seen = Seen::new(Some(stored.clone())).expect("garbage is not refused");
        assert_eq!(seen, Seen::Unreadable(stored), "{body}");
        assert_eq!(seen.observation().leader, None);
        let mut challenger = challenger();
        assert_eq!(
            challenger.judge(&claim("a", 1), &seen, None, at(0), false),
            Move::Wait(at(0) + PATIENCE),
            "{body}"
        );
        assert_eq!(challenger.judge(&claim("a", 1), &seen, None, at(16), false), Move::Take, "{body}");
    }
}

#[test]
fn a_newer_format_is_refused_however_it_looks() {
    for body in
        ["{\"v\":2,\"holder\":null,\"ttl_ms\":15000}", "{\"v\":2}", "{\"v\":4000000000,\"holder\":17}"]
    {
        let error = Seen::new(Some(Stored { version: 3, token: 7, body: body.into() })).expect_err(body);
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            error.to_string().contains("newer than 1") && error.to_string().contains("update this program"),
            "{error}"
        );
    }
}

/// A roll-out: the next release of this format has more fields, the last one fewer. Each follows the other.
#[test]
fn two_releases_of_one_format_run_side_by_side() {
    let nonce = Nonce(2);
    let next = format!(
        "{{\"v\":1,\"holder\":{{\"id\":\"b\",\"nonce\":\"{nonce}\",\"address\":\"10.0.0.7\",\"zone\":\"eu\"}},\"ttl_ms\":15000,\"shards\":[1,2]}}"
    );
    let last = format!("{{\"v\":1,\"holder\":{{\"id\":\"b\",\"nonce\":\"{nonce}\"}},\"ttl_ms\":15000}}");
    for body in [next, last] {
        let seen =
            Seen::new(Some(Stored { version: 3, token: 7, body: body.into_bytes() })).expect("format 1");
        assert!(still_held(&claim("b", 2), FencingToken(7), &seen));
        let leader = seen.observation().leader.expect("b leads");
        assert_eq!((leader.contender.id.as_str(), leader.contender.nonce), ("b", Some(nonce)));
        assert_eq!(
            challenger().judge(&claim("a", 1), &seen, None, at(0), false),
            Move::Wait(at(0) + PATIENCE)
        );
        assert_eq!(challenger().judge(&claim("b", 2), &seen, None, at(0), false), Move::Confirm);
    }
}

#[test]
fn a_grant_is_still_held_only_with_id_nonce_and_token() {
    let me = claim("a", 1);
    let token = FencingToken(7);
    assert!(still_held(&me, token, &held(3, "a", 1)));
    assert!(!still_held(&me, FencingToken(6), &held(3, "a", 1)), "a later grant of the same campaign");
    assert!(!still_held(&me, token, &held(3, "a", 2)));
    assert!(!still_held(&me, token, &held(3, "b", 1)));
    assert!(!still_held(&me, token, &seen(3, 7, &Record::unheld(TTL, None))));
    assert!(!still_held(&me, token, &Seen::Absent));
}

#[test]
fn a_record_reads_well() {
    let record = Record::held(Holder { address: Some("10.0.0.7:80".to_owned()), ..holder("b", 2) }, TTL);
    assert_eq!(
        String::from_utf8(record.encode()).expect("json"),
        "{\"v\":1,\"holder\":{\"id\":\"b\",\"nonce\":\"00000000000000000000000000000002\",\"address\":\"10.0.0.7:80\"},\"ttl_ms\":15000}"
    );
}

/// A holder of another client: no nonce, no token, and nobody's confirmation.
#[test]
fn a_foreign_holder_is_shown_and_waited_for_as_long_as_its_record_says() {
    let foreign = Foreign { id: "a_00000000000000000000000000000001".to_owned(), since_unix_ms: Some(5) };
    let record = Record::foreign(foreign, Duration::from_secs(60));
    let seen = seen(3, 7, &record);
    let leader = seen.observation().leader.expect("it leads");
    assert!(leader.contender.is_foreign());
    assert_eq!((leader.token, leader.since_unix_ms), (None, Some(5)));
    assert!(!still_held(&claim("a", 1), FencingToken(7), &seen));
    let patience = Duration::from_millis(60_060);
    let mut challenger = challenger();
    let mut judge = |moment| challenger.judge(&claim("a", 1), &seen, None, moment, false);
    assert_eq!(judge(at(0)), Move::Wait(at(0) + patience));
    assert_eq!(judge(at(0) + patience), Move::Take);
}
