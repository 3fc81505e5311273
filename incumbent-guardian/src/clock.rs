//! The boot clock: it goes on counting while the machine sleeps, and nobody can set it.

use incumbent_core::BootInstant;
use rustix::time::{ClockId, clock_gettime};

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
/// On macOS `CLOCK_MONOTONIC` is the one that counts through sleep.
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The present moment on the boot clock. Never blocks and cannot fail.
#[must_use]
pub fn now() -> BootInstant {
    let time = clock_gettime(CLOCK);
    // Both parts are non-negative on this clock, so the casts lose nothing.
    BootInstant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
