//! Pauses between one run of the command and the next: growing, jittered, and short again after a good while.

use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// A command that ran for so long has recovered.
const GOOD_WHILE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff { next: FIRST }
    }

    /// The pause after a command that ran for `ran`. `jitter` is 0..256: half to one and a half of it.
    pub(crate) fn pause(&mut self, ran: Duration, jitter: u8) -> Duration {
        if ran >= GOOD_WHILE {
            self.next = FIRST;
        }
        let pause = self.next / 2 + self.next * u32::from(jitter) / 256;
        self.next = (self.next * 2).min(LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_are_short_again_after_a_good_while() {
        let mut backoff = Backoff::new();
        let pauses: Vec<u64> = (0..9).map(|_| backoff.pause(Duration::ZERO, 128).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(backoff.pause(GOOD_WHILE, 128), FIRST);
        assert_eq!(backoff.pause(Duration::ZERO, 128), 2 * FIRST);
    }

    #[test]
    fn jitter_is_half_to_one_and_a_half() {
        assert_eq!(Backoff::new().pause(Duration::ZERO, 0), FIRST / 2);
        let most = Backoff::new().pause(Duration::ZERO, 255);
        assert!(most > FIRST * 149 / 100 && most < FIRST * 3 / 2, "{most:?}");
    }
}
