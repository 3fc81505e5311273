//! Tasks of the incumbent workspace: `cargo xtask --help`.

#![expect(clippy::print_stdout, reason = "a program for people at a terminal")]

mod bench;
mod conformance;
mod groups;
mod mutants;
mod process;
mod protos;
mod servers;
mod sim;
mod tally;
mod targets;
mod test;
mod verify;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tasks of the incumbent workspace
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every test, or some groups of them
    Test(test::Options),
    /// What must hold before a change is merged: the tests, and cargo-deny where it is installed
    Ci,
    /// Check format, lints and dependencies without writing anything
    Verify(verify::Options),
    /// Generate what is generated, and apply what clippy and rustfmt would change
    Fix,
    /// The numbered rules on one backend, with full counts
    Conformance(conformance::Options),
    /// Measure what the system must reach, beside the tools that it replaces
    Bench(bench::Options),
    /// Put known bugs back, one by one: the tests must find each
    Mutants(mutants::Options),
    /// Simulate elections under faults, or replay one run
    Sim(sim::Options),
    /// Start and stop real servers to try things on
    #[command(subcommand)]
    Servers(servers::Task),
}

/// What a task ends with: a sentence for people says why it failed.
type Result<T = (), E = String> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Test(options) => test::run(&options),
        Task::Ci => test::run(&test::Options::default()).and_then(|()| verify::deny()),
        Task::Verify(options) => verify::run(&options),
        Task::Fix => verify::fix(),
        Task::Conformance(options) => conformance::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::Mutants(options) => mutants::run(&options),
        Task::Sim(options) => sim::run(&options),
        Task::Servers(task) => servers::run(&task),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            if !message.is_empty() {
                eprintln!("error: {message}");
            }
            ExitCode::FAILURE
        }
    }
}
