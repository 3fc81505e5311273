//! The boot clock: the only clock that a decision of this crate reads.

use incumbent_core::BootInstant;
use rustix::time::{ClockId, clock_gettime};

/// The clock that goes on counting while the machine sleeps and that nobody can set.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;

/// On macOS `CLOCK_MONOTONIC` is the one that counts through sleep.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The present moment on the boot clock. Costs one `clock_gettime`, never blocks and cannot fail.
#[inline]
#[must_use]
pub fn now() -> BootInstant {
    let time = clock_gettime(CLOCK);
    // Both parts are non-negative on this clock, so the casts lose nothing.
    BootInstant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The time of day in milliseconds since 1970, for people. No decision may use it.
pub(crate) fn unix_ms() -> Option<u64> {
    unix_us().map(|us| us / 1000)
}

/// The time of day in microseconds since 1970, for people, and to make hybrid tokens of. No decision may compare it.
#[expect(
    clippy::disallowed_methods,
    reason = "shown to people, and made into tokens where a store has no clock"
)]
pub(crate) fn unix_us() -> Option<u64> {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    since_1970.as_micros().try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    #[test]
    fn moves_forward_by_at_least_what_was_slept() {
        let before = super::now();
        std::thread::sleep(Duration::from_millis(5));
        assert!(super::now().since(before) >= Duration::from_millis(5));
    }
}
