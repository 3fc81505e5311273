//! Leader election from the command line: run a job on exactly one replica.

mod args;
mod backends;
mod check;
mod checkpoint;
mod clock;
mod doctor;
mod exit;
mod fence;
mod generate;
mod handover;
mod identity;
mod narrator;
mod observe;
mod output;
mod peer;
mod platform;
mod report;
mod run;
mod simulate;
mod status;
mod store;
mod text;

use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};
use run::Caught;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let first = words.next().unwrap_or_default();
    if first == incumbent_guardian::SUBCOMMAND {
        return incumbent_guardian::guardian_main(words);
    }
    // Before anything else, so that a signal at any moment is a wish and no sudden death.
    let signals = (first == "run").then(Caught::catch);
    match Arguments::parse().command {
        Command::Run(args) => run::run(args, signals.unwrap_or_else(Caught::catch)),
        Command::Check(args) => check::check(&args),
        Command::Observe(args) => observe::observe(&args),
        Command::Status(args) => status::status(&args),
        Command::Resign(args) => handover::resign(&args),
        Command::Transfer(args) => handover::transfer(&args),
        Command::Checkpoint(args) => checkpoint::checkpoint(&args.action),
        Command::Fence(args) => fence::fence(&args.action),
        Command::Peer(args) => peer::peer(args.action),
        Command::Simulate(args) => simulate::simulate(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Backends(args) => backends::backends(&args),
        Command::Completions(args) => generate::completions(&args),
        Command::Man(args) => generate::man(&args),
    }
}
