//! What the harnesses of stores with servers share: servers that start when they are first needed, relays before them, and faults.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use incumbent_conformance::Hook;
use incumbent_core::{Error, ErrorKind};
use testkit::{Direction, Relay, Stall};

/// Servers that start when they are first needed.
pub(crate) struct Served<S> {
    start: Box<dyn Fn() -> S + Send + Sync>,
    fronts: fn(&S) -> Vec<String>,
    running: OnceLock<Arc<Running<S>>>,
}

pub(crate) struct Running<S> {
    servers: Mutex<S>,
    /// What the backend under test connects to, one before each server.
    pub(crate) relays: Vec<Relay>,
    stalls: Mutex<Vec<Stall>>,
}

impl<S: Send + 'static> Served<S> {
    /// Those that `start` starts; `fronts` gives the addresses at which they are reached.
    pub(crate) fn new(
        start: impl Fn() -> S + Send + Sync + 'static,
        fronts: fn(&S) -> Vec<String>,
    ) -> Served<S> {
        Served { start: Box::new(start), fronts, running: OnceLock::new() }
    }

    pub(crate) fn running(&self) -> Arc<Running<S>> {
        let start = || {
            let servers = (self.start)();
            let relays = (self.fronts)(&servers).iter().map(|front| Relay::to(front)).collect();
            Arc::new(Running { servers: Mutex::new(servers), relays, stalls: Mutex::default() })
        };
        self.running.get_or_init(start).clone()
    }

    /// Does what takes long on a thread that may block.
    pub(crate) fn by_hand<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Running<S>) -> T + Send + 'static,
    ) -> Hook<'static, T> {
        let running = self.running();
        Ok(Box::pin(async move {
            let done = tokio::task::spawn_blocking(move || act(&running)).await;
            done.map_err(|error| Error::new(ErrorKind::Internal, "by hand").with_source(error))
        }))
    }

    /// Holds back, or lets pass, what the servers answer.
    pub(crate) fn hold_answers(&self, on: bool) -> Hook<'static> {
        self.by_hand(move |running| {
            for relay in &running.relays {
                match on {
                    true => relay.hold(Direction::Answers),
                    false => relay.pass(Direction::Answers),
                }
            }
        })
    }

    /// Ends the stalls of disks that there are, and makes those that `stalls` makes.
    pub(crate) fn stall(&self, on: bool, stalls: fn(&mut S) -> Vec<Stall>) -> Hook<'static> {
        self.by_hand(move |running| {
            let mut now = running.stalls.lock().expect("an unbroken lock");
            now.clear();
            if on {
                *now = stalls(&mut running.servers());
            }
        })
    }
}

impl<S> Running<S> {
    pub(crate) fn servers(&self) -> MutexGuard<'_, S> {
        self.servers.lock().expect("an unbroken lock")
    }

    /// The addresses of the relays, as a URL lists them.
    pub(crate) fn hosts(&self) -> String {
        self.relays.iter().map(Relay::addr).collect::<Vec<_>>().join(",")
    }

    /// How many connections the backend under test has.
    pub(crate) fn connections(&self) -> u64 {
        self.relays.iter().map(Relay::open).sum::<usize>() as u64
    }
}

/// Keeps a copy of a directory beside it, or puts the copy back, with owners and permissions.
pub(crate) fn back_up(data: &Path, put_back: bool) {
    let copy = data.with_extension("copy");
    let (from, to) = if put_back { (copy.as_path(), data) } else { (data, copy.as_path()) };
    let _ = std::fs::remove_dir_all(to);
    let status = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "cannot copy {} to {}",
        from.display(),
        to.display()
    );
}
