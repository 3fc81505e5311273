//! Watches: ZooKeeper tells of a node once and then forgets who asked. They belong to the session's connection, so that each new
//! one is told of them again; what happened in between is told at once.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::jute::{Writer, code};

/// What a watch is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    /// A change or the end of a node that is there.
    Data,
    /// The creation of a node that is not there.
    Absent,
    /// A change among a node's children, or the node's end.
    Children,
}

/// A watch to be set with a request.
pub(super) struct Arm {
    pub(super) kind: Kind,
    pub(super) path: String,
    pub(super) fire: oneshot::Sender<()>,
}

/// What is watched, and who waits for it.
#[derive(Default)]
pub(super) struct Watches(Mutex<Waiting>);

type Waiting = BTreeMap<(Kind, String), Vec<oneshot::Sender<()>>>;

/// Paths that one packet names at most, far below a server's limit of 1 MiB.
const PACKET: usize = 1000;

impl Watches {
    /// A request with a watch was answered with `answered`: the watch is set, or not.
    pub(super) fn arm(&self, watch: Arm, answered: i32) {
        let kind = match (watch.kind, answered) {
            (kind, code::OK) => kind,
            (Kind::Data, code::NO_NODE) => Kind::Absent,
            _ => return,
        };
        let mut all = self.lock();
        let waiting = all.entry((kind, watch.path)).or_default();
        waiting.retain(|fire| !fire.is_closed());
        waiting.push(watch.fire);
    }

    /// The server tells of an event of this kind.
    pub(super) fn fire(&self, event: i32, path: &str) {
        let kinds: &[Kind] = match event {
            1 => &[Kind::Absent, Kind::Data],
            2 => &[Kind::Absent, Kind::Data, Kind::Children],
            3 => &[Kind::Absent, Kind::Data],
            4 => &[Kind::Children],
            _ => &[],
        };
        let mut all = self.lock();
        for kind in kinds {
            for fire in all.remove(&(*kind, path.to_owned())).unwrap_or_default() {
                let _ = fire.send(());
            }
        }
    }

    /// True if nobody waits for anything.
    pub(super) fn is_empty(&self) -> bool {
        let mut all = self.lock();
        all.retain(|_, waiting| {
            waiting.retain(|fire| !fire.is_closed());
            !waiting.is_empty()
        });
        all.is_empty()
    }

    /// What a new connection has to be told: one record for each packet. `only` chooses by path.
    pub(super) fn records(&self, seen: i64, only: impl Fn(&str) -> bool) -> Vec<Writer> {
        if self.is_empty() {
            return Vec::new();
        }
        let all = self.lock();
        let keys: Vec<&(Kind, String)> = all.keys().filter(|(_, path)| only(path)).collect();
        let packet = |keys: &[&(Kind, String)]| {
            let of = |kind: Kind| -> Vec<&str> {
                keys.iter().filter(|(other, _)| *other == kind).map(|(_, path)| path.as_str()).collect()
            };
            [Kind::Data, Kind::Absent, Kind::Children]
                .into_iter()
                .fold(Writer::default().long(seen), |out, kind| out.texts(of(kind).into_iter()))
        };
        keys.chunks(PACKET).map(packet).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn armed(watches: &Watches, kind: Kind, answered: i32) -> oneshot::Receiver<()> {
        let (fire, fired) = oneshot::channel();
        watches.arm(Arm { kind, path: "/a".to_owned(), fire }, answered);
        fired
    }

    #[test]
    fn each_kind_is_fired_by_its_events() {
        for (kind, answered, events) in [
            (Kind::Data, code::OK, [false, true, true, false]),
            (Kind::Data, code::NO_NODE, [true, true, true, false]),
            (Kind::Children, code::OK, [false, true, false, true]),
        ] {
            for (event, fires) in (1..).zip(events) {
                let watches = Watches::default();
                let mut fired = armed(&watches, kind, answered);
                watches.fire(event, "/b");
                assert!(fired.try_recv().is_err());
                watches.fire(event, "/a");
                // A node that is there is never told as created, so that it does not matter.
                assert!(fired.try_recv().is_ok() == fires || event == 1, "{kind:?} {event}");
            }
        }
        let watches = Watches::default();
        drop(armed(&watches, Kind::Children, code::NO_NODE));
        assert!(watches.is_empty());
    }

    #[test]
    fn who_waits_no_more_is_forgotten() {
        let watches = Watches::default();
        let fired = armed(&watches, Kind::Data, code::OK);
        assert!(!watches.is_empty());
        assert_eq!(watches.records(7, |_| true).len(), 1);
        assert_eq!(watches.records(7, |path| path != "/a").len(), 0);
        drop(fired);
        assert!(watches.is_empty());
    }
}
