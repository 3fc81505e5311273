//! Hints for the electors: what happened to a candidate's own key, to the one before it, to the first one, and to the hand-over
//! note.

use std::sync::Arc;

use futures_core::Stream;
use futures_util::{StreamExt, stream};
use incumbent_core::{ElectionName, Note, Result};
use tokio::sync::watch::Receiver;

use super::campaign::{Name, Target, Targets};
use super::proto::Event;
use super::proto::event::EventType;
use super::proto::watch_create_request::FilterType;
use super::session::Shared;
use super::watch::{Change, Watch, WatchKeys};

/// The hints of one campaign. It watches keys, not the election, so that one who waits and leaves wakes one.
struct Hints {
    shared: Arc<Shared>,
    name: Name,
    targets: Receiver<Targets>,
    /// The watches, each with what it was made for.
    own: Option<(String, Watch)>,
    note: Option<Watch>,
    ahead: Option<(Vec<u8>, Watch)>,
    first: Option<(Vec<u8>, Watch)>,
}

/// Hints for the campaign `name`.
pub(super) fn of_campaign(shared: Arc<Shared>, name: Name) -> impl Stream<Item = Result<()>> + Send {
    let targets = shared.targets(&name);
    let hints = Hints { shared, name, targets, own: None, note: None, ahead: None, first: None };
    stream::unfold(hints, |mut hints| async move { Some((hints.next().await?, hints)) })
}

/// Hints for an observer: any change of the queue or the note.
pub(super) fn of_election(
    shared: &Shared,
    election: &ElectionName,
) -> impl Stream<Item = Result<()>> + Send + use<> {
    let (key, range_end) = shared.keys.election(election);
    let queue = shared.client.watch(WatchKeys { key, range_end, ..Default::default() });
    let key = shared.keys.note(election, Note::Handover).into();
    let note = shared.client.watch(WatchKeys { key, ..Default::default() });
    stream::select(queue, note).map(|change| change.map(drop))
}

impl Hints {
    async fn next(&mut self) -> Option<Result<()>> {
        self.targets.mark_changed();
        loop {
            let news = tokio::select! {
                biased;
                // An error means that the campaign is over.
                changed = self.targets.changed() => {
                    changed.ok()?;
                    self.follow();
                    continue;
                }
                change = next_of(self.own.as_mut().map(|(_, watch)| watch)) => {
                    change?.map(|change| !self.is_own_work(&change))
                }
                change = next_of(self.ahead.as_mut().map(|(_, watch)| watch)) => change?.map(|_| true),
                change = next_of(self.first.as_mut().map(|(_, watch)| watch)) => change?.map(|_| true),
                change = next_of(self.note.as_mut()) => change?.map(|change| has(&change, EventType::Put)),
            };
            match news {
                Ok(true) => {
                    self.heard();
                    return Some(Ok(()));
                }
                Ok(false) => {}
                Err(failure) => return Some(Err(failure)),
            }
        }
    }

    /// Watches what is to be watched now.
    fn follow(&mut self) {
        let targets = self.targets.borrow_and_update().clone();
        let client = &self.shared.client;
        let watch = |key: Vec<u8>, from: i64| {
            client.watch(WatchKeys { key, start_revision: from, ..Default::default() })
        };
        let end_of = |key: Vec<u8>, start_revision: i64| {
            let without = vec![FilterType::Noput];
            client.watch(WatchKeys { key, start_revision, without, ..Default::default() })
        };
        if let Some((key, from)) = &targets.own {
            if self.own.as_ref().is_none_or(|(watched, _)| watched != key) {
                self.own = Some((key.clone(), watch(key.clone().into_bytes(), *from)));
            }
            let note = self.shared.keys.note(&self.name.0, Note::Handover);
            self.note.get_or_insert_with(|| watch(note.into_bytes(), *from));
        }
        aim(&mut self.ahead, &targets.ahead, end_of);
        aim(&mut self.first, &targets.first, end_of);
        let watches = [
            self.own.as_ref().map(|(_, watch)| watch),
            self.ahead.as_ref().map(|(_, watch)| watch),
            self.first.as_ref().map(|(_, watch)| watch),
            self.note.as_ref(),
        ];
        let quiet = watches.into_iter().flatten().map(Watch::quiet).collect();
        if let Some(campaign) = self.shared.state().campaigns.get_mut(&self.name) {
            campaign.quiet = quiet;
        }
    }

    /// Something happened: the next call looks for itself.
    fn heard(&self) {
        if let Some(campaign) = self.shared.state().campaigns.get_mut(&self.name) {
            campaign.stale = true;
        }
    }

    /// True if the own key was only written by this process.
    fn is_own_work(&self, change: &Change) -> bool {
        let Change::Events(events) = change else { return false };
        let state = self.shared.state();
        let own = |event: &Event| {
            let Some(kv) = event.kv.as_ref().filter(|_| event.r#type() == EventType::Put) else {
                return false;
            };
            let Some((key, _)) = &self.own else { return false };
            let same =
                state.session.place(key).is_some_and(|place| place.revision == kv.create_revision as u64);
            same && state.session.life(kv.lease).is_some()
        };
        events.iter().all(own)
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        if let Some(campaign) = self.shared.state().campaigns.get_mut(&self.name) {
            campaign.quiet = Vec::new();
        }
    }
}

/// Has `watched` be of `target`.
fn aim(
    watched: &mut Option<(Vec<u8>, Watch)>,
    target: &Option<Target>,
    watch: impl FnOnce(Vec<u8>, i64) -> Watch,
) {
    match target {
        Some((key, _)) if watched.as_ref().is_some_and(|(watched, _)| watched == key) => {}
        Some((key, from)) => *watched = Some((key.clone(), watch(key.clone(), *from))),
        None => *watched = None,
    }
}

/// True if `change` is of this kind, or may hide one.
fn has(change: &Change, kind: EventType) -> bool {
    match change {
        Change::Gap => true,
        Change::Events(events) => events.iter().any(|event| event.r#type() == kind),
    }
}

async fn next_of(watch: Option<&mut Watch>) -> Option<Result<Change>> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}
