//! The judge itself, on forged histories: it finds what is certainly wrong, and nothing that could be innocent.

use std::time::Duration;

use incumbent_conformance::{Answer, Call, Entry, Tolerance, check};
use incumbent_core::{BootInstant, CandidateId, ElectionName, FencingToken, Nonce};

const TTL: Duration = Duration::from_millis(1000);

/// Moments in milliseconds.
fn at(ms: u64) -> BootInstant {
    BootInstant::from_nanos(ms * 1_000_000)
}

fn entry(campaign: u128, call: Call, begin: u64, end: Option<(u64, Answer)>) -> Entry {
    Entry {
        handle: campaign as usize,
        election: Some(ElectionName::new("billing").expect("a name")),
        campaign: Some((CandidateId::new("c").expect("an id"), Nonce(campaign))),
        call,
        begin: at(begin),
        end: end.map(|(end, answer)| (at(end), answer)),
    }
}

/// A grant that was asked for at `begin`, proved by what was sent then, and answered at `end`.
fn granted(campaign: u128, token: u64, begin: u64, end: u64) -> Entry {
    let answer = Answer::Granted { token: Some(FencingToken(token)), sent_at: at(begin), ttl: TTL };
    entry(campaign, Call::Acquire, begin, Some((end, answer)))
}

fn extended(campaign: u128, token: u64, begin: u64, sent_at: u64, end: u64) -> Entry {
    let answer = Answer::Extended { sent_at: at(sent_at), ttl: TTL };
    entry(campaign, Call::Renew(Some(FencingToken(token))), begin, Some((end, answer)))
}

fn released(campaign: u128, begin: u64, end: u64) -> Entry {
    entry(campaign, Call::Release, begin, Some((end, Answer::Done)))
}

fn shown(handle: usize, token: u64, begin: u64, end: u64) -> Entry {
    let answer = Answer::Shown(Some(FencingToken(token)));
    Entry { handle, campaign: None, ..entry(0, Call::Observe, begin, Some((end, answer))) }
}

fn removed(begin: u64, end: u64) -> Entry {
    Entry { campaign: None, ..entry(0, Call::Remove, begin, Some((end, Answer::Done))) }
}

fn broken(entries: &[Entry]) -> Vec<&'static str> {
    let tolerance = Tolerance { slack: Duration::ZERO, drift_ppm: 1000 };
    check(entries, tolerance).into_iter().map(|violation| violation.rule).collect()
}

#[track_caller]
fn innocent(entries: &[Entry]) {
    assert_eq!(broken(entries), Vec::<&str>::new());
}

#[test]
fn terms_that_follow_each_other_are_innocent() {
    innocent(&[]);
    innocent(&[granted(1, 5, 0, 10), granted(2, 6, 900, 1005)]);
    innocent(&[granted(1, 5, 0, 10), extended(1, 5, 500, 500, 510), granted(2, 6, 1400, 1510)]);
    innocent(&[granted(1, 5, 0, 10), released(1, 20, 40), granted(2, 6, 15, 30)]);
    innocent(&[granted(1, 5, 0, 10), removed(20, 40), granted(2, 6, 15, 30)]);
}

#[test]
fn two_at_once_are_found() {
    assert_eq!(broken(&[granted(1, 5, 0, 10), granted(2, 6, 900, 990)]), ["R1"]);
    assert_eq!(
        broken(&[granted(1, 5, 0, 10), extended(1, 5, 300, 300, 310), granted(2, 6, 900, 1200)]),
        ["R1"]
    );
    // A release that came too late excuses nothing.
    assert_eq!(broken(&[granted(1, 5, 0, 10), granted(2, 6, 15, 30), released(1, 40, 50)]), ["R1"]);
    // Their calls were under way together, but both were there when the later one was answered.
    assert_eq!(broken(&[granted(1, 5, 0, 50), granted(2, 6, 10, 60)]), ["R1"]);
    // A renewal that was answered late covers the time before it.
    assert_eq!(
        broken(&[granted(1, 5, 0, 10), extended(1, 5, 900, 900, 2000), granted(2, 6, 1500, 1600)]),
        ["R1"]
    );
}

#[test]
fn an_adopted_grant_is_the_same_grant() {
    innocent(&[granted(1, 5, 0, 10), granted(1, 5, 400, 410), granted(2, 6, 1300, 1410)]);
    assert_eq!(broken(&[granted(1, 5, 0, 10), granted(1, 5, 400, 410), granted(2, 6, 1000, 1100)]), ["R1"]);
}

#[test]
fn tokens_that_do_not_rise_are_found() {
    assert_eq!(broken(&[granted(1, 5, 0, 10), granted(2, 4, 1100, 1110)]), ["R2"]);
    assert_eq!(broken(&[granted(1, 5, 0, 10), granted(2, 5, 1100, 1110)]), ["R2"]);
    // A campaign that gave its grant up and is granted again has begun a new term.
    assert_eq!(broken(&[granted(1, 5, 0, 10), released(1, 20, 30), granted(1, 5, 40, 50)]), ["R2"]);
    // Which of the two was first is not certain here.
    innocent(&[granted(1, 7, 0, 1500), released(1, 1500, 1500), granted(2, 6, 10, 20), released(2, 30, 40)]);
}

#[test]
fn extensions_without_proof_are_found() {
    assert_eq!(broken(&[granted(1, 5, 0, 10), extended(1, 5, 20, 31, 30)]), ["R3"]);
    // Its lease had run out, so nothing overlaps; but another had been granted when the proof was sent.
    let after_successor = [
        granted(1, 5, 0, 10),
        granted(2, 6, 1100, 1110),
        released(2, 1111, 1112),
        extended(1, 5, 1120, 1120, 1130),
    ];
    assert!(broken(&after_successor).contains(&"R3"));
    // What was sent before the successor's grant proves nothing wrong.
    innocent(&[granted(1, 5, 0, 10), extended(1, 5, 20, 20, 1200), granted(2, 6, 1100, 1210)]);
    assert_eq!(broken(&[granted(1, 5, 0, 10), removed(20, 30), extended(1, 5, 31, 31, 40)]), ["R3"]);
    innocent(&[granted(1, 5, 0, 10), removed(20, 30), extended(1, 5, 15, 29, 40)]);
}

#[test]
fn an_observer_that_goes_back_is_found() {
    assert_eq!(broken(&[shown(1, 6, 0, 1), shown(1, 5, 2, 3)]), ["R9"]);
    innocent(&[shown(1, 6, 0, 1), shown(2, 5, 2, 3)]);
    innocent(&[shown(1, 6, 0, 4), shown(1, 5, 2, 3)]);
}

#[test]
fn calls_without_an_answer_prove_nothing() {
    let lost = entry(1, Call::Acquire, 0, None);
    let failed = entry(1, Call::Acquire, 0, Some((10, Answer::Unknown)));
    innocent(&[lost, failed, granted(2, 6, 20, 30)]);
    // A release without an answer may have been done.
    innocent(&[granted(1, 5, 0, 10), entry(1, Call::Release, 20, None), granted(2, 6, 30, 40)]);
}
