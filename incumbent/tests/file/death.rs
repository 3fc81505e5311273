//! Leaders that die, resign, freeze and wake.

use std::time::Duration;

use testkit::{Signal, now, run_dir};

use crate::process::{Candidate, url};

/// So long that no hand-over in time can come from its end.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(1500);

#[test]
fn a_killed_leader_is_followed_at_once() {
    let dir = run_dir("killed");
    let mut leader = Candidate::start(&url(&dir, LONG), "a");
    let (_, mut token) = leader.elected(1);
    let mut took = Vec::new();
    for round in 0..20 {
        let next = Candidate::start(&url(&dir, LONG), &format!("n{round}"));
        next.line("leader ", 1);
        let killed = now();
        leader.proc.signal(Signal::KILL);
        let (at, newer) = next.elected(1);
        took.push(at.since(killed));
        assert!(newer > token, "{newer} > {token}");
        (leader, token) = (next, newer);
    }
    took.sort();
    println!("from kill to elected: median {:?}, longest {:?}", took[took.len() / 2], took[took.len() - 1]);
}
