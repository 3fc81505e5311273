//! A lease session: many keys that live by one lease at a time, and what each answer of the store proves about them.
//!
//! For stores (etcd) where a leader that has been replaced may still answer, and may still end the leases it knew.
//! Two proofs count there, and nothing else:
//!
//! - **A fresh lease.** Whoever judges it, it lives at least its ttl from the *send* of its grant. A write that compared
//!   the key's revision *and* its lease shows that the key lives by that lease.
//! - **A keep-alive and a write after its answer, all in one term**: the term `T0` of an answer received before the lease
//!   was granted, `T1` of the keep-alive's answer, `T2` of the write's, `T0 == T1 == T2 != 0`, and both answers within the
//!   life that the lease was known to have before. An earlier term's leader never knew the lease, so it cannot end it;
//!   a later one has promoted it to a full ttl.
//!
//! Everything else (an error, a timeout, another term, a late answer) proves nothing and is answered by a fresh lease, to
//! which each key is moved by a compare-and-swap of its lease. A move that was not answered leaves the key in doubt: it may
//! change its lease at any later moment, so only another move, or the sight of its new lease, counts again.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::BootInstant;

/// A lease as the store names it.
pub type LeaseId = i64;

/// From when on a key is known to live, and how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Proof {
    /// Boot-clock moment before the bytes of the grant or keep-alive left.
    pub sent_at: BootInstant,
    /// How long it lives from then.
    pub ttl: Duration,
}

impl Proof {
    /// Until when the lease certainly lives, by any clock that is at most 1 % slow or fast.
    pub fn end(&self) -> BootInstant {
        self.sent_at + (self.ttl - self.ttl / 100)
    }
}

/// An answer and the times around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Answered {
    /// Boot-clock moment before the bytes of the request left.
    pub sent_at: BootInstant,
    /// Boot-clock moment after the answer came.
    pub at: BootInstant,
    /// The term that the answering member had applied.
    pub term: u64,
}

/// What to do to prove the keys anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Round {
    /// Keep this lease alive, then guard each led key by a write.
    Keep(LeaseId),
    /// Have a new lease granted and move every key to it.
    Fresh,
}

/// The leases and keys of one process. `K` names a key.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Session<K> {
    ttl: Duration,
    leases: BTreeMap<LeaseId, Lease>,
    current: Option<LeaseId>,
    keys: BTreeMap<K, Key>,
}

#[derive(Clone, PartialEq, Eq, Debug, Hash)]
struct Lease {
    granted: Proof,
    /// `T0`: what an answer received before the grant showed.
    term: u64,
    /// The latest keep-alives that count, the newest last: a write may have been sent before the newest was answered.
    kept: Vec<Kept>,
    /// It is to be revoked, so that nothing can be built on it any more.
    condemned: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
struct Kept {
    proof: Proof,
    answered_at: BootInstant,
    /// The end of the life that the lease was known to have before.
    before: BootInstant,
}

/// Keep-alives that are remembered per lease.
const KEPT: usize = 2;

impl Lease {
    fn newest(&self) -> Proof {
        self.kept.last().map_or(self.granted, |kept| kept.proof)
    }

    fn proof(&self, write: Answered) -> Proof {
        let proven = |kept: &&Kept| {
            write.term == self.term && kept.answered_at <= write.sent_at && write.at < kept.before
        };
        self.kept.iter().rev().find(proven).map_or(self.granted, |kept| kept.proof)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Hash)]
struct Key {
    revision: u64,
    lease: LeaseId,
    led: bool,
    doubtful: bool,
    gone: bool,
    proof: Option<Proof>,
}

/// A key as it was last seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Place {
    /// Its create revision.
    pub revision: u64,
    /// The lease that it lives by.
    pub lease: LeaseId,
}

impl<K: Ord + Clone> Session<K> {
    /// A session without a lease. `ttl` is what it asks the store for.
    pub fn new(ttl: Duration) -> Session<K> {
        Session { ttl, leases: BTreeMap::new(), current: None, keys: BTreeMap::new() }
    }

    // ---- leases ----

    /// A lease was granted. `term` is the latest term seen *before* its request was sent (0: none).
    pub fn granted(&mut self, id: LeaseId, sent_at: BootInstant, ttl: Duration, term: u64) {
        let granted = Proof { sent_at, ttl: ttl.min(self.ttl) };
        self.leases.insert(id, Lease { granted, term, kept: Vec::new(), condemned: false });
        self.current = Some(id);
    }

    /// A keep-alive was answered; false if it does not count, after which only a fresh lease helps.
    pub fn kept(&mut self, id: LeaseId, ttl: Duration, answer: Answered) -> bool {
        let Some(lease) = self.leases.get_mut(&id).filter(|_| self.current == Some(id)) else { return false };
        let before = lease.newest().end();
        if answer.term != lease.term || answer.term == 0 || ttl.is_zero() || answer.at >= before {
            self.not_kept(id);
            return false;
        }
        let proof = Proof { sent_at: answer.sent_at, ttl: ttl.min(lease.granted.ttl) };
        lease.kept.push(Kept { proof, answered_at: answer.at, before });
        if lease.kept.len() > KEPT {
            lease.kept.remove(0);
        }
        true
    }

    /// A keep-alive failed, or what followed it: only a fresh lease helps.
    pub fn not_kept(&mut self, id: LeaseId) {
        if self.current == Some(id) {
            self.current = None;
        }
    }

    /// The lease for new keys, if it is young enough to be of use.
    pub fn usable(&self, now: BootInstant) -> Option<LeaseId> {
        let id = self.current?;
        let young = self.leases.get(&id).is_some_and(|lease| now < lease.newest().sent_at + self.ttl / 2);
        young.then_some(id)
    }

    /// When the lease in use was last known to live; `None` without one.
    pub fn kept_at(&self) -> Option<BootInstant> {
        Some(self.leases.get(&self.current?)?.newest().sent_at)
    }

    /// Has a lease revoked as soon as no key lives by it: something that was sent with it may still come into being.
    pub fn condemn(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.condemned = true;
        }
        self.not_kept(id);
    }

    /// The lease in use is needed no longer, unless a key lives by it.
    pub fn let_go(&mut self) {
        self.current = None;
    }

    /// The leases to revoke now: replaced or condemned, and no key lives or may live by them. They are condemned by
    /// this, so that an answer still under way cannot prove anything by them.
    pub fn take_revocable(&mut self) -> Vec<LeaseId> {
        let live = || self.keys.values().filter(|key| !key.gone);
        if live().any(|key| key.doubtful) {
            return Vec::new();
        }
        let unused = |id: &LeaseId| self.current != Some(*id) && !live().any(|key| key.lease == *id);
        let revocable: Vec<LeaseId> = self.leases.keys().copied().filter(unused).collect();
        for id in &revocable {
            self.condemn(*id);
        }
        revocable
    }

    /// The store does not have this lease any more, or it has certainly run out.
    pub fn ended(&mut self, id: LeaseId) {
        self.not_kept(id);
        self.leases.remove(&id);
    }

    /// From when on the latest life of a lease counts, and how long it is.
    pub fn life(&self, id: LeaseId) -> Option<Proof> {
        self.leases.get(&id).map(Lease::newest)
    }

    // ---- keys ----

    /// A key was created, or found and recognised as created by this process.
    pub fn attach(&mut self, key: K, place: Place) {
        let Place { revision, lease } = place;
        self.keys.insert(key, Key { revision, lease, led: false, doubtful: false, gone: false, proof: None });
    }

    /// The key is no concern of this process any more.
    pub fn forget(&mut self, key: &K) {
        self.keys.remove(key);
    }

    /// The key was seen first in its queue: from now on it is proven with each round.
    pub fn lead(&mut self, key: &K) {
        if let Some(key) = self.keys.get_mut(key) {
            key.led = true;
        }
    }

    /// A write that compared the key's revision and `lease` has succeeded. Returns the best proof so far, if it is not
    /// over.
    pub fn proven(&mut self, key: &K, lease: LeaseId, write: Answered) -> Option<Proof> {
        let key = self.keys.get_mut(key)?;
        if !key.gone
            && !key.doubtful
            && key.lease == lease
            && let Some(lease) = self.leases.get(&lease).filter(|lease| !lease.condemned)
        {
            key.improve(lease.proof(write));
        }
        key.proof.filter(|proof| write.at < proof.end())
    }

    /// The key was moved to `lease` by a compare-and-swap of its lease.
    pub fn moved(&mut self, key: &K, lease: LeaseId) {
        let Some(key) = self.keys.get_mut(key) else { return };
        key.lease = lease;
        key.doubtful = false;
        if let Some(lease) = self.leases.get(&lease).filter(|lease| !lease.condemned) {
            key.improve(lease.granted);
        }
    }

    /// A write that compared the key's place has failed, and this was there instead (`None`: nothing).
    pub fn found(&mut self, key: &K, place: Option<Place>) {
        let Some(key) = self.keys.get_mut(key) else { return };
        match place {
            Some(place) if place.revision == key.revision && self.leases.contains_key(&place.lease) => {
                if place.lease != key.lease {
                    // Whatever else is under way compares the old lease and must fail.
                    key.lease = place.lease;
                    key.doubtful = false;
                }
            }
            _ => key.gone = true,
        }
    }

    /// A write that may change the key, or its lease, was not answered.
    pub fn doubt(&mut self, key: &K) {
        if let Some(key) = self.keys.get_mut(key) {
            key.doubtful = true;
        }
    }

    /// Where the key is, as far as known; `None` if it is gone or was never there.
    pub fn place(&self, key: &K) -> Option<Place> {
        let key = self.keys.get(key).filter(|key| !key.gone)?;
        Some(Place { revision: key.revision, lease: key.lease })
    }

    /// The latest proof of the key.
    pub fn proof(&self, key: &K) -> Option<Proof> {
        self.keys.get(key)?.proof
    }

    /// True if the store showed that the key is gone.
    pub fn is_gone(&self, key: &K) -> bool {
        self.keys.get(key).is_some_and(|key| key.gone)
    }

    /// True if a write that was not answered may still change the key.
    pub fn is_doubtful(&self, key: &K) -> bool {
        self.keys.get(key).is_some_and(|key| key.doubtful)
    }

    /// True if the key was seen first in its queue.
    pub fn is_led(&self, key: &K) -> bool {
        self.keys.get(key).is_some_and(|key| key.led)
    }

    /// The keys that are there, those that lead first.
    pub fn keys(&self) -> Vec<(K, Place)> {
        let place = |key: &Key| Place { revision: key.revision, lease: key.lease };
        let (led, waiting): (Vec<_>, Vec<_>) =
            self.keys.iter().filter(|(_, key)| !key.gone).partition(|(_, key)| key.led);
        led.into_iter().chain(waiting).map(|(name, key)| (name.clone(), place(key))).collect()
    }

    /// The keys that lead.
    pub fn led(&self) -> Vec<(K, Place)> {
        self.keys().into_iter().filter(|(key, _)| self.is_led(key)).collect()
    }

    /// How to prove the keys anew.
    pub fn round(&self, now: BootInstant) -> Round {
        let settled = |id: LeaseId| {
            self.leases.get(&id).is_some_and(|lease| now < lease.newest().end())
                && self.keys.values().all(|key| key.gone || (key.lease == id && !key.doubtful))
        };
        match self.current {
            Some(id) if settled(id) => Round::Keep(id),
            _ => Round::Fresh,
        }
    }
}

impl Key {
    fn improve(&mut self, proof: Proof) {
        if self.proof.is_none_or(|old| old.sent_at < proof.sent_at) {
            self.proof = Some(proof);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_nanos(seconds * 1_000_000_000)
    }

    fn answered(sent: u64, came: u64, term: u64) -> Answered {
        Answered { sent_at: at(sent), at: at(came), term }
    }

    /// Lease 1, granted at 0 in term 5, with the key `k` created at revision 7.
    fn session() -> Session<&'static str> {
        let mut session = Session::new(TTL);
        session.granted(1, at(0), TTL, 5);
        session.attach("k", Place { revision: 7, lease: 1 });
        session.lead(&"k");
        session
    }

    fn sent_at(proof: Option<Proof>) -> Option<BootInstant> {
        proof.map(|proof| proof.sent_at)
    }

    #[test]
    fn a_fresh_lease_proves_from_its_grant_in_any_term() {
        for term in [0, 4, 5, 6] {
            assert_eq!(sent_at(session().proven(&"k", 1, answered(1, 2, term))), Some(at(0)));
        }
    }

    #[test]
    fn a_keep_alive_counts_only_with_a_write_after_it_in_the_same_term() {
        for (keep, write, expected) in [
            (5, 5, at(3)),
            (5, 6, at(0)), // another leader has come in between
            (5, 4, at(0)),
            (5, 0, at(0)),
        ] {
            let mut session = session();
            assert!(session.kept(1, TTL, answered(3, 4, keep)));
            assert_eq!(
                sent_at(session.proven(&"k", 1, answered(4, 5, write))),
                Some(expected),
                "{keep} {write}"
            );
        }
    }

    #[test]
    fn a_keep_alive_of_another_term_ends_the_use_of_the_lease() {
        for term in [0, 4, 6] {
            let mut session = session();
            assert_eq!(session.round(at(2)), Round::Keep(1));
            assert!(!session.kept(1, TTL, answered(3, 4, term)));
            assert_eq!((session.round(at(4)), session.usable(at(4))), (Round::Fresh, None));
        }
        let mut unknown = Session::<&str>::new(TTL);
        unknown.granted(1, at(0), TTL, 0);
        assert!(!unknown.kept(1, TTL, answered(1, 2, 0)), "no term is known");
    }

    #[test]
    fn a_write_sent_before_the_keep_alive_was_answered_proves_nothing_of_it() {
        let mut session = session();
        assert!(session.kept(1, TTL, answered(2, 3, 5)));
        assert!(session.kept(1, TTL, answered(5, 7, 5)));
        assert_eq!(sent_at(session.proven(&"k", 1, answered(6, 8, 5))), Some(at(2)), "only the one before");
        assert_eq!(sent_at(session.proven(&"k", 1, answered(7, 8, 5))), Some(at(5)));
    }

    #[test]
    fn answers_after_the_life_known_before_do_not_count() {
        let mut session = session();
        assert!(!session.clone().kept(1, TTL, answered(9, 10, 5)), "the lease may have run out meanwhile");
        assert!(session.kept(1, TTL, answered(8, 9, 5)));
        assert_eq!(session.proven(&"k", 1, answered(9, 10, 5)), None, "the guard came too late");
    }

    #[test]
    fn the_shorter_of_the_asked_and_the_granted_time_counts() {
        let mut session = Session::<&str>::new(TTL);
        session.granted(1, at(0), TTL * 3, 5);
        session.attach("k", Place { revision: 7, lease: 1 });
        assert_eq!(session.proven(&"k", 1, answered(1, 2, 5)), Some(Proof { sent_at: at(0), ttl: TTL }));
        assert!(session.kept(1, TTL / 2, answered(2, 3, 5)));
        assert_eq!(session.proven(&"k", 1, answered(3, 4, 5)), Some(Proof { sent_at: at(2), ttl: TTL / 2 }));
    }

    #[test]
    fn a_move_proves_from_the_grant_of_the_new_lease_and_frees_the_old_one() {
        let mut session = session();
        session.not_kept(1);
        session.granted(2, at(4), TTL, 6);
        assert_eq!(session.round(at(4)), Round::Fresh, "the key still is on the old lease");
        assert!(session.take_revocable().is_empty());
        session.moved(&"k", 2);
        assert_eq!(sent_at(session.proof(&"k")), Some(at(4)));
        assert_eq!(session.take_revocable(), [1]);
        assert_eq!(session.round(at(5)), Round::Keep(2));
        session.ended(1);
        assert!(session.take_revocable().is_empty());
    }

    #[test]
    fn a_key_in_doubt_is_proven_by_nothing_but_a_move_or_the_sight_of_its_new_lease() {
        let mut session = session();
        session.not_kept(1);
        session.granted(2, at(4), TTL, 5);
        session.doubt(&"k"); // the move to 2 was not answered
        assert_eq!(
            session.proven(&"k", 1, answered(5, 6, 5)),
            None,
            "a late move may still change the lease"
        );
        session.found(&"k", Some(Place { revision: 7, lease: 1 }));
        assert!(session.is_doubtful(&"k"));
        assert_eq!(session.round(at(5)), Round::Fresh);
        assert!(session.take_revocable().is_empty(), "it may live by any of them");
        let mut seen = session.clone();
        seen.found(&"k", Some(Place { revision: 7, lease: 2 }));
        assert_eq!(sent_at(seen.proven(&"k", 2, answered(6, 7, 5))), Some(at(4)));
        session.granted(3, at(5), TTL, 5);
        session.moved(&"k", 3);
        assert_eq!(sent_at(session.proof(&"k")), Some(at(5)));
        assert_eq!(session.take_revocable(), [1, 2]);
    }

    #[test]
    fn a_key_that_is_not_as_it_was_written_is_gone() {
        for place in [None, Some(Place { revision: 8, lease: 1 }), Some(Place { revision: 7, lease: 99 })] {
            let mut session = session();
            session.found(&"k", place);
            assert!(session.is_gone(&"k") && session.place(&"k").is_none() && session.keys().is_empty());
            assert_eq!(session.proven(&"k", 1, answered(1, 2, 5)), None);
        }
    }

    #[test]
    fn nothing_is_built_on_a_condemned_lease() {
        let mut session = session();
        session.condemn(1);
        assert_eq!(session.usable(at(1)), None);
        assert_eq!(session.proven(&"k", 1, answered(1, 2, 5)), None, "it may be revoked at any moment");
        assert!(session.take_revocable().is_empty(), "a key lives by it");
        session.granted(2, at(2), TTL, 5);
        session.moved(&"k", 2);
        assert_eq!(session.take_revocable(), [1]);
    }

    #[test]
    fn a_create_that_is_answered_after_its_lease_was_given_up_proves_nothing() {
        let mut session = Session::new(TTL);
        session.granted(1, at(0), TTL, 5);
        session.not_kept(1);
        assert_eq!(session.take_revocable(), [1]);
        session.attach("k", Place { revision: 7, lease: 1 });
        assert_eq!(session.proven(&"k", 1, answered(1, 2, 5)), None);
    }

    #[test]
    fn a_proof_that_is_over_is_none() {
        assert_eq!(session().proven(&"k", 1, answered(9, 10, 5)), None);
    }

    #[test]
    fn an_old_lease_is_kept_alive_but_not_used_for_new_keys() {
        let session = session();
        assert_eq!((session.usable(at(4)), session.usable(at(5))), (Some(1), None));
        assert_eq!((session.round(at(9)), session.round(at(10))), (Round::Keep(1), Round::Fresh));
    }

    #[test]
    fn led_keys_come_first() {
        let mut session = session();
        session.attach("a", Place { revision: 9, lease: 1 });
        let names: Vec<&str> = session.keys().into_iter().map(|(key, _)| key).collect();
        assert_eq!(names, ["k", "a"]);
        assert_eq!(session.led(), [("k", Place { revision: 7, lease: 1 })]);
    }
}
