//! The clocks of a host: each has its own zero, its own rate, and a wall clock that anybody may set.

use std::time::Duration;

use incumbent_core::BootInstant;

use crate::random::Random;

/// True time, in nanoseconds since the run began. Only the simulator knows it.
pub(crate) type Nanos = u64;

pub(crate) const MS: Nanos = 1_000_000;
pub(crate) const SECOND: Nanos = 1_000 * MS;
pub(crate) const HOUR: Nanos = 3_600 * SECOND;

const MILLION: i64 = 1_000_000;

/// `span · numerator / denominator`.
fn share(span: i64, numerator: i64, denominator: i64) -> i64 {
    match span.checked_mul(numerator) {
        Some(product) => product / denominator,
        None => (i128::from(span) * i128::from(numerator) / i128::from(denominator)) as i64,
    }
}

/// A span as a duration.
pub(crate) fn span(nanos: Nanos) -> Duration {
    Duration::from_nanos(nanos)
}

/// A duration as a span.
pub(crate) fn nanos(span: Duration) -> Nanos {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The clocks of one host. The boot clock goes on while the host is frozen or suspended, and nobody sets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    offset: Nanos,
    rate_ppm: i64,
    /// By how much the wall clock was set away from the boot clock.
    wall_step: i64,
}

impl Clock {
    /// A clock that was started some time ago and runs at `1 + rate_ppm/10⁶`.
    pub(crate) fn new(random: &mut Random, rate_ppm: i64) -> Clock {
        Clock { offset: SECOND + random.below(1_000 * HOUR), rate_ppm, wall_step: 0 }
    }

    /// What the boot clock shows at `at`.
    pub(crate) fn boot(&self, at: Nanos) -> BootInstant {
        let drifted = share(at as i64, self.rate_ppm, MILLION);
        BootInstant::from_nanos((self.offset + at).saturating_add_signed(drifted))
    }

    /// The first true time, or a little later, at which the boot clock shows `local`.
    pub(crate) fn true_time(&self, local: BootInstant) -> Nanos {
        if local == BootInstant::FAR_FUTURE {
            return Nanos::MAX;
        }
        let shown = local.as_nanos().saturating_sub(self.offset);
        if self.rate_ppm == 0 {
            return shown;
        }
        // Rounded up: whoever is woken then finds that its time has come.
        let drifted = share(shown as i64, self.rate_ppm, MILLION + self.rate_ppm);
        shown.saturating_add_signed(2 - drifted)
    }

    /// What the wall clock shows at `at`, in microseconds.
    pub(crate) fn wall_us(&self, at: Nanos) -> u64 {
        let shown = self.boot(at).as_nanos().saturating_add_signed(self.wall_step);
        shown / 1_000
    }

    /// Somebody sets the wall clock.
    pub(crate) fn set_wall(&mut self, by: i64) {
        self.wall_step = self.wall_step.saturating_add(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_read_when_it_shall_show_something_shows_it() {
        let mut random = Random::new(1);
        for rate_ppm in [-500_000, -1_000, -1, 0, 1, 1_000, 500_000] {
            let clock = Clock::new(&mut random, rate_ppm);
            for _ in 0..1_000 {
                let local = clock.boot(random.below(HOUR)) + Duration::from_nanos(random.below(HOUR));
                let at = clock.true_time(local);
                assert!(clock.boot(at) >= local, "{rate_ppm}");
                assert!(clock.boot(at.saturating_sub(8)) < local + Duration::from_nanos(8), "{rate_ppm}");
            }
        }
        let far = Clock::new(&mut random, 1_000).true_time(BootInstant::FAR_FUTURE);
        assert_eq!(far, Nanos::MAX);
    }

    #[test]
    fn only_the_wall_clock_is_set() {
        let mut clock = Clock::new(&mut Random::new(1), 0);
        let (boot, wall) = (clock.boot(SECOND), clock.wall_us(SECOND));
        clock.set_wall(-(SECOND as i64));
        assert_eq!((clock.boot(SECOND), clock.wall_us(SECOND)), (boot, wall - 1_000_000));
    }
}
