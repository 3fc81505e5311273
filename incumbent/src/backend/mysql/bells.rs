//! Bells: how a process that leads wakes those who wait, without anybody asking all the time.
//!
//! A leader's process holds a lock at the server (`GET_LOCK`) on a connection of its own, and its records name that lock. Who waits
//! for such an election waits for the lock, too, and lets it go as soon as he gets it. To ring, the leader lets the lock go and takes
//! it again: the server hands it through the line of all who wait, and back to him. The same happens when he dies.
//!
//! That the lock is free proves nothing: it says only that it is time to look at the records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

/// What is known of bells, and whether our own has to be hung up and rung.
#[derive(Debug)]
pub(super) struct Bells {
    /// The name of our own.
    pub(super) own: String,
    /// The bell that each election's record named last.
    seen: Mutex<BTreeMap<String, String>>,
    /// Something in `seen` has changed.
    pub(super) changed: Notify,
    /// It is time to look at the records.
    pub(super) look: Notify,
    /// How often our own was to be rung; `None` as long as this process has not led.
    rings: watch::Sender<Option<u64>>,
}

impl Bells {
    pub(super) fn new(own: String) -> Bells {
        Bells {
            own,
            seen: Mutex::default(),
            changed: Notify::new(),
            look: Notify::new(),
            rings: watch::Sender::new(None),
        }
    }

    /// The record of `election` names `bell`, or none.
    pub(super) fn saw(&self, election: &str, bell: Option<&str>) {
        let mut seen = self.seen();
        let bell = bell.filter(|bell| is_name(bell) && *bell != self.own);
        if seen.get(election).map(String::as_str) == bell {
            return;
        }
        match bell {
            Some(bell) => drop(seen.insert(election.to_owned(), bell.to_owned())),
            None => drop(seen.remove(election)),
        }
        self.changed.notify_one();
    }

    /// This process is about to lead something.
    pub(super) fn hang(&self) {
        self.rings.send_if_modified(|rings| {
            let first = rings.is_none();
            rings.get_or_insert(0);
            first
        });
    }

    /// Those who wait for an election of ours shall look at it.
    pub(super) fn ring(&self) {
        self.rings.send_modify(|rings| *rings = Some(rings.unwrap_or(0) + 1));
        // Others of this process do not wait for our bell.
        self.look.notify_one();
    }

    /// How often our own was to be rung.
    pub(super) fn rings(&self) -> watch::Receiver<Option<u64>> {
        self.rings.subscribe()
    }

    /// The bells that these elections name, at most `most`, each with its elections. What was known of others is forgotten.
    pub(super) fn of(&self, elections: &[String], most: usize) -> BTreeMap<String, Vec<String>> {
        let mut seen = self.seen();
        let wanted: BTreeSet<&String> = elections.iter().collect();
        seen.retain(|election, _| wanted.contains(election));
        let mut bells: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (election, bell) in seen.iter() {
            if bells.contains_key(bell) || bells.len() < most {
                bells.entry(bell.clone()).or_default().push(election.clone());
            }
        }
        bells
    }

    /// The elections that name `bell`.
    pub(super) fn elections(&self, bell: &str) -> Vec<String> {
        let seen = self.seen();
        seen.iter().filter(|(_, named)| *named == bell).map(|(election, _)| election.clone()).collect()
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a statement may name it: what stands in a record is not ours alone to write.
fn is_name(bell: &str) -> bool {
    bell.len() == 32 && bell.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_are_ours_to_make_are_listened_to() {
        let bells = Bells::new("0".repeat(32));
        let (good, all) = ("a1".repeat(16), ["e".to_owned()]);
        bells.saw("e", Some(&good));
        assert!(bells.of(&all, 4).contains_key(&good));
        for other in ["", "x", "'); DROP TABLE incumbent_record; -- 12345", &"A1".repeat(16), &"0".repeat(32)]
        {
            bells.saw("e", Some(other));
            assert!(bells.of(&all, 4).is_empty(), "{other}");
        }
        bells.saw("e", Some(&good));
        assert!(bells.of(&[], 4).is_empty() && bells.elections(&good).is_empty(), "nobody waits for it");
    }
}
