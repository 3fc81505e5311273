//! A deterministic simulator of elections: the real [`Elector`](incumbent_core::Elector) and the real protocols of
//! [`incumbent_core::peers`], in virtual time, on a network, clocks, disks and stores that go wrong as a seed decides.
//!
//! [`report::run`] shows a scenario to people; [`lease::run`] and [`peers::run`] look for what must not happen.
//!
//! One thread, one source of chance, no clock and no I/O: the same seed gives the same run, event by event.
#![forbid(unsafe_code)]

pub mod check;
mod clock;
mod history;
pub mod lease;
mod network;
pub mod outcome;
pub mod peers;
pub mod plan;
mod queue;
mod random;
pub mod report;
pub mod shrink;
pub mod soak;
mod trace;

pub use self::outcome::Outcome;
pub use self::plan::Plan;
pub use self::random::Random;
