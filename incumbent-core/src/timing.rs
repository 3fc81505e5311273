//! Every deadline formula. Whoever wants to know when something happens, or why, looks here and nowhere else.

mod peers;

use std::time::Duration;

pub use self::peers::PeerTiming;

use crate::error::{Error, ErrorKind, Result};
use crate::guarantees::Guarantees;
use crate::time::{BootInstant, exact, rounded};

/// The default lease duration.
pub const DEFAULT_TTL: Duration = Duration::from_secs(15);
/// The default bound on a polite stop.
pub const DEFAULT_DRAIN: Duration = Duration::from_secs(30);
/// The default bound on the error of a clock's *rate*, in parts per million.
pub const DEFAULT_DRIFT_PPM: u32 = 1_000;
const DEFAULT_GRACE_MAX: Duration = Duration::from_secs(5);
const KILL_LEAD_MAX: Duration = Duration::from_millis(250);

/// What a user may set; what is `None` takes its default from the ttl.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Settings {
    /// How long a grant lasts without a renewal. Default 15 s.
    pub ttl: Duration,
    /// How long before the deadline the work is told to stop when nothing renews. Default min(5 s, ttl/4).
    pub grace: Option<Duration>,
    /// Safety distance between the end of trust and the end of the lease. Default ttl/10.
    pub margin: Option<Duration>,
    /// How long a polite stop may take; `None` is without bound. Default 30 s.
    pub drain: Option<Duration>,
    /// Bound on the error of any clock's rate, in parts per million. Default 1000.
    pub drift_ppm: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            ttl: DEFAULT_TTL,
            grace: None,
            margin: None,
            drain: Some(DEFAULT_DRAIN),
            drift_ppm: DEFAULT_DRIFT_PPM,
        }
    }
}

/// The intervals in force, checked against each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Timing {
    /// How long a grant lasts without a renewal.
    pub ttl: Duration,
    /// From the send of one proof to the send of the next: ttl/3, or what the backend asks to keep between them.
    pub renew_interval: Duration,
    /// The least time from one renewal to the next; zero if the backend names none that fits into the ttl.
    pub renew_spacing: Duration,
    /// How long one call to the backend may take: a quarter of what the renewal interval leaves of the ttl, most often ttl/6.
    pub call_timeout: Duration,
    /// Pause after a failed call: a twentieth of that rest, most often ttl/30.
    pub retry_pause: Duration,
    /// The longest pause between two campaigns: ttl/3.
    pub backoff_max: Duration,
    /// How long before the deadline the work is told to stop when nothing renews.
    pub grace: Duration,
    /// Distance between the end of trust and the end of the lease.
    pub margin: Duration,
    /// By how much the store may judge early.
    pub slack: Duration,
    /// How long a polite stop may take.
    pub drain: Option<Duration>,
    /// Bound on the error of a clock's rate, in parts per million.
    pub drift_ppm: u32,
}

impl Timing {
    /// Derives all intervals and checks them against each other and against what the backend promises.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] with the arithmetic: the ttl is below the backend's minimum, or
    /// `renew interval + retry + grace + margin + slack + drift·ttl < ttl` or `2·drift·ttl < margin` does not hold.
    pub fn new(settings: &Settings, guarantees: &Guarantees) -> Result<Timing> {
        let ttl = settings.ttl;
        if ttl < guarantees.ttl_min {
            return Err(invalid(format!(
                "ttl {} is below the shortest that this backend can keep, {}; raise ttl",
                exact(ttl),
                exact(guarantees.ttl_min)
            )));
        }
        if ttl > Duration::from_secs(24 * 3600) {
            return Err(invalid(format!("ttl {} is above the longest allowed, 24 h; lower ttl", exact(ttl))));
        }
        let spacing = guarantees.renew_spacing;
        let renew_spacing = if spacing.saturating_mul(3) <= ttl * 2 { spacing } else { Duration::ZERO };
        let renew_interval = renew_spacing.max(ttl / 3);
        let (call_timeout, retry_pause, grace) = if renew_interval == ttl / 3 {
            (ttl / 6, ttl / 30, ttl / 4)
        } else {
            let rest = ttl - renew_interval;
            (rest / 4, rest / 20, rest * 3 / 8)
        };
        let timing = Timing {
            ttl,
            renew_interval,
            renew_spacing,
            call_timeout,
            retry_pause,
            backoff_max: ttl / 3,
            grace: settings.grace.unwrap_or_else(|| DEFAULT_GRACE_MAX.min(grace)),
            margin: settings.margin.unwrap_or(ttl / 10),
            slack: guarantees.expiry_slack,
            drain: settings.drain,
            drift_ppm: settings.drift_ppm,
        };
        timing.check(settings.margin.is_some())?;
        Ok(timing)
    }

    fn check(&self, margin_given: bool) -> Result<()> {
        let drift = self.drift(self.ttl);
        let retry = self.call_timeout + self.retry_pause;
        let parts = [self.renew_interval, retry, self.grace, self.margin, self.slack, drift];
        let sum = parts.into_iter().fold(Duration::ZERO, Duration::saturating_add);
        if sum >= self.ttl {
            // Who did not set a margin may not be able to.
            let lower = if margin_given { "grace or margin" } else { "grace" };
            return Err(invalid(format!(
                "the intervals do not fit into the ttl: renew interval {} + retry {} + grace {} + margin {} + slack {} + drift {} = {}, which must be less than ttl {}; raise ttl or lower {lower}",
                rounded(self.renew_interval),
                rounded(retry),
                exact(self.grace),
                exact(self.margin),
                exact(self.slack),
                rounded(drift),
                rounded(sum),
                exact(self.ttl)
            )));
        }
        if drift.saturating_mul(2) >= self.margin {
            return Err(invalid(format!(
                "margin {} must be more than twice the clock drift {} over a ttl of {}; raise margin",
                exact(self.margin),
                exact(drift),
                exact(self.ttl)
            )));
        }
        Ok(())
    }

    fn drift(&self, span: Duration) -> Duration {
        drift(span, self.drift_ppm)
    }

    /// When trust in a grant ends: `send of its latest proof + min(ttl asked, ttl granted)·(1−drift) − margin − slack`.
    ///
    /// Counted from the *send*: the store may have counted from any moment after it.
    pub fn deadline(&self, sent_at: BootInstant, ttl_granted: Duration) -> BootInstant {
        let ttl = self.ttl.min(ttl_granted);
        let lost = self.drift(ttl) + self.margin + self.slack;
        sent_at + ttl.saturating_sub(lost)
    }

    /// When the next renewal is due. `jitter` is 0..1024: up to a tenth of the interval *earlier*, if the backend does not mind.
    pub fn renew_at(&self, sent_at: BootInstant, jitter: u32) -> BootInstant {
        let interval = self.renew_interval.saturating_sub(scale(self.renew_interval / 10, jitter));
        sent_at + interval.max(self.renew_spacing)
    }

    /// When the work is told to stop if nothing has renewed the grant.
    pub fn outage_at(&self, deadline: BootInstant) -> BootInstant {
        deadline - self.grace
    }

    /// By how much a killer starts before the deadline, so that what it kills is gone at the deadline: min(250 ms, grace/5).
    pub fn kill_lead(&self) -> Duration {
        KILL_LEAD_MAX.min(self.grace / 5)
    }

    /// When the store must have let go of a grant for which nothing was sent after `sent_at`, by the local clock.
    pub fn gone_from_store_at(&self, sent_at: BootInstant, takeover_max: Duration) -> BootInstant {
        sent_at + takeover_max + self.drift(takeover_max)
    }

    /// The least distance of two calls that answers or the clock ask for: ttl/240.
    pub fn call_spacing(&self) -> Duration {
        self.retry_pause / 8
    }

    /// The least distance of a standby's tries that hints ask for: ttl/3000, so that a hand-over hardly waits for it.
    pub fn hint_spacing(&self) -> Duration {
        self.retry_pause / 100
    }

    /// The pause after the `failures`-th failed call in a row. `jitter` is 0..1024: half to one and a half of it.
    pub fn retry_after(&self, failures: u32, jitter: u32) -> Duration {
        let pause =
            self.retry_pause.saturating_mul(1 << failures.saturating_sub(1).min(4)).min(self.backoff_max);
        pause / 2 + scale(pause, jitter)
    }

    /// How long a candidate that gave up its term on request stays away, so that another can win.
    pub fn resign_pause(&self, jitter: u32) -> Duration {
        self.backoff_max + scale(self.backoff_max / 4, jitter)
    }

    /// The longest time from a leader's crash until another leads, given the store's own bound.
    pub fn crash_failover_max(&self, takeover_max: Duration) -> Duration {
        takeover_max + self.drift(takeover_max) + self.retry_pause + self.call_timeout
    }
}

/// How long a challenger that judges expiry itself waits after its first full sight of an unchanged record.
///
/// Its clock may run fast and the leader's slow: the leader subtracts its own drift, the challenger adds its own.
pub fn challenge_after(record_ttl: Duration, slack: Duration) -> Duration {
    record_ttl + slack + drift(record_ttl, DEFAULT_DRIFT_PPM)
}

/// By how much a clock whose rate is wrong by `ppm` may be wrong after `span`.
fn drift(span: Duration, ppm: u32) -> Duration {
    let nanos = span.as_nanos() * u128::from(ppm) / 1_000_000;
    Duration::from_nanos(nanos.try_into().unwrap_or(u64::MAX))
}

fn scale(span: Duration, jitter: u32) -> Duration {
    Duration::from_nanos(
        (span.as_nanos() * u128::from(jitter.min(1023)) / 1024).try_into().unwrap_or(u64::MAX),
    )
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}
