//! Hints for the electors: what happened to a candidate's own key, to the one before it, and to the hand-over note.

use std::sync::Arc;

use futures_core::Stream;
use futures_util::{StreamExt, stream};
use incumbent_core::{ElectionName, Note, Result};
use tokio::sync::watch::Receiver;

use super::campaign::{Name, Targets};
use super::proto::Event;
use super::proto::event::EventType;
use super::session::Shared;
use super::watch::{Change, Watch, WatchKeys};

/// The hints of one campaign. It watches keys, not the election, so that one who leaves wakes one.
struct Hints {
    shared: Arc<Shared>,
    name: Name,
    targets: Receiver<Targets>,
    /// The watches, each with what it was made for.
    own: Option<(String, Watch)>,
    note: Option<Watch>,
    ahead: Option<(Vec<u8>, Watch)>,
}

/// Hints for the campaign `name`.
pub(super) fn of_campaign(shared: Arc<Shared>, name: Name) -> impl Stream<Item = Result<()>> + Send {
    let targets = shared.targets(&name);
    let hints = Hints { shared, name, targets, own: None, note: None, ahead: None };
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
            tokio::select! {
                biased;
                // An error means that the campaign is over.
                changed = self.targets.changed() => {
                    changed.ok()?;
                    self.follow();
                }
                change = next_of(self.own.as_mut().map(|(_, watch)| watch)) => match change? {
                    Ok(change) if !self.is_own_work(&change) => return Some({
                        self.heard();
                        Ok(())
                    }),
                    Ok(_) => {}
                    Err(failure) => return Some(Err(failure)),
                },
                change = next_of(self.ahead.as_mut().map(|(_, watch)| watch)) => match change? {
                    Ok(change) if has(&change, EventType::Delete) => return Some({
                        self.heard();
                        Ok(())
                    }),
                    Ok(_) => {}
                    Err(failure) => return Some(Err(failure)),
                },
                change = next_of(self.note.as_mut()) => match change? {
                    Ok(change) if has(&change, EventType::Put) => return Some({
                        self.heard();
                        Ok(())
                    }),
                    Ok(_) => {}
                    Err(failure) => return Some(Err(failure)),
                },
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
        if let Some((key, from)) = &targets.own {
            if self.own.as_ref().is_none_or(|(watched, _)| watched != key) {
                self.own = Some((key.clone(), watch(key.clone().into_bytes(), *from)));
            }
            let note = self.shared.keys.note(&self.name.0, Note::Handover);
            self.note.get_or_insert_with(|| watch(note.into_bytes(), *from));
        }
        match &targets.ahead {
            Some((key, from)) if self.ahead.as_ref().is_none_or(|(watched, _)| watched != key) => {
                self.ahead = Some((key.clone(), watch(key.clone(), *from)));
            }
            Some(_) => {}
            None => self.ahead = None,
        }
        let watches = [
            self.own.as_ref().map(|(_, watch)| watch),
            self.ahead.as_ref().map(|(_, watch)| watch),
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
