//! Leader election with fencing tokens: exactly one replica does the job.

mod backend;
pub mod clock;
