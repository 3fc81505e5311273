//! One replica of the billing service.

use std::io;
use std::path::PathBuf;
use std::thread;

use billing::charge::{End, Error, charge};
use billing::gate::Gate;
use incumbent::ErrorKind;
use incumbent::blocking::{self, Shutdown};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

const USAGE: &str = "usage: billing-worker [--unfenced] [--driven] LEDGER URL ELECTION ID";

fn main() -> Result<(), Error> {
    let (mut fenced, mut gate, mut names) = (true, Gate { driven: false }, Vec::new());
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--unfenced" => fenced = false,
            "--driven" => gate.driven = true,
            _ => names.push(arg),
        }
    }
    let [ledger, url, election, id] = <[String; 4]>::try_from(names).map_err(|_| USAGE)?;
    let ledger = PathBuf::from(ledger);

    let election = billing::connect(&url)?.election(election);
    let end = blocking::run_until(election.candidate(id), &on_signal()?, |leadership| {
        if let Some(token) = leadership.token() {
            gate.say(format_args!("leading {token}"));
        }
        charge(&leadership, &ledger, fenced, gate).inspect_err(|error| {
            let fenced = error
                .downcast_ref()
                .is_some_and(|error: &incumbent::Error| error.kind() == ErrorKind::Fenced);
            gate.say(format_args!("{} {error}", if fenced { "refused" } else { "over" }));
        })
    })?;
    match end.transpose()? {
        Some(End::Done) => gate.say(format_args!("done")),
        Some(End::Stopped) | None => gate.say(format_args!("stopped")),
    }
    Ok(())
}

/// The first signal lets the work finish its batch; the second ends the process.
fn on_signal() -> io::Result<Shutdown> {
    let shutdown = Shutdown::new();
    let (begin, mut signals) = (shutdown.clone(), Signals::new([SIGINT, SIGTERM])?);
    thread::spawn(move || {
        for (nth, signal) in signals.forever().enumerate() {
            match nth {
                0 => begin.begin(),
                _ => std::process::exit(128 + signal),
            }
        }
    });
    Ok(shutdown)
}
