//! Fences: the check at the protected resource that refuses an older token, whatever the writer believes.
//!
//! A packet that was sent, or a write that a frozen process is about to make, cannot be recalled; only the resource can refuse
//! it. A leader takes its [`mark`](Leadership::mark), **raises** the fence before it reads anything that it will build on, and
//! shows the mark with every write. From the raise on, no write of an earlier term lands.
//!
//! | the resource is | use |
//! | --- | --- |
//! | a file, or whatever a lock file can guard | [`file::FileFence`] |
//! | keys of an etcd | [`etcd::EtcdFence`], in the transaction that writes |
//! | keys of a Redis | [`redis::RedisFence`], in the script that writes |
//! | rows of PostgreSQL, MySQL, MariaDB or SQLite | [`sql::SqlFence`], in the transaction that writes |
//! | rows of the PostgreSQL that holds the election too | [`sql::begin_proven_text`], and no fence |
//! | an HTTP service | `http::FenceLayer` (feature `http`), before it |
//! | anything else that can keep two values | [`Fence`](crate::Fence), stored with the resource |
//!
//! When an election moves to another authority (another cluster, another state directory), its tokens cannot be compared with the
//! old ones: the fence refuses them until an operator runs `incumbent fence adopt` (for a file) or what
//! `incumbent fence etcd`, `incumbent fence redis --adopt` and `incumbent fence sql --adopt` print (for a store).

mod dialect;
pub mod etcd;
pub mod file;
#[cfg(feature = "http")]
pub mod http;
pub mod redis;
pub mod sql;

use incumbent_core::{Error, ErrorKind, HighWater, Result};

use crate::leadership::Leadership;

impl Leadership {
    /// What this term shows to a [fence](crate::fence): its token, and who issued it. Stays the same during the term.
    ///
    /// # Errors
    /// [`ErrorKind::NotLeader`] if the term is over; [`ErrorKind::Unsupported`] if the backend has no tokens.
    pub fn mark(&self) -> Result<HighWater> {
        self.check()?;
        let token = self.token().ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                "this backend has no fencing tokens, so no fence can compare them",
            )
        })?;
        Ok(HighWater { authority: self.authority().clone(), token })
    }
}
