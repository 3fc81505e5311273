//! Who waits for news of which election, where a store tells the whole process at once.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use incumbent_core::{BoxStream, Result};
use tokio::sync::watch;

/// One signal per election; any number of signals that nobody has taken yet count as one.
#[derive(Debug, Default)]
pub(super) struct Signals(Mutex<BTreeMap<String, watch::Sender<()>>>);

impl Signals {
    /// The signals of one election from now on.
    pub(super) fn subscribe(&self, election: &str) -> BoxStream<'static, Result<()>> {
        let signals = self.lock().entry(election.to_owned()).or_default().subscribe();
        Box::pin(futures_util::stream::unfold(signals, |mut signals| async move {
            signals.changed().await.ok()?;
            Some((Ok(()), signals))
        }))
    }

    /// Tells those who wait for news of `election`.
    pub(super) fn send(&self, election: &str) {
        let mut all = self.lock();
        if all.get(election).is_some_and(|signal| signal.send(()).is_err()) {
            all.remove(election);
        }
    }

    /// Tells those who wait for news of `election`, unless there is only one.
    #[cfg(any(feature = "nats", feature = "redis"))]
    pub(super) fn send_if_shared(&self, election: &str) {
        let all = self.lock();
        if let Some(signal) = all.get(election).filter(|signal| signal.receiver_count() > 1) {
            signal.send_replace(());
        }
    }

    /// The elections of which somebody waits for news.
    #[cfg(feature = "mysql")]
    pub(super) fn elections(&self) -> Vec<String> {
        let mut all = self.lock();
        all.retain(|_, signal| signal.receiver_count() > 0);
        all.keys().cloned().collect()
    }

    /// Tells everyone.
    pub(super) fn send_all(&self) {
        self.lock().retain(|_, signal| signal.send(()).is_ok());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
