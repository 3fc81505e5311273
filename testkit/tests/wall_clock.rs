//! A process whose wall clock is set while it runs.

use std::process::Command;
use std::time::Duration;

use testkit::{Proc, WallClock, now, wait_until};

#[test]
fn a_process_sees_its_wall_clock_move_and_no_other() {
    let clock = WallClock::new().unwrap();
    let mut perl = Command::new("perl");
    perl.args(["-e", "$| = 1; while (1) { select(undef, undef, undef, 0.05); print time, qq(\\n); }"]);
    clock.give_to(&mut perl);
    let perl = Proc::spawn(perl);
    let shows = |wanted: i64| {
        let system = Command::new("date").arg("+%s").output().unwrap();
        let system: i64 = String::from_utf8_lossy(&system.stdout).trim().parse().unwrap();
        let shown = perl.lines().last().and_then(|line| line.text.parse::<i64>().ok()).unwrap_or_default();
        (shown - system - wanted).abs() <= 5
    };
    let begin = now();
    for offset in [0, 3600, -3600, 0] {
        clock.set(offset);
        assert!(wait_until(Duration::from_secs(30), || shows(offset)), "{offset} is not shown");
    }
    // Had the clock that counts its pauses moved too, it would have paused for an hour.
    assert!(now().since(begin) < Duration::from_secs(120));
}
