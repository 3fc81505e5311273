//! Time as the core sees it: points on the boot clock, handed in by whoever has a clock.

use core::fmt;
use core::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point on the boot clock (`CLOCK_BOOTTIME` on Linux), in nanoseconds since the machine booted.
///
/// The boot clock goes on counting while the machine is suspended and is not moved by anyone who sets the
/// time of day. Two instants are comparable only if they were read on the same machine since its last boot.
/// The core never reads a clock: every instant is passed in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootInstant(u64);

impl BootInstant {
    /// The moment of boot.
    pub const ZERO: BootInstant = BootInstant(0);
    /// Later than any moment that a clock will show.
    pub const FAR_FUTURE: BootInstant = BootInstant(u64::MAX);

    /// The instant `nanos` nanoseconds after boot.
    pub const fn from_nanos(nanos: u64) -> BootInstant {
        BootInstant(nanos)
    }

    /// Nanoseconds since boot.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this instant is; zero if it is not after it.
    pub const fn since(self, earlier: BootInstant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A span as messages write it: exact, with a space before its unit, as in `10 ms`, `1.5 s` or `24 h`.
pub fn exact(span: Duration) -> String {
    if span.is_zero() {
        return "0 s".to_owned();
    }
    let seconds = span.as_secs();
    if span.subsec_nanos() == 0 && seconds.is_multiple_of(3600) {
        return format!("{} h", seconds / 3600);
    }
    let text = format!("{span:?}");
    let unit = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    format!("{} {}", &text[..unit], &text[unit..])
}

/// A span as messages write it, in three significant digits, as in `1.67 s`.
pub fn rounded(span: Duration) -> String {
    let nanos = span.as_nanos().min(u64::MAX.into()) as u64;
    let grain = 10_u64.pow(nanos.checked_ilog10().unwrap_or(0).saturating_sub(2));
    exact(Duration::from_nanos(nanos.saturating_add(grain / 2) / grain * grain))
}

const fn nanos(duration: Duration) -> u64 {
    let nanos = duration.as_nanos();
    if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
}

impl Add<Duration> for BootInstant {
    type Output = BootInstant;
    /// Saturates at [`BootInstant::FAR_FUTURE`].
    fn add(self, duration: Duration) -> BootInstant {
        BootInstant(self.0.saturating_add(nanos(duration)))
    }
}

impl Sub<Duration> for BootInstant {
    type Output = BootInstant;
    /// Saturates at [`BootInstant::ZERO`].
    fn sub(self, duration: Duration) -> BootInstant {
        BootInstant(self.0.saturating_sub(nanos(duration)))
    }
}

impl fmt::Debug for BootInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "boot+{:?}", Duration::from_nanos(self.0))
    }
}
