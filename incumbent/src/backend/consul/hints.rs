//! Hints for the electors: what happened to the lock, and to the hand-over note.

use std::sync::Arc;

use futures_core::Stream;
use futures_util::stream;
use incumbent_core::{ElectionName, Nonce, Note, Result};
use tokio::sync::watch::Receiver;

use super::api::Entry;
use super::campaign::Name;
use super::keys;
use super::session::Shared;
use super::watch::{Listing, Sight};

/// Who has the lock.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Who {
    /// Nobody; as of this index.
    Nobody(u64),
    /// A campaign, with this token.
    Campaign(Nonce, u64),
    /// A session of another client.
    Foreign(String),
}

fn who(entry: Option<&Entry>) -> Who {
    let Some(entry) = entry else { return Who::Nobody(0) };
    let Some(session) = &entry.session else { return Who::Nobody(entry.index) };
    match keys::value(entry) {
        Some(value) => match &value.holder {
            Some(holder) => Who::Campaign(holder.nonce, value.token),
            None => Who::Foreign(session.clone()),
        },
        None => Who::Foreign(session.clone()),
    }
}

/// The hints of one campaign, or of an observer.
struct Hints {
    shared: Arc<Shared>,
    campaign: Option<Name>,
    lock: Receiver<Sight>,
    notes: Option<Receiver<Listing>>,
    note: String,
    seen: Option<Who>,
    /// The index of the hand-over note that was told of.
    asked: Option<u64>,
}

/// Hints for the campaign `campaign`, or for an observer: any change of the leader.
pub(super) fn of(
    shared: Arc<Shared>,
    election: &ElectionName,
    campaign: Option<Name>,
) -> impl Stream<Item = Result<()>> + Send {
    let lock = shared.watches.key(&shared.keys.lock(election));
    let notes = campaign.as_ref().map(|_| shared.watches.listing(&shared.keys.handovers()));
    let note = shared.keys.note(election, Note::Handover);
    let hints = Hints { shared, campaign, lock, notes, note, seen: None, asked: None };
    stream::unfold(hints, |mut hints| async move { Some((hints.next().await?, hints)) })
}

impl Hints {
    async fn next(&mut self) -> Option<Result<()>> {
        if self.seen.is_none() {
            self.lock.mark_changed();
        }
        loop {
            let news = tokio::select! {
                changed = self.lock.changed() => {
                    changed.ok()?;
                    self.is_news()
                }
                changed = next_of(self.notes.as_mut()) => {
                    changed?;
                    self.is_asked()
                }
            };
            if news {
                return Some(Ok(()));
            }
        }
    }

    /// Whether the lock has another holder than before. Writes of the campaign itself are no news to it.
    fn is_news(&mut self) -> bool {
        let Some(entry) = self.lock.borrow_and_update().clone() else { return false };
        let now = who(entry.as_ref());
        let own = match &self.campaign {
            Some(name) => self.is_own(name, entry.as_ref()),
            None => false,
        };
        let before = self.seen.replace(now.clone());
        if own || before.as_ref() == Some(&now) {
            return false;
        }
        // What is there at first may have come after the last look, unless it is one of those who are waited for.
        let first = before.is_none() && matches!(now, Who::Campaign(..) | Who::Foreign(_));
        if first && self.campaign.as_ref().is_some_and(|name| !self.holds(name)) {
            return false;
        }
        if let Some(name) = &self.campaign
            && let Some(campaign) = self.shared.state().campaigns.get_mut(name)
        {
            // The next renewal looks for itself.
            campaign.stale = true;
        }
        true
    }

    fn is_own(&self, name: &Name, entry: Option<&Entry>) -> bool {
        let Some(entry) = entry else { return false };
        let state = self.shared.state();
        let ours = entry.session.as_deref().and_then(|session| state.lease_of(session)).is_some();
        ours && keys::value(entry).is_some_and(|value| value.is_of(name.1))
    }

    fn holds(&self, name: &Name) -> bool {
        self.shared.state().session.place(name).is_some()
    }

    /// Whether someone asks the leader, which this campaign is, to go.
    fn is_asked(&mut self) -> bool {
        let Some(notes) = &mut self.notes else { return false };
        let asked = notes.borrow_and_update().as_ref().and_then(|listing| listing.get(&self.note).copied());
        let news = asked.is_some() && asked != self.asked;
        self.asked = asked;
        news && self.campaign.as_ref().is_some_and(|name| self.holds(name))
    }
}

async fn next_of(notes: Option<&mut Receiver<Listing>>) -> Option<()> {
    match notes {
        Some(notes) => notes.changed().await.ok(),
        None => std::future::pending().await,
    }
}
