//! Records that a session owns and that the store deletes with it (ZooKeeper), and what a write to one proves.
//!
//! The store's leader counts a session's time from the last moment at which it heard of it: when the session was created, or when
//! it was attached to a connection, of which the leader is asked wherever that connection stands. A write that a follower hands
//! on does not count, nor does a ping: a server that is cut off answers pings for many seconds after the session has ended.
//! So there is one proof: **a write to the own record that succeeded on a connection, counted from before that connection asked
//! for the session.** The write shows that the leader which had been asked still led, and that the record was there; a later
//! leader gives every session its whole time again.

use crate::session::Proof;
use crate::time::BootInstant;
use std::time::Duration;

/// A session as one connection holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Attachment {
    /// The session, as the store names it.
    pub session: i64,
    /// Boot-clock moment before the connection was opened that asked for the session.
    pub sent_at: BootInstant,
    /// The session's time, as the store granted it with this connection.
    pub ttl: Duration,
}

/// What the store answered to a write of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Written {
    /// The transaction that created the record.
    pub created: i64,
    /// The session that owns it; 0: none does.
    pub owner: i64,
    /// Boot-clock moment after the answer came.
    pub at: BootInstant,
}

impl Attachment {
    /// True if `written` is the record that transaction `created` made, and this session owns it.
    pub fn owns(&self, created: i64, written: &Written) -> bool {
        written.created == created && written.owner == self.session
    }

    /// What a write of the record that transaction `created` made proves, if it went through this connection.
    /// `None` if the record is another one, or if the answer came too late to be of use.
    pub fn proof(&self, created: i64, written: &Written) -> Option<Proof> {
        let proof = Proof { sent_at: self.sent_at, ttl: self.ttl };
        (self.owns(created, written) && written.at < proof.end()).then_some(proof)
    }

    /// True if a write through this connection may still be built a term on.
    pub fn is_young(&self, now: BootInstant) -> bool {
        now < self.sent_at + self.ttl / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_nanos(seconds * 1_000_000_000)
    }

    fn attachment() -> Attachment {
        Attachment { session: 7, sent_at: at(100), ttl: TTL }
    }

    #[test]
    fn a_write_counts_from_the_connect_of_its_connection_however_late_it_is() {
        for came in [100, 105, 109] {
            let proof = attachment().proof(3, &Written { created: 3, owner: 7, at: at(came) });
            assert_eq!(proof, Some(Proof { sent_at: at(100), ttl: TTL }), "{came}");
        }
    }

    #[test]
    fn an_answer_after_the_end_proves_nothing() {
        assert_eq!(attachment().proof(3, &Written { created: 3, owner: 7, at: at(110) }), None);
    }

    #[test]
    fn curator_696_a_record_of_another_session_or_by_another_creation_proves_nothing() {
        for (created, owner) in [(4, 7), (3, 8), (3, 0)] {
            let written = Written { created, owner, at: at(101) };
            assert_eq!(attachment().proof(3, &written), None, "{created} {owner}");
            assert!(!attachment().owns(3, &written));
        }
    }

    #[test]
    fn terms_are_built_on_young_connections_only() {
        assert!(attachment().is_young(at(104)));
        assert!(!attachment().is_young(at(105)));
    }
}
