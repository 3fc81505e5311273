//! The judge itself, on forged histories: it finds what is certainly wrong, and nothing that could be innocent.

use incumbent_sim::check::{
    Hold, Valid, Write, fencing, overlapping_time, overlaps, stability, stale_writes, takeover, token_order,
    valid_after_newer,
};

fn hold(token: u64, asked: u64, from: u64, until: u64) -> Hold {
    Hold { name: format!("n{token}"), token: Some(token), asked, from, until }
}

fn valid(token: u64, begin: u64, end: u64) -> Valid {
    Valid { token, begin, end }
}

fn write(at: u64, token: u64, accepted: bool) -> Write {
    Write { at, token, accepted }
}

#[test]
fn leaderships_that_follow_each_other_are_innocent() {
    let holds = [hold(1, 0, 10, 100), hold(2, 50, 100, 200), hold(3, 150, 300, 400)];
    assert_eq!(overlaps(&holds), []);
    assert_eq!(overlapping_time(&holds), 0);
    assert_eq!(token_order(&holds), []);
    // One that was over before it was known is none.
    assert_eq!(overlaps(&[hold(1, 0, 10, 100), hold(2, 20, 90, 90)]), []);
}

#[test]
fn leaderships_that_overlap_are_found() {
    let found = overlaps(&[hold(2, 50, 99, 200), hold(1, 0, 10, 100)]);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].rule, found[0].at), ("I1", 99));
    assert!(found[0].what.contains("n1 (token 1) and n2 (token 2) were both valid for 1ns"), "{}", found[0]);
    // One inside a longer one, and one after it that overlaps with the longer one only.
    let holds = [hold(1, 0, 10, 100), hold(2, 0, 20, 30), hold(3, 0, 40, 120)];
    assert_eq!(overlaps(&holds).len(), 2);
    assert_eq!(overlapping_time(&holds), 10 + 60);
    // Three at once are counted once.
    assert_eq!(overlapping_time(&[hold(1, 0, 0, 10), hold(2, 0, 0, 10), hold(3, 0, 0, 10)]), 10);
}

#[test]
fn an_older_leader_that_is_valid_after_a_newer_one_is_found() {
    assert_eq!(valid_after_newer(&[valid(1, 0, 1), valid(1, 5, 6), valid(2, 7, 8), valid(2, 9, 9)]), []);
    let found = valid_after_newer(&[valid(2, 7, 8), valid(1, 9, 10), valid(1, 0, 1)]);
    assert_eq!((found.len(), found[0].rule, found[0].at), (1, "I1", 9));
    // Which of two that touch was first is not certain.
    assert_eq!(valid_after_newer(&[valid(2, 7, 9), valid(1, 8, 10)]), []);
    assert_eq!(valid_after_newer(&[valid(2, 7, 8), valid(1, 8, 10)]), []);
}

#[test]
fn tokens_that_do_not_rise_are_found() {
    let rules = |holds: &[Hold]| token_order(holds).iter().map(|found| found.rule).collect::<Vec<_>>();
    assert_eq!(rules(&[hold(5, 0, 10, 100), hold(4, 20, 30, 100)]), ["I2"]);
    assert_eq!(rules(&[hold(5, 0, 10, 100), hold(5, 20, 30, 100)]), ["I2"], "given twice");
    // Which of them was first is not certain: both were asked for before either was granted.
    assert_eq!(rules(&[hold(5, 0, 10, 100), hold(4, 5, 30, 100)]), [""; 0]);
    // A greater one that came in between hides nothing.
    assert_eq!(rules(&[hold(5, 0, 10, 20), hold(9, 30, 40, 50), hold(7, 60, 70, 80)]), ["I2"]);
    let none = Hold { token: None, ..hold(0, 0, 1, 2) };
    assert_eq!(rules(&[none.clone(), none]), [""; 0], "no tokens, no order");
}

#[test]
fn a_fence_that_lets_an_older_token_in_is_found() {
    let good = [write(1, 1, true), write(2, 2, true), write(3, 1, false), write(4, 2, true)];
    assert_eq!(fencing(&good), []);
    assert_eq!(stale_writes(&good), 1);
    let bad = [write(1, 1, true), write(2, 2, true), write(3, 1, true)];
    assert_eq!(fencing(&bad).len(), 1);
    assert_eq!(stale_writes(&bad), 1);
    assert_eq!(stale_writes(&[write(1, 1, true), write(2, 1, true), write(3, 7, true)]), 0);
}

#[test]
fn a_healed_election_has_a_leader_in_time() {
    assert_eq!(takeover(&[hold(1, 0, 150, 300)], 100, 50), None);
    assert_eq!(takeover(&[hold(1, 0, 10, 101)], 100, 50), None, "the old one still led");
    for holds in [vec![], vec![hold(1, 0, 10, 100)], vec![hold(1, 0, 151, 300)]] {
        assert_eq!(takeover(&holds, 100, 50).map(|found| (found.rule, found.at)), Some(("I5", 150)));
    }
}

#[test]
fn a_leadership_that_does_not_stay_without_a_fault_is_found() {
    assert_eq!(stability(&[hold(1, 0, 50, 80), hold(2, 0, 90, 400)], 100, 400), None);
    for holds in [
        vec![],
        vec![hold(1, 0, 90, 399)],
        vec![hold(1, 0, 101, 400)],
        vec![hold(1, 0, 90, 200), hold(2, 0, 210, 400)],
        vec![hold(1, 0, 90, 400), hold(2, 0, 210, 300)],
    ] {
        assert_eq!(stability(&holds, 100, 400).map(|found| found.rule), Some("I6"), "{holds:?}");
    }
}
