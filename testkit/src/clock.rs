//! The boot clock, and waiting on it for a condition.

use std::thread::sleep;
use std::time::Duration;

use incumbent_core::BootInstant;
use rustix::time::{ClockId, clock_gettime};

#[cfg(target_os = "linux")]
const BOOT: ClockId = ClockId::Boottime;
/// macOS counts suspended time in its monotonic clock.
#[cfg(not(target_os = "linux"))]
const BOOT: ClockId = ClockId::Monotonic;

/// Now, on the boot clock.
pub fn now() -> BootInstant {
    let time = clock_gettime(BOOT);
    BootInstant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Asks `condition` every 10 ms until it holds or `timeout` has passed; says whether it came to hold.
///
/// The condition is asked at least once, and once more after the last wait.
pub fn wait_until(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = now() + timeout;
    loop {
        if condition() {
            return true;
        }
        if now() >= end {
            return false;
        }
        sleep(Duration::from_millis(10));
    }
}
