//! The boot clock: the one that `sent_at` is read from.

use incumbent_core::BootInstant;
use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
/// On macOS `CLOCK_MONOTONIC` is the one that counts through sleep.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The present moment. A backend that is to be proved must read the same clock.
pub(crate) fn now() -> BootInstant {
    let time = clock_gettime(CLOCK);
    BootInstant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Sleeps until `moment`; not at all if it has passed.
pub(crate) async fn sleep_until(moment: BootInstant) {
    // The runtime's clock may stand still in a suspend, so one sleep need not be enough.
    loop {
        let left = moment.since(now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}
