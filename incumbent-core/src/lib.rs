//! The sans-I/O core of incumbent: the elector, its deadlines, the backend contract and its rules.
//!
//! Nothing here does I/O, reads a clock, starts a thread or draws a random number: time and randomness are passed in.
#![forbid(unsafe_code)]

pub mod backend;
pub mod checkpoint;
pub mod elector;
pub mod ephemeral;
pub mod error;
pub mod fence;
mod format;
pub mod guarantees;
pub mod handover;
pub mod ids;
pub mod lease_file;
pub mod peers;
pub mod record;
mod rng;
pub mod session;
pub mod time;
pub mod timing;

pub use backend::{
    Acquired, Backend, BoxFuture, BoxStream, Claim, Contender, Grant, Leader, Note, Observation, Renewed,
    Stored, Swapped,
};
pub use elector::{
    Answer, Call, CallId, Elector, ElectorConfig, Event, Input, LossReason, Output, StopReason,
};
pub use error::{Error, ErrorKind, Result};
pub use fence::{Admission, Fence, HighWater};
pub use guarantees::Guarantees;
pub use handover::HandoverRequest;
pub use ids::{Authority, CandidateId, ElectionName, FencingToken, Nonce};
pub use time::BootInstant;
pub use timing::{Settings, Timing};
