//! The binary `incumbent` as a process among real processes: what it prints, how it exits, what it leaves.

mod commands;
mod generated;
mod harness;
mod job;
mod run;
mod signals;
mod usage;
