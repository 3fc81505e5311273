//! A leader without `async`: the work is a plain loop on the main thread. `cargo run -p incumbent --example blocking`, Ctrl-C to stop.

use std::io;
use std::thread;
use std::time::Duration;

use incumbent::blocking::{self, Shutdown};
use incumbent::{Error, Leadership};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

fn main() {
    if let Err(error) = lead() {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

fn lead() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "file:".into());
    let election = blocking::connect(&url)?.election("blocking");
    let candidate = election.candidate(format!("blocking-{}", std::process::id()));
    let shutdown = on_signal()?;
    match blocking::run_until(candidate, &shutdown, |leadership| count(&leadership))? {
        None => eprintln!("stopped before it led"),
        Some(counted) => eprintln!("done; {} stand in the checkpoint", counted?),
    }
    Ok(())
}

/// Goes on from where the last leader was, and looks before each step whether it still leads.
fn count(leadership: &Leadership) -> Result<u64, Error> {
    let checkpoint = leadership.checkpoint();
    let left = blocking::wait(checkpoint.get())?;
    let mut count: u64 = left.and_then(|text| String::from_utf8(text).ok()?.parse().ok()).unwrap_or(0);
    eprintln!("leading; {count} were counted before");
    while leadership.is_stopping().is_none() {
        thread::sleep(Duration::from_millis(100));
        leadership.check()?;
        count += 1;
        blocking::wait(checkpoint.put(count.to_string().as_bytes()))?;
    }
    Ok(count)
}

/// The first signal lets the work finish; the second ends the process.
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
