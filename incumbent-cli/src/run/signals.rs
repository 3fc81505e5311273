//! The signals that `run` takes.

use std::io;

use incumbent::BootInstant;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A second one within this time is the same one: some senders signal a process and then its whole group.
const SAME: std::time::Duration = std::time::Duration::from_millis(100);

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Stop: drain at first, kill when it is asked for again.
    Stop,
    /// Pass it on to the command; where none runs, stop if it is one that ends a process that does not know it.
    PassOn { signal: i32, else_stop: bool },
}

/// Streams of all signals that are taken.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(i32, Signal)>,
    terminal: bool,
    last_stop: Option<BootInstant>,
}

impl Signals {
    /// Takes the signals from now on.
    pub(crate) fn take() -> io::Result<Signals> {
        let mut taken = vec![SIGTERM, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2];
        // Under nohup it stays ignored.
        if !is_ignored(SIGHUP) {
            taken.push(SIGHUP);
        }
        let streams = taken
            .into_iter()
            .map(|number| Ok((number, signal(SignalKind::from_raw(number))?)))
            .collect::<io::Result<_>>()?;
        let terminal = std::fs::File::open("/dev/tty").is_ok();
        Ok(Signals { streams, terminal, last_stop: None })
    }

    /// The next wish. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Wish {
        loop {
            let number = self.receive().await;
            let now = incumbent::clock::now();
            match number {
                // A terminal that went away took its user along.
                SIGHUP if self.terminal => {}
                SIGTERM | SIGINT => {}
                other => {
                    let else_stop = matches!(other, SIGHUP | SIGQUIT);
                    return Wish::PassOn { signal: other, else_stop };
                }
            }
            if self.last_stop.replace(now).is_none_or(|last| now.since(last) >= SAME) {
                return Wish::Stop;
            }
        }
    }

    async fn receive(&mut self) -> i32 {
        std::future::poll_fn(|cx| {
            for (number, stream) in &mut self.streams {
                if let std::task::Poll::Ready(Some(())) = stream.poll_recv(cx) {
                    return std::task::Poll::Ready(*number);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

/// Whether this process was started with the signal ignored.
fn is_ignored(number: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (number - 1)) != 0
}
