//! Who waits for hints, and whether the store tells of changes by itself.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use incumbent_core::{BoxStream, ElectionName, Result};
use tokio::sync::watch;

use crate::backend::signals::Signals;

/// Hints that a listener sends; while there is none that works, one is made up at intervals.
pub(crate) struct Hints {
    pub(crate) signals: Signals,
    pushed: watch::Sender<bool>,
    /// Without pushed hints, one is made up after this long.
    pub(crate) poll: Duration,
}

impl Hints {
    pub(crate) fn new(poll: Duration) -> Hints {
        Hints { signals: Signals::default(), pushed: watch::Sender::new(false), poll }
    }

    /// Whether somebody sends signals from now on.
    pub(crate) fn set_pushed(&self, pushed: bool) {
        self.pushed.send_replace(pushed);
    }

    /// The hints of one election from now on.
    pub(crate) fn of(&self, election: &ElectionName) -> BoxStream<'static, Result<()>> {
        let signals = self.signals.subscribe(election.as_str());
        let (pushed, poll) = (self.pushed.subscribe(), self.poll);
        Box::pin(stream::unfold((signals, pushed), move |(mut signals, mut pushed)| async move {
            loop {
                let pushing = *pushed.borrow_and_update();
                tokio::select! {
                    signal = signals.next() => return signal.map(|signal| (signal, (signals, pushed))),
                    () = tokio::time::sleep(poll), if !pushing => return Some((Ok(()), (signals, pushed))),
                    changed = pushed.changed() => changed.ok()?,
                }
            }
        }))
    }
}
