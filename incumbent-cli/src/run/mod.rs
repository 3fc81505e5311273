//! `run`: a command on exactly one replica.

mod backoff;
mod command;
mod job;
mod library;
mod runner;
mod signals;
mod trouble;

use std::io;
use std::process::ExitCode;

use incumbent::{Error, ErrorKind, Result};

use crate::args::RunArgs;
use crate::narrator::Narrator;
use crate::report::{Level, Reporter};
use crate::store::Store;
use crate::{exit, identity, output, platform, text};

pub(crate) use library::listen;
use runner::{Plan, Waiting};
pub(crate) use signals::{Caught, Wish};

pub(crate) fn run(args: RunArgs, signals: io::Result<Caught>) -> ExitCode {
    let narrator = match Narrator::start() {
        Ok(narrator) => narrator,
        Err(error) => {
            return output::conclude(args.json, Err(internal("no thread can be started", error)));
        }
    };
    let code = lead(args, signals, &narrator);
    narrator.finish();
    ExitCode::from(code)
}

fn lead(args: RunArgs, signals: io::Result<Caught>, narrator: &Narrator) -> u8 {
    let reporter = Reporter {
        narrator: narrator.clone(),
        election: args.election.to_string(),
        // One that is no id is told below.
        id: identity::choose(args.id.as_ref()).map(|(id, _)| id.to_string()).unwrap_or_default(),
        program: command::name(&args.command),
        level: level(&args),
        json: args.json,
    };
    if let Err(missing) = command::look_for(&args.command[0]) {
        reporter.error(missing.kind, &missing.message);
        return missing.exit_code;
    }
    let led = prepare(args, reporter.clone()).and_then(|(plan, reporter)| {
        // Without these a term could be won and not be begun.
        let lacks = |what| Error::new(ErrorKind::InvalidConfig, what);
        platform::descriptors().and_then(|()| platform::lease_dir()).map_err(lacks)?;
        let signals = signals.map_err(|error| internal("signals cannot be taken", error))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| internal("the runtime cannot be started", error))?;
        runtime.block_on(runner::run(plan, signals, reporter))
    });
    led.unwrap_or_else(|error| {
        reporter.error(error.kind(), &text::error(&error));
        exit::FAILED
    })
}

/// From what was typed to what it means.
fn prepare(args: RunArgs, mut reporter: Reporter) -> Result<(Plan, Reporter)> {
    let store = Store::choose(&args.store, Some(&args.term))?;
    let (id, _) = identity::choose(args.id.as_ref())?;
    reporter.id = id.to_string();
    library::listen(reporter.clone(), args.verbose > 1);
    store.note().iter().for_each(|note| reporter.note(note));
    store.warnings().iter().for_each(|warning| reporter.warn(warning));
    if cfg!(not(target_os = "linux")) {
        reporter.note("on this system, processes that leave the command's process group are not covered");
    }
    let waiting = match (args.no_wait, args.wait_timeout) {
        (true, _) => Waiting::Not,
        (false, Some(limit)) => Waiting::AtMost(limit),
        (false, None) => Waiting::ForEver,
    };
    let plan = Plan {
        election: args.election,
        id,
        address: args.advertise,
        store,
        command: args.command,
        restart: args.restart,
        waiting,
        allow_split_brain: args.allow_split_brain,
    };
    Ok((plan, reporter))
}

fn internal(message: &str, error: io::Error) -> Error {
    Error::new(ErrorKind::Internal, message).with_source(error)
}

fn level(args: &RunArgs) -> Level {
    match (args.quiet, args.verbose) {
        (true, _) => Level::Quiet,
        (false, 0) => Level::Normal,
        (false, _) => Level::Verbose,
    }
}
