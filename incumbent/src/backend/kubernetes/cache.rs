//! What is known of each election's Lease without asking: from the watch, the latest read, and own writes.
//!
//! A standby lives on this, so that it hardly asks anything. What it knows may be old: a swap based on that meets a conflict, and the
//! conflict makes the next read ask the server.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use incumbent_core::BootInstant;

use super::lease::Lease;
use crate::clock;

/// How long an event may be on its way.
const UNDER_WAY: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Cache(Mutex<BTreeMap<String, Entry>>);

#[derive(Default)]
struct Entry {
    lease: Option<Lease>,
    /// Watches that are open.
    watches: usize,
    /// A campaign of this process wants it kept.
    wanted: bool,
    /// Something contradicted it: ask.
    doubtful: bool,
    /// A version that was read and that no watch has told of, and when.
    untold: Option<(u64, BootInstant)>,
    /// Watches that came to nothing in a row.
    failures: u32,
}

impl Entry {
    fn keep(&mut self, lease: &Lease) {
        self.lease = Some(lease.clone());
        self.doubtful = false;
    }
}

/// An open watch; what it tells is believed until this is dropped.
pub(super) struct Watching<'a>(&'a Cache, String);

impl Cache {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a watch keeps up to date; `None`: ask the server.
    pub(super) fn followed(&self, name: &str) -> Option<Lease> {
        let all = self.lock();
        let entry = all.get(name)?;
        (entry.watches > 0 && !entry.doubtful).then(|| entry.lease.clone())?
    }

    /// The Lease as it was at this version, if it is still known.
    pub(super) fn at(&self, name: &str, version: u64) -> Option<Lease> {
        self.lock().get(name)?.lease.clone().filter(|lease| lease.version() == version)
    }

    /// The server answered a read.
    pub(super) fn read(&self, name: &str, lease: Option<&Lease>) {
        let mut all = self.lock();
        let Some(entry) = all.get_mut(name) else { return };
        let Some(lease) = lease else {
            entry.lease = None;
            return;
        };
        if entry.watches > 0 && entry.lease.as_ref().is_none_or(|known| known.version() < lease.version()) {
            entry.untold.get_or_insert((lease.version(), clock::now()));
        }
        entry.keep(lease);
    }

    /// The server confirmed a write of this process.
    pub(super) fn wrote(&self, name: &str, lease: &Lease) {
        if let Some(entry) = self.lock().get_mut(name) {
            entry.keep(lease);
        }
    }

    /// Something else than what is known stands there.
    pub(super) fn doubt(&self, name: &str) {
        if let Some(entry) = self.lock().get_mut(name) {
            entry.doubtful = true;
        }
    }

    /// A campaign wants it kept, or no longer.
    pub(super) fn want(&self, name: &str, wanted: bool) {
        let mut all = self.lock();
        if wanted {
            all.entry(name.to_owned()).or_default().wanted = true;
        } else if let Some(entry) = all.get_mut(name) {
            entry.wanted = false;
            tidy(&mut all, name);
        }
    }

    /// A watch is open.
    pub(super) fn watching(&self, name: &str) -> Watching<'_> {
        let mut all = self.lock();
        let entry = all.entry(name.to_owned()).or_default();
        entry.watches += 1;
        entry.untold = None;
        // What happened before it was opened, it tells first.
        entry.doubtful = true;
        Watching(self, name.to_owned())
    }

    /// A watch came to nothing; how many did in a row, as long as somebody wants it.
    pub(super) fn failed(&self, name: &str) -> u32 {
        let mut all = self.lock();
        let Some(entry) = all.get_mut(name) else { return 1 };
        entry.failures = entry.failures.saturating_add(1);
        entry.failures
    }

    pub(super) fn failures(&self, name: &str) -> u32 {
        self.lock().get(name).map_or(0, |entry| entry.failures)
    }
}

fn tidy(all: &mut BTreeMap<String, Entry>, name: &str) {
    if all.get(name).is_some_and(|entry| !entry.wanted && entry.watches == 0) {
        all.remove(name);
    }
}

impl Watching<'_> {
    /// It told of this state; `None`: the Lease was deleted.
    pub(super) fn tells(&self, lease: Option<Lease>) {
        let mut all = self.0.lock();
        let Some(entry) = all.get_mut(&self.1) else { return };
        entry.failures = 0;
        let Some(lease) = lease else {
            entry.lease = None;
            return;
        };
        entry.untold = entry.untold.filter(|(version, _)| *version > lease.version());
        match &entry.lease {
            // An event that a read or an own write has overtaken; or a store that went back. A look will tell.
            Some(known) if known.version() > lease.version() => entry.doubtful = true,
            _ => entry.keep(&lease),
        }
    }

    /// True if it keeps silent about something that was read long ago.
    pub(super) fn is_deaf(&self) -> bool {
        let all = self.0.lock();
        let untold = all.get(&self.1).and_then(|entry| entry.untold);
        untold.is_some_and(|(_, since)| clock::now().since(since) > UNDER_WAY)
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        let mut all = self.0.lock();
        if let Some(entry) = all.get_mut(&self.1) {
            entry.watches -= 1;
            tidy(&mut all, &self.1);
        }
    }
}
