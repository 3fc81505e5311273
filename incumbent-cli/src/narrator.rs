//! Tells on stderr what happens, from a thread of its own: a terminal that is stopped, or a pipe that nobody reads, must not
//! keep a lease from being renewed. What does not fit into the queue is dropped and counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use clap::builder::styling::{AnsiColor, Style};

use crate::text::visible;

/// Lines that may wait to be written.
const QUEUE: usize = 1024;
/// How long the end waits for them.
const PATIENCE: Duration = Duration::from_secs(1);

/// How a line is shown on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Calm,
    Good,
    Warning,
    Error,
}

/// The one way to stderr while something runs. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Narrator {
    queue: SyncSender<Item>,
    dropped: Arc<AtomicU64>,
    coloured: bool,
}

#[derive(Debug)]
enum Item {
    Line(Vec<u8>),
    /// Answer when everything before this is written.
    Finish(SyncSender<()>),
}

impl Narrator {
    pub(crate) fn start() -> io::Result<Narrator> {
        let (queue, items) = sync_channel(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = Arc::clone(&dropped);
        std::thread::Builder::new().name("narrator".into()).spawn(move || {
            while let Ok(item) = items.recv() {
                let line = match item {
                    Item::Line(line) => line,
                    Item::Finish(done) => {
                        let _ = done.try_send(());
                        continue;
                    }
                };
                let mut stderr = io::stderr().lock();
                // One write a line, so that it stays whole among the lines of the command. Nobody is left to tell of an error.
                let _ = stderr.write_all(&line);
                let lost = lost.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    let _ = writeln!(stderr, "warning: {lost} lines were not written: nobody read them");
                }
            }
        })?;
        let coloured = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
        Ok(Narrator { queue, dropped, coloured })
    }

    /// Waits until what was told is written, for a second at most. What is not written by then is lost, which is better
    /// than to hang.
    pub(crate) fn finish(&self) {
        let (done, finished) = sync_channel(1);
        if self.queue.try_send(Item::Finish(done)).is_ok() {
            let _ = finished.recv_timeout(PATIENCE);
        }
    }

    /// `label: text`.
    pub(crate) fn line(&self, tone: Tone, label: &str, text: &str) {
        let style = if self.coloured { style(tone) } else { Style::new() };
        self.send(format!("{style}{label}:{style:#} {}\n", visible(text)).into_bytes());
    }

    /// One line as it is.
    pub(crate) fn raw(&self, line: &str) {
        self.send(format!("{line}\n").into_bytes());
    }

    fn send(&self, bytes: Vec<u8>) {
        if self.queue.try_send(Item::Line(bytes)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn style(tone: Tone) -> Style {
    match tone {
        Tone::Calm => Style::new().bold(),
        Tone::Good => AnsiColor::Green.on_default().bold(),
        Tone::Warning => AnsiColor::Yellow.on_default().bold(),
        Tone::Error => AnsiColor::Red.on_default().bold(),
    }
}
