//! The sans-I/O core of incumbent: the elector, its deadlines, the backend contract and its rules.
//!
//! Nothing here does I/O, reads a clock, starts a thread or draws a random number: time and randomness are passed in.
#![forbid(unsafe_code)]

pub mod error;
pub mod ids;
pub mod time;

pub use error::{Error, ErrorKind, Result};
pub use ids::{Authority, CandidateId, ElectionName, FencingToken, Nonce};
pub use time::BootInstant;
