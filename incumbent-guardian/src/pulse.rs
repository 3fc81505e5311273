//! Whether the guardian is frozen: while a command runs it is asked every two seconds, and has to answer.
//!
//! Only such time counts in which this process itself ran. After a suspend, a pause of the container or an overload, in
//! which both stood still, the guardian has its full time once more, but not again and again: where this process is late each time,
//! a guardian that could answer has done so before long.

use std::time::Duration;

use incumbent_core::BootInstant;

/// How long after a sign of life it is asked for another.
const EVERY: Duration = Duration::from_secs(2);
/// How often an answer is looked for; how late a look may be.
const LOOK: Duration = Duration::from_millis(500);
/// After so many looks without an answer it counts as frozen: in a row and each in time, or each too late.
const LOOKS: u32 = 6;

#[derive(Debug)]
pub(crate) struct Pulse {
    asked: bool,
    in_vain: u32,
    late: u32,
    due: BootInstant,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beat {
    Wait,
    Ask,
    /// It was asked, had its time and said nothing.
    Silent,
}

impl Pulse {
    /// The guardian was given an order, which it mostly answers by itself: it is asked soon, so that the question does not
    /// stand in the way of a hand-over.
    pub(crate) fn new(now: BootInstant) -> Pulse {
        Pulse { asked: false, in_vain: 0, late: 0, due: now + LOOK }
    }

    /// The guardian has said something.
    pub(crate) fn heard(&mut self, now: BootInstant) {
        *self = Pulse { asked: false, in_vain: 0, late: 0, due: now + EVERY };
    }

    /// It was given another order. A question that is open stays as old as it is.
    pub(crate) fn hurry(&mut self, now: BootInstant) {
        if !self.asked {
            self.due = self.due.min(now + LOOK);
        }
    }

    /// To be called at the latest after [`timeout`](Pulse::timeout), when all that the guardian has said was heard.
    /// [`Beat::Silent`] comes again and again, each time after the full time.
    pub(crate) fn beat(&mut self, now: BootInstant) -> Beat {
        if now < self.due {
            return Beat::Wait;
        }
        let in_time = now < self.due + LOOK;
        self.due = now + LOOK;
        if !std::mem::replace(&mut self.asked, true) {
            return Beat::Ask;
        }
        if in_time {
            self.in_vain += 1;
        } else {
            (self.in_vain, self.late) = (0, self.late + 1);
        }
        if self.in_vain < LOOKS && self.late < LOOKS {
            return Beat::Wait;
        }
        (self.in_vain, self.late) = (0, 0);
        Beat::Silent
    }

    pub(crate) fn timeout(&self, now: BootInstant) -> Duration {
        self.due.since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: BootInstant = BootInstant::from_nanos(1_000_000_000);

    /// One that asks at the start.
    fn asked() -> Pulse {
        let mut pulse = Pulse { asked: false, in_vain: 0, late: 0, due: START };
        assert_eq!(pulse.beat(START), Beat::Ask);
        pulse
    }

    /// Looks as often as it should, each time `late` after the moment. How long it took to find the guardian silent.
    fn silent_after(pulse: &mut Pulse, start: BootInstant, late: Duration) -> Option<Duration> {
        let mut now = start;
        for _ in 0..100 {
            now = now + pulse.timeout(now) + late;
            if pulse.beat(now) == Beat::Silent {
                return Some(now.since(start));
            }
        }
        None
    }

    #[test]
    fn silence_is_found_after_its_full_time() {
        let mut pulse = asked();
        assert_eq!(silent_after(&mut pulse, START, Duration::ZERO), Some(LOOK * LOOKS));
        pulse.heard(START);
        assert_eq!(silent_after(&mut pulse, START, Duration::ZERO), Some(EVERY + LOOK * LOOKS));
    }

    #[test]
    fn an_answer_in_the_last_moment_is_an_answer() {
        let mut pulse = asked();
        let last = START + LOOK * LOOKS - Duration::from_nanos(1);
        for look in 1..LOOKS {
            assert_eq!(pulse.beat(START + LOOK * look), Beat::Wait);
        }
        pulse.heard(last);
        assert_eq!(pulse.beat(last + LOOK), Beat::Wait);
        assert_eq!(pulse.beat(last + EVERY), Beat::Ask);
    }

    #[test]
    fn who_always_looks_too_late_finds_it_silent_after_more_looks_and_a_little_late_is_in_time() {
        let mut pulse = asked();
        assert_eq!(silent_after(&mut pulse, START, LOOK), Some(LOOK * 2 * LOOKS));
        let mut pulse = asked();
        assert_eq!(silent_after(&mut pulse, START, LOOK / 2), Some(LOOK * LOOKS * 3 / 2));
    }

    /// Stopped for a moment again and again, as by a debugger or a cgroup that is frozen and thawed: the late looks between others.
    #[test]
    fn who_is_late_now_and_then_finds_it_silent_too() {
        let mut pulse = asked();
        let mut now = START;
        for look in 0.. {
            assert!(look < LOOKS * LOOKS, "a frozen guardian is never noticed");
            let late = if look % 5 == 4 { LOOK } else { Duration::ZERO };
            now = now + pulse.timeout(now) + late;
            if pulse.beat(now) == Beat::Silent {
                return;
            }
        }
    }

    /// It has answered while this process was stopped, which hears that first.
    #[test]
    fn who_answers_is_not_silent_however_late_it_is_looked_for() {
        let mut pulse = Pulse::new(START);
        let mut now = START;
        for _ in 0..100 {
            now = now + pulse.timeout(now) + LOOK * 3;
            match pulse.beat(now) {
                Beat::Ask => {}
                Beat::Wait => pulse.heard(now),
                Beat::Silent => panic!("it answers each time"),
            }
        }
    }

    #[test]
    fn after_a_suspend_it_has_its_full_time_again() {
        let mut pulse = asked();
        for look in 1..LOOKS {
            assert_eq!(pulse.beat(START + LOOK * look), Beat::Wait);
        }
        let woken = START + Duration::from_secs(3600);
        assert_eq!(pulse.beat(woken), Beat::Wait);
        assert_eq!(silent_after(&mut pulse, woken, Duration::ZERO), Some(LOOK * LOOKS));
    }

    #[test]
    fn an_order_is_followed_by_a_question_soon() {
        let soon = START + LOOK;
        let mut pulse = Pulse::new(START);
        assert_eq!((pulse.beat(START), pulse.beat(soon)), (Beat::Wait, Beat::Ask));
        pulse.heard(START);
        pulse.hurry(START);
        assert_eq!((pulse.beat(START), pulse.beat(soon)), (Beat::Wait, Beat::Ask));
        pulse.hurry(soon);
        assert_eq!(silent_after(&mut pulse, soon, Duration::ZERO), Some(LOOK * LOOKS));
    }

    #[test]
    fn an_order_does_not_put_a_question_off() {
        let mut pulse = Pulse::new(START);
        pulse.hurry(START + LOOK / 2);
        assert_eq!(pulse.beat(START + LOOK), Beat::Ask);
    }
}
