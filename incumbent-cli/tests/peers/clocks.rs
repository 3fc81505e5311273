//! Somebody sets the wall clocks of the peers' machines.

use std::time::Duration;

use testkit::{Proc, Signal, WallClock, now, wait_until};

use crate::peers::Peers;
use crate::scenarios::harness::{SOON, wait_leading, wait_standby};
use crate::scenarios::terms_of;

const TTL_SPAN: Duration = Duration::from_secs(3);
const HOUR: i64 = 3_600;

/// A job that says what time it is.
const CLOCK: &str = "echo \"lease $INCUMBENT_LEASE_FILE\"; echo \"leading $INCUMBENT_TOKEN\"; \
                     while :; do date +%s > new; mv new now; sleep 0.1; done";

/// An hour forth and back, at the leader and then at the others: no term ends, and no promise ends early.
#[test]
fn a_wall_clock_that_is_set_ends_no_term_and_no_promise() {
    let peers = Peers::electing("raft", "", &["a", "b", "c"], "3s");
    let clocks = [(); 3].map(|()| WallClock::new().expect("libfaketime"));
    let run = |name: &str, clock: &WallClock| {
        let (on, id) = (peers.url_of(name), format!("--id={name}"));
        let options = ["run", "billing", "--on", &on, &id, "--ttl=3s", "--", "sh", "-c", CLOCK];
        let mut command = peers.world.incumbent(&options);
        clock.give_to(&mut command);
        Proc::spawn(command)
    };
    let a = run("a", &clocks[0]);
    let b = run("b", &clocks[1]);
    assert!(wait_until(SOON, || terms_of(&a) + terms_of(&b) > 0), "{}", a.transcript());
    let c = run("c", &clocks[2]);
    let all = [a, b, c];
    let leads = (0..3).find(|n| terms_of(&all[*n]) > 0).expect("one leads");
    let others: Vec<usize> = (0..3).filter(|n| *n != leads).collect();
    let token = wait_leading(&all[leads], 1);
    others.iter().for_each(|n| wait_standby(&all[*n]));
    let shown = || peers.world.read("now").trim().parse::<i64>().unwrap_or_default();
    let begin = shown();
    let unmoved = || {
        std::thread::sleep(TTL_SPAN * 2);
        let terms = [0, 1, 2].map(|n| terms_of(&all[n]));
        assert_eq!((terms[leads], terms.iter().sum::<usize>()), (1, 1), "{}", all[leads].transcript());
    };
    for seconds in [HOUR, -HOUR, 0] {
        clocks[leads].set(seconds);
        // The process sees it.
        let is_set = || (shown() - begin - seconds).abs() < HOUR / 2;
        assert!(wait_until(SOON, is_set), "{} after {begin}", shown());
        unmoved();
    }
    for seconds in [HOUR, -HOUR] {
        others.iter().for_each(|n| clocks[*n].set(seconds));
        unmoved();
    }
    // The leader stands still. Nobody follows it before its own deadline, whatever the clocks of the voters show.
    all[leads].signal(Signal::STOP);
    let lease =
        all[leads].wait_line(|line| line.starts_with("lease "), SOON).text["lease ".len()..].to_owned();
    let lease = std::fs::read(lease).expect("a lease file");
    let deadline = u64::from_le_bytes(lease[16..24].try_into().expect("8 bytes"));
    others.iter().for_each(|n| clocks[*n].set(HOUR));
    assert!(wait_until(SOON, || others.iter().any(|n| terms_of(&all[*n]) > 0)));
    let seen_at = now().as_nanos();
    assert!(deadline > 0 && seen_at > deadline, "{seen_at} before {deadline}");
    let next = others.iter().find(|n| terms_of(&all[**n]) > 0).expect("one leads");
    assert!(wait_leading(&all[*next], 1) > token);
}
