//! What must outlive a crash.

use serde::{Deserialize, Serialize};

use super::message::Term;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Authority, CandidateId};

/// What must outlive a crash. Whoever loses or copies it may vote twice in one term.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Durable {
    /// The cluster that it belongs to.
    pub cluster: Authority,
    /// The peer that it belongs to.
    pub id: CandidateId,
    /// The latest term that the peer has seen.
    pub term: Term,
    /// For whom it voted in that term; of Bully and Ring, whom it acknowledged as coordinator of that epoch.
    pub voted_for: Option<CandidateId>,
}

impl Durable {
    /// The state of a peer that has never taken part. To be made once in a peer's life.
    pub fn new(cluster: Authority, id: CandidateId) -> Durable {
        Durable { cluster, id, term: Term(0), voted_for: None }
    }

    pub(super) fn check(&self, cluster: &Authority, id: &CandidateId) -> Result<()> {
        if self.cluster != *cluster || self.id != *id {
            let message = format!(
                "the state belongs to peer {} of cluster {}, not to {id} of {cluster}; give each peer a state of its own",
                self.id, self.cluster
            );
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        Ok(())
    }
}
