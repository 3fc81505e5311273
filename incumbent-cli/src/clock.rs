//! The time of day, for people only.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "shown to people only")]
pub(crate) fn unix_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since_1970.as_millis().try_into().unwrap_or(u64::MAX)
}
