//! Following who leads, without being a candidate.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use incumbent_core::{Backend, ElectionName, Error, ErrorKind, Observation, Result};
use tokio::sync::mpsc;

use crate::connection::Connection;

/// Follows one election. What it shows is a report, never a proof; it never goes back to an older term.
#[derive(Debug)]
pub struct Observer {
    reports: mpsc::Receiver<Result<Observation>>,
}

impl Observer {
    pub(crate) fn start(election: ElectionName, connection: &Connection) -> Result<Observer> {
        let (sender, reports) = mpsc::channel(16);
        let pause = connection.settings().ttl / 3;
        connection.handle().spawn(move |backend| async move {
            let stop = sender.clone();
            tokio::select! {
                biased;
                () = stop.closed() => {}
                () = follow(backend, election, pause, sender) => {}
            }
        });
        Ok(Observer { reports })
    }

    /// The next change; the first call gives the present state. An error is trouble with the store, or a store that went
    /// back ([`ErrorKind::StoreRegressed`]); the next call goes on. `None` only if the elector's thread died. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Observation>> {
        self.reports.recv().await
    }
}

async fn follow(
    backend: Arc<dyn Backend>,
    election: ElectionName,
    pause: Duration,
    reports: mpsc::Sender<Result<Observation>>,
) {
    let mut memory = Memory::default();
    loop {
        // Subscribe first, then look: what changes in between gives a hint.
        let mut changes = backend.watch(&election, None);
        loop {
            let report = match backend.observe(&election).await {
                Ok(observation) => memory.news(observation),
                Err(error) => memory.trouble(error),
            };
            if let Some(report) = report
                && reports.send(report).await.is_err()
            {
                return;
            }
            let hint = async {
                match &mut changes {
                    Some(changes) => changes.next().await,
                    None => std::future::pending().await,
                }
            };
            // The timer covers lost hints.
            if let Ok(None | Some(Err(_))) = tokio::time::timeout(pause, hint).await {
                break;
            }
        }
        drop(changes);
        tokio::time::sleep(pause / 4).await;
    }
}

/// What was reported last, so that only news is.
#[derive(Default)]
struct Memory {
    shown: Option<Observation>,
    highest: u64,
    trouble: Option<Error>,
}

impl Memory {
    fn news(&mut self, observation: Observation) -> Option<Result<Observation>> {
        let token = observation.leader.as_ref().and_then(|leader| leader.token);
        if let Some(token) = token {
            if token.0 < self.highest {
                let highest = self.highest;
                return self.trouble(Error::new(
                    ErrorKind::StoreRegressed,
                    format!("the store went back: it shows token {token} after {highest}; fences are all that protects now"),
                ));
            }
            self.highest = token.0;
        }
        self.trouble = None;
        if self.shown.as_ref() == Some(&observation) {
            return None;
        }
        self.shown = Some(observation.clone());
        Some(Ok(observation))
    }

    fn trouble(&mut self, error: Error) -> Option<Result<Observation>> {
        if self.trouble.as_ref().is_some_and(|known| known.kind() == error.kind()) {
            return None;
        }
        self.trouble = Some(error.clone());
        Some(Err(error))
    }
}
