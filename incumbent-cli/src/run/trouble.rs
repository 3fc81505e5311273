//! When trouble with the store is told: at once, then every 30 seconds, then that it is over.

use std::time::Duration;

use incumbent::{BootInstant, ErrorKind};

const EVERY: Duration = Duration::from_secs(30);

/// Trouble under way, if any.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    under_way: Option<UnderWay>,
}

#[derive(Debug)]
struct UnderWay {
    since: BootInstant,
    kind: ErrorKind,
    tell_again_at: BootInstant,
}

impl Trouble {
    /// A call failed. `Some` with how long this goes on already, if it shall be told.
    pub(crate) fn failed(&mut self, now: BootInstant, kind: ErrorKind) -> Option<Duration> {
        match &mut self.under_way {
            // An error of another kind is news, but a time-out among refusals is not.
            Some(known) if now < known.tell_again_at && (known.kind == kind || retryable(kind)) => None,
            Some(known) => {
                known.kind = kind;
                known.tell_again_at = now + EVERY;
                Some(now.since(known.since))
            }
            None => {
                self.under_way = Some(UnderWay { since: now, kind, tell_again_at: now + EVERY });
                Some(Duration::ZERO)
            }
        }
    }

    /// The store answers again: how long it did not.
    pub(crate) fn recovered(&mut self, now: BootInstant) -> Option<Duration> {
        self.under_way.take().map(|trouble| now.since(trouble.since))
    }
}

fn retryable(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::TimedOut)
}

/// True if nobody who waits will see this go away: before the first term it ends the process.
pub(crate) fn is_fatal(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Denied
            | ErrorKind::ReadOnly
            | ErrorKind::UnknownScheme
            | ErrorKind::InvalidConfig
            | ErrorKind::InvalidName
            | ErrorKind::Unsupported
            | ErrorKind::Corrupt
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn told_at_once_then_every_half_minute_then_over() {
        let start = BootInstant::from_nanos(1_000_000_000);
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut trouble = Trouble::default();
        assert_eq!(trouble.recovered(at(0)), None);
        assert_eq!(trouble.failed(at(0), ErrorKind::Unavailable), Some(Duration::ZERO));
        assert_eq!(trouble.failed(at(1), ErrorKind::TimedOut), None);
        assert_eq!(trouble.failed(at(29), ErrorKind::Unavailable), None);
        assert_eq!(trouble.failed(at(31), ErrorKind::Unavailable), Some(Duration::from_secs(31)));
        assert_eq!(trouble.failed(at(32), ErrorKind::Denied), Some(Duration::from_secs(32)));
        assert_eq!(trouble.failed(at(33), ErrorKind::Denied), None);
        assert_eq!(trouble.recovered(at(40)), Some(Duration::from_secs(40)));
        assert_eq!(trouble.failed(at(41), ErrorKind::Unavailable), Some(Duration::ZERO));
    }
}
