use incumbent_core::record::{Challenger, Move, Seen};
use incumbent_core::{BootInstant, Claim, Nonce};

use super::*;

const TTL: Duration = Duration::from_secs(15);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
}

fn held(version: u64, uid: &str, spec: Value) -> Lease {
    Lease::new(json!({
        "metadata": { "name": "billing", "uid": uid, "resourceVersion": version.to_string(), "labels": { "team": "a" } },
        "spec": spec,
    }))
    .expect("a Lease")
}

/// As the API server would store it.
fn stored(object: Value, version: u64) -> Lease {
    let mut object = object;
    object["metadata"]["resourceVersion"] = version.to_string().into();
    if object["metadata"]["uid"].is_null() {
        object["metadata"]["uid"] = "u1".into();
    }
    Lease::new(object).expect("a Lease")
}

fn record_of(id: &str) -> Record {
    let id = id.parse().expect("an id");
    Record::held(Holder { id, nonce: Nonce(7), address: None, since_unix_ms: None, liveness: None }, TTL)
}

fn next(lease: &Lease) -> Move {
    let claim = Claim {
        election: "billing".parse().expect("a name"),
        id: "other".parse().expect("an id"),
        nonce: Nonce(1),
        address: None,
        ttl: TTL,
    };
    let seen = Seen::new(Some(lease.record(TTL))).expect("a record");
    Challenger::new(Duration::ZERO).judge(&claim, &seen, None, BootInstant::ZERO, false)
}

fn waits(lease: &Lease, seconds: u64) -> bool {
    let least = BootInstant::ZERO + Duration::from_secs(seconds);
    let most = least + Duration::from_secs(1);
    matches!(next(lease), Move::Wait(until) if until >= least && until < most)
}

fn acquired() -> Lease {
    let created = stored(unheld("billing", &Record::unheld(TTL, None)), 41);
    let (object, token) = created.with_record(&record_of("web-1"), 0, TokenRule::Raise, at(0));
    assert_eq!(token, 41, "the version that the acquiring write was based on");
    stored(object, 42)
}

#[test]
fn creation_is_no_acquisition() {
    let created = stored(unheld("billing", &Record::unheld(TTL, None)), 41);
    assert_eq!(created.record(TTL).token, 0);
    assert!(waits(&created, 15));
}

#[test]
fn what_is_written_is_read_again() {
    let lease = acquired();
    let record = lease.record(TTL);
    assert_eq!((record.version, record.token), (42, 41));
    let Seen::Record(_, read) = Seen::new(Some(record)).expect("a record") else {
        panic!("it is unreadable")
    };
    assert_eq!(read, record_of("web-1"));
    assert_eq!(lease.holder(), format!("web-1_{}", Nonce(7)));
    assert_eq!(lease.spec("leaseDurationSeconds"), 15);
    assert_eq!(lease.spec("leaseTransitions"), 1);
    assert!(waits(&lease, 15));
}

/// client-go #754: zero seconds are refused; and a challenger must not wait less than the leader trusts.
#[test]
fn clientgo_754_durations_are_whole_seconds_rounded_up() {
    for (ms, seconds) in [(1, 1), (5_000, 5), (5_001, 6), (14_999, 15)] {
        assert_eq!(whole_seconds(Duration::from_millis(ms)), seconds);
    }
}

#[test]
fn a_renewal_keeps_token_and_acquisition_and_moves_renew_time_by_a_whole_second() {
    let lease = acquired();
    for now in [at(0), at(-3600), at(5)] {
        let (object, token) = lease.with_record(&record_of("web-1"), 41, TokenRule::Keep, now);
        let renewed = stored(object, 43);
        assert_eq!((token, renewed.record(TTL).token), (41, 41));
        assert_eq!(renewed.spec("acquireTime"), lease.spec("acquireTime"));
        assert_eq!(renewed.spec("leaseTransitions"), lease.spec("leaseTransitions"));
        let step =
            time(renewed.spec("renewTime")).expect("a time") - time(lease.spec("renewTime")).expect("a time");
        assert!(step.get_seconds() >= 1 || step.get_milliseconds() >= 1000, "{step:?}");
    }
}

#[test]
fn a_renew_time_far_ahead_is_no_reason_to_go_further() {
    let far = time(&json!("9999-12-30T22:00:00.000000Z"));
    assert_eq!(raised(far, at(0)), at(0));
}

#[test]
fn a_release_keeps_the_token_and_frees_at_once() {
    let lease = acquired();
    let (object, _) = lease.with_record(&Record::unheld(TTL, None), 41, TokenRule::Keep, at(3));
    let released = stored(object, 50);
    assert_eq!(released.spec("holderIdentity"), "");
    assert_eq!(released.record(TTL).token, 41);
    assert_eq!(next(&released), Move::Take);
    let (object, token) = released.with_record(&record_of("web-2"), 41, TokenRule::Raise, at(3));
    assert_eq!(token, 50);
    assert_ne!(stored(object, 51).spec("acquireTime"), lease.spec("acquireTime"));
}

/// As client-go takes a Lease over: a new spec, and the annotation as it was.
fn taken_over(lease: &Lease, spec: Value, version: u64) -> Lease {
    let mut object = lease.object.clone();
    object["spec"] = spec;
    stored(object, version)
}

#[test]
fn a_foreign_holder_has_no_token_and_is_waited_for_as_long_as_its_lease_says() {
    let spec = json!({
        "holderIdentity": "go-1", "leaseDurationSeconds": 30, "leaseTransitions": 2,
        "acquireTime": "2027-01-15T08:00:09.000000Z", "renewTime": "2027-01-15T08:00:09.000000Z",
    });
    for lease in [taken_over(&acquired(), spec.clone(), 60), held(60, "u9", spec)] {
        let record = lease.record(TTL);
        assert!(record.token >= 42, "no token before was greater");
        let seen = Seen::new(Some(record)).expect("a record");
        let leader = seen.observation().leader.expect("it leads");
        assert_eq!(
            (leader.contender.id.as_str(), leader.contender.nonce, leader.token),
            ("go-1", None, None)
        );
        assert_eq!(leader.since_unix_ms, Some(1_800_000_009_000));
        assert!(waits(&lease, 30));
        let (_, token) = lease.with_record(&record_of("web-1"), 0, TokenRule::Raise, at(99));
        assert_eq!(token, 60);
    }
}

/// client-go releases with an empty holder and one second; kubert leaves no holder at all.
#[test]
fn a_foreign_release_frees_at_once() {
    for holder in [json!(""), json!(null)] {
        let spec = json!({
            "holderIdentity": holder, "leaseDurationSeconds": 1, "leaseTransitions": 2,
            "acquireTime": "2027-01-15T08:00:09.000000Z", "renewTime": "2027-01-15T08:00:09.000000Z",
        });
        assert_eq!(next(&taken_over(&acquired(), spec.clone(), 60)), Move::Take);
        assert_eq!(next(&held(60, "u9", spec)), Move::Take);
    }
}

#[test]
fn an_empty_lease_may_stand_in_place_of_a_deleted_one() {
    for spec in [json!({}), json!(null), json!({ "holderIdentity": null }), json!({ "holderIdentity": "" })] {
        assert!(waits(&held(60, "u9", spec), 15));
    }
}

#[test]
fn a_holder_without_a_duration_or_a_renewal_is_waited_for_one_own_ttl() {
    for spec in [
        json!({ "holderIdentity": "go-1" }),
        json!({ "holderIdentity": "go-1", "leaseDurationSeconds": 0 }),
        json!({ "holderIdentity": "go-1", "leaseDurationSeconds": -3 }),
    ] {
        assert!(waits(&held(60, "u9", spec), 15));
    }
}

/// A delayed PUT after a deletion would make the Lease anew, in the old holder's name.
#[test]
fn renewal_proofs_an_annotation_under_another_uid_is_ignored() {
    let mut object = acquired().object;
    object["metadata"]["uid"] = "u2".into();
    let reborn = stored(object, 70);
    let seen = Seen::new(Some(reborn.record(TTL))).expect("a record");
    assert_eq!(seen.holder(), None);
    assert_eq!(seen.observation().leader.expect("somebody").token, None);
}

#[test]
fn what_others_put_into_a_lease_stays() {
    let spec = json!({ "holderIdentity": "", "renewTime": "2027-01-15T08:00:09.000000Z", "strategy": "OldestEmulationVersion" });
    let (object, _) = held(60, "u9", spec).with_record(&record_of("web-1"), 60, TokenRule::Raise, at(0));
    assert_eq!(object["metadata"]["labels"]["team"], "a");
    assert_eq!(object["spec"]["strategy"], "OldestEmulationVersion");
    assert_eq!(
        (&object["metadata"]["uid"], &object["metadata"]["resourceVersion"]),
        (&json!("u9"), &json!("60"))
    );
}

#[test]
fn versions_that_do_not_count_are_refused() {
    for version in ["", "0", "017", "-3", "+3", "12a", "1e3", "99999999999999999999999"] {
        let object = json!({ "metadata": { "uid": "u", "resourceVersion": version } });
        assert_eq!(Lease::new(object).expect_err("refused").kind(), ErrorKind::Corrupt, "{version}");
    }
    assert!(Lease::new(json!({ "metadata": { "resourceVersion": "1" } })).is_err());
    assert!(Lease::new(json!("garbage")).is_err());
}

#[test]
fn a_note_survives_the_renewals_beside_it() {
    let lease = acquired();
    let asked = stored(lease.with_note(HANDOVER, FencingToken(41), b"{\"v\":1}"), 43);
    let note = asked.note(HANDOVER).expect("readable").expect("a note");
    assert_eq!((note.version, note.token, note.body.as_slice()), (42, 41, &b"{\"v\":1}"[..]));
    let (object, _) = asked.with_record(&record_of("web-1"), 41, TokenRule::Keep, at(9));
    let renewed = stored(object, 44);
    assert_eq!(renewed.note(HANDOVER).expect("readable"), Some(note));
    assert_eq!(renewed.record(TTL).token, 41);
}

#[test]
fn any_bytes_can_be_a_note() {
    for body in [vec![0, 255, 128], vec![b'x'; 64 * 1024], Vec::new()] {
        let lease = stored(with_note("billing.checkpoint.incumbent", CHECKPOINT, FencingToken(3), &body), 9);
        let note = lease.note(CHECKPOINT).expect("readable").expect("a note");
        assert_eq!((note.version, note.token, note.body), (9, 3, body));
    }
    let lease = acquired();
    assert_eq!(lease.note(CHECKPOINT).expect("nothing"), None);
}
