//! Leader election with fencing tokens: exactly one replica does the job.
//!
//! ```
//! # async fn charge_subscriptions(_: &incumbent::Leadership) {}
//! # async fn demo() -> incumbent::Result<()> {
//! let election = incumbent::connect("memory:").await?.election("billing");
//! election.candidate("pod-7").advertise("10.0.0.7:8080").run(async |leadership| {
//!     charge_subscriptions(&leadership).await // dropped when the term ends; check() before each critical step
//! }).await?;
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(demo()).unwrap();
//! ```
//!
//! The URL names the authority. `file:` (one machine) and `memory:` (one process) are always there; each other store is a Cargo
//! feature: `consul`, `etcd`, `kubernetes`, `mysql`, `nats`, `peers` (no store: the peers elect among themselves), `postgres`,
//! `redis`, `zookeeper`. What each promises is in
//! [`backend::REGISTRY`] and, as a table, in the README.
//!
//! | for | see |
//! | --- | --- |
//! | work that runs while this process leads | [`Candidate::run`] |
//! | the same without `async` | [`blocking`] |
//! | whether the term is still good, and its token | [`Leadership`] |
//! | a resource that refuses writes of earlier leaders | [`fence`] |
//! | a value that one leader leaves for the next | [`Checkpoint`] |
//! | who leads, for those who do not want to | [`Election::observer`] |

pub mod backend;
pub mod blocking;
mod campaign;
mod candidate;
mod checkpoint;
pub mod clock;
mod connection;
mod driver;
pub mod fence;
mod handover;
mod leadership;
mod observer;
#[cfg(feature = "peers")]
pub mod peers;
mod thread;
mod url;

pub use backend::file::{default_state_dir, state_dir};
pub use campaign::{Campaign, CampaignEvent};
pub use candidate::Candidate;
pub use checkpoint::{CHECKPOINT_MAX, Checkpoint};
pub use connection::{Connection, Election, connect, connect_with};
pub use leadership::{Leadership, Lost, Stopping};
pub use observer::Observer;
pub use url::redact;

pub use incumbent_core::ids::{ADDRESS_RULE, check_address};
pub use incumbent_core::{
    Admission, Authority, BootInstant, CandidateId, Contender, ElectionName, Error, ErrorKind, Fence,
    FencingToken, Guarantees, HighWater, Leader, LossReason, Observation, Result, Settings, StopReason,
    Timing,
};
