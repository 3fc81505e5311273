//! The binary `incumbent` as a process among real processes: what it prints, how it exits, what it leaves.

mod commands;
mod faults;
mod fence;
mod frozen;
mod generated;
mod handover;
mod harness;
mod job;
mod readme;
mod run;
mod signals;
mod simulate;
mod standby;
mod usage;
