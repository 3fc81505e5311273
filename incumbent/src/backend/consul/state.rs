//! What one process knows of its sessions, its locks and its campaigns.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use incumbent_core::session::{LeaseId, Place, Session};
use incumbent_core::{Authority, BootInstant};

use super::api::Entry;
use super::campaign::{Campaign, Name};
use super::keys;

pub(super) struct State {
    pub(super) session: Session<Name>,
    pub(super) campaigns: BTreeMap<Name, Campaign>,
    /// What Consul calls the sessions.
    ids: BTreeMap<LeaseId, String>,
    created: LeaseId,
    pub(super) authority: Option<Authority>,
    pub(super) wanted: bool,
    pub(super) running: bool,
    /// After a failed round that nobody asked for: not before this.
    pause_until: BootInstant,
    /// Sessions to be destroyed, and when to try next.
    revoking: BTreeMap<LeaseId, BootInstant>,
    idle_since: Option<BootInstant>,
}

/// A lock that is held, as far as known.
pub(super) struct Held {
    pub(super) lease: LeaseId,
    pub(super) session: String,
    pub(super) token: u64,
    /// `None` if it has to be looked up.
    pub(super) index: Option<u64>,
    pub(super) value: Vec<u8>,
}

impl State {
    pub(super) fn new(ttl: Duration) -> State {
        State {
            session: Session::new(ttl),
            campaigns: BTreeMap::new(),
            ids: BTreeMap::new(),
            created: 0,
            authority: None,
            wanted: false,
            running: false,
            pause_until: BootInstant::ZERO,
            revoking: BTreeMap::new(),
            idle_since: None,
        }
    }

    // ---- sessions and their names ----

    pub(super) fn made(&mut self, id: String, sent_at: BootInstant, ttl: Duration) -> LeaseId {
        self.created += 1;
        self.ids.insert(self.created, id);
        // No term: what is never kept alive needs none.
        self.session.granted(self.created, sent_at, ttl, 0);
        self.created
    }

    pub(super) fn id(&self, lease: LeaseId) -> Option<String> {
        self.ids.get(&lease).cloned()
    }

    /// The lease that Consul calls `id`, if it is one of this process's.
    pub(super) fn lease_of(&self, id: &str) -> Option<LeaseId> {
        self.ids.iter().find(|(_, own)| *own == id).map(|(lease, _)| *lease)
    }

    pub(super) fn usable(&self, now: BootInstant) -> Option<(LeaseId, String)> {
        let lease = self.session.usable(now)?;
        Some((lease, self.id(lease)?))
    }

    // ---- locks ----

    /// The locks that are to be kept.
    pub(super) fn kept(&self) -> Vec<Name> {
        let wanted =
            |name: &Name| self.campaigns.get(name).is_some_and(|campaign| campaign.leaving.is_none());
        self.session.keys().into_iter().map(|(name, _)| name).filter(wanted).collect()
    }

    pub(super) fn held(&self, name: &Name) -> Option<Held> {
        let place = self.session.place(name)?;
        let campaign = self.campaigns.get(name)?;
        let index = campaign.index.filter(|_| !self.session.is_doubtful(name));
        // A session that has ended before the answer to the lock came: what became of the lock has to be looked up.
        let session = self.id(place.lease);
        let index = index.filter(|_| session.is_some());
        let (session, value) = (session.unwrap_or_default(), campaign.value.clone());
        Some(Held { lease: place.lease, session, token: place.revision, index, value })
    }

    /// The lock was taken with `lease`, or found to be taken.
    pub(super) fn attach(&mut self, name: &Name, token: u64, lease: LeaseId, index: u64, value: Vec<u8>) {
        self.session.attach(name.clone(), Place { revision: token, lease });
        self.session.lead(name);
        if let Some(campaign) = self.campaigns.get_mut(name) {
            campaign.index = Some(index);
            campaign.value = value;
        }
    }

    pub(super) fn moved(&mut self, name: &Name, lease: LeaseId, index: Option<u64>) {
        self.session.moved(name, lease);
        if let Some(campaign) = self.campaigns.get_mut(name) {
            campaign.index = index;
        }
    }

    pub(super) fn doubt(&mut self, name: &Name) {
        self.session.doubt(name);
        self.forget_index(name);
    }

    pub(super) fn forget_index(&mut self, name: &Name) {
        if let Some(campaign) = self.campaigns.get_mut(name) {
            campaign.index = None;
        }
    }

    /// This stands in the store in place of a lock that was held.
    pub(super) fn found(&mut self, name: &Name, entry: Option<&Entry>) {
        let own = entry.and_then(|entry| {
            let lease = self.lease_of(entry.session.as_deref()?)?;
            let value = keys::value(entry).filter(|value| value.is_of(name.1))?;
            Some((Place { revision: value.token, lease }, entry.index))
        });
        self.session.found(name, own.map(|(place, _)| place));
        if let Some(campaign) = self.campaigns.get_mut(name) {
            campaign.index = own.map(|(_, index)| index);
        }
    }

    /// True if `entry` is locked for this campaign, also if somebody has written over it since.
    pub(super) fn is_own(&self, name: &Name, entry: &Entry) -> bool {
        let ours = entry.session.as_deref().and_then(|session| self.lease_of(session)).is_some();
        let held = self.campaigns.get(name).is_some_and(|campaign| !campaign.value.is_empty());
        ours && match keys::value(entry) {
            Some(value) => value.is_of(name.1),
            None => held,
        }
    }

    // ---- rounds ----

    /// When a round is due that nobody asks for.
    pub(super) fn due(&self, now: BootInstant, ttl: Duration) -> Option<BootInstant> {
        if self.wanted {
            return Some(now);
        }
        if self.kept().is_empty() {
            return None;
        }
        // Who leads asks for rounds himself, each third of the ttl.
        let due = self.session.kept_at().map_or(now, |kept_at| kept_at + ttl * 4 / 9);
        Some(due.max(self.pause_until))
    }

    pub(super) fn is_running(&self) -> bool {
        self.running
    }

    pub(super) fn begin(&mut self, now: BootInstant, ttl: Duration) -> bool {
        self.running = self.due(now, ttl).is_some_and(|due| due <= now);
        self.wanted &= !self.running;
        self.running
    }

    pub(super) fn finish(&mut self, pause_until: BootInstant, failed: bool) {
        self.running = false;
        if failed {
            self.pause_until = pause_until;
        }
    }

    // ---- clearing away ----

    /// The campaigns to be removed: those that have ended, and those that nobody has asked about for a ttl.
    pub(super) fn leaving(&mut self, now: BootInstant, ttl: Duration) -> Vec<Name> {
        for campaign in self.campaigns.values_mut() {
            if now >= campaign.asked_at + ttl {
                campaign.leave(now);
            }
        }
        let leaving = self.campaigns.iter().filter(|(_, campaign)| campaign.leaving.is_some());
        leaving.map(|(name, _)| name.clone()).collect()
    }

    /// After one ttl of failed attempts, the sessions go by which the campaign's lock may be held.
    pub(super) fn give_up_on(&mut self, name: &Name, now: BootInstant, ttl: Duration) {
        let Some(campaign) = self.campaigns.get(name) else { return };
        if campaign.leaving.is_none_or(|since| now < since + ttl) {
            return;
        }
        let placed = self.session.place(name).map(|place| place.lease);
        let leases: BTreeSet<LeaseId> = campaign.loose.iter().copied().chain(placed).collect();
        leases.into_iter().for_each(|lease| self.session.condemn(lease));
        self.campaigns.remove(name);
        self.session.forget(name);
    }

    pub(super) fn revocable(&mut self, now: BootInstant, ttl: Duration) -> Vec<(LeaseId, String)> {
        // A session without locks is kept for the next campaign for a while, then let go.
        if self.campaigns.is_empty() {
            let since = *self.idle_since.get_or_insert(now);
            if now >= since + ttl / 3 {
                self.session.let_go();
            }
        } else {
            self.idle_since = None;
        }
        for lease in self.session.take_revocable() {
            self.revoking.entry(lease).or_insert(now);
        }
        // A session has run out after twice its time, and after twice more if the servers have a new leader.
        let over = |session: &Session<Name>, lease: LeaseId| {
            session.life(lease).is_none_or(|life| now >= life.sent_at + life.ttl * 5)
        };
        let over: Vec<LeaseId> =
            self.revoking.keys().copied().filter(|lease| over(&self.session, *lease)).collect();
        over.into_iter().for_each(|lease| self.ended(lease));
        let ids = &self.ids;
        let due = self.revoking.iter_mut().filter(|(_, at)| now >= **at);
        due.filter_map(|(lease, at)| {
            *at = now + ttl / 10;
            Some((*lease, ids.get(lease)?.clone()))
        })
        .collect()
    }

    pub(super) fn ended(&mut self, lease: LeaseId) {
        self.session.ended(lease);
        self.revoking.remove(&lease);
        self.ids.remove(&lease);
    }
}
