//! The signals that `run` takes, from its first moment on.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use incumbent::BootInstant;
use incumbent_guardian::{hold_signals_back, is_ignored};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

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

/// The signals that arrive, before anybody listens.
#[derive(Debug)]
pub(crate) struct Caught {
    arrived: Vec<(i32, Arc<AtomicBool>)>,
    /// Readable after each of them.
    woken: UnixStream,
}

impl Caught {
    /// Catches the signals from now on. One that comes in the middle of it is not lost: while a handler is being set the
    /// library that does it has none to call.
    pub(crate) fn catch() -> io::Result<Caught> {
        hold_signals_back(Caught::register)
    }

    fn register() -> io::Result<Caught> {
        let (wake, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        let mut arrived = Vec::new();
        for number in [SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2] {
            // What nohup, or a shell in the background, has ignored stays so, for the command too.
            if number != SIGTERM && is_ignored(number) {
                continue;
            }
            let flag = Arc::new(AtomicBool::new(false));
            // In this order: who is woken finds the flag set.
            signal_hook::flag::register(number, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(number, wake.try_clone()?)?;
            arrived.push((number, flag));
        }
        Ok(Caught { arrived, woken })
    }

    /// Inside a runtime.
    pub(crate) fn listen(self) -> io::Result<Signals> {
        let woken = tokio::net::UnixStream::from_std(self.woken)?;
        let terminal = std::fs::File::open("/dev/tty").is_ok();
        Ok(Signals { arrived: self.arrived, woken, terminal, last_stop: None })
    }
}

/// What the signals ask for.
#[derive(Debug)]
pub(crate) struct Signals {
    arrived: Vec<(i32, Arc<AtomicBool>)>,
    woken: tokio::net::UnixStream,
    terminal: bool,
    last_stop: Option<BootInstant>,
}

impl Signals {
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

    async fn receive(&self) -> i32 {
        loop {
            // Emptied before the flags are looked at, so that a signal after that wakes again.
            while self.woken.try_read(&mut [0; 64]).is_ok_and(|len| len > 0) {}
            let arrived = self.arrived.iter().find(|(_, flag)| flag.swap(false, Ordering::SeqCst));
            if let Some((number, _)) = arrived {
                return *number;
            }
            if self.woken.readable().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
