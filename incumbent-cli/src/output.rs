//! How the commands other than `run` answer: on stdout for people or programs, with one form of errors on stderr.

use std::future::Future;
use std::io::{self, Write};
use std::process::ExitCode;

use comfy_table::{ContentArrangement, Table, presets};
use incumbent::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags};
use serde::Serialize;

use crate::report::FORMAT;
use crate::{exit, text};

/// What a command found out: an answer or an error.
pub(crate) type Answer = Result<ExitCode>;

/// Runs what asks a store, on a runtime of its own, and tells of an error.
pub(crate) fn answer<F: Future<Output = Answer>>(json: bool, ask: F) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::new(ErrorKind::Internal, "the runtime cannot be started").with_source(error));
    conclude(json, runtime.and_then(|runtime| runtime.block_on(ask)))
}

/// The exit code of an answer; an error is told.
pub(crate) fn conclude(json: bool, answer: Answer) -> ExitCode {
    answer.unwrap_or_else(|error| {
        tell_error(json, &error);
        ExitCode::from(exit::FAILED)
    })
}

#[derive(Serialize)]
struct ErrorEvent<'a> {
    v: u32,
    event: &'a str,
    kind: String,
    message: &'a str,
}

/// `error: …` on stderr, or an event.
pub(crate) fn tell_error(json: bool, error: &Error) {
    let message = &text::error(error);
    if json {
        let kind = text::kind(error.kind());
        let event = ErrorEvent { v: FORMAT, event: "error", kind, message };
        eprintln!("{}", serde_json::to_string(&event).unwrap_or_default());
    } else {
        tell(message);
    }
}

/// `error: …` on stderr.
pub(crate) fn tell(message: &str) {
    let style = clap::builder::styling::AnsiColor::Red.on_default().bold();
    anstream::eprintln!("{style}error:{style:#} {}", text::visible(message));
}

/// `warning: …` on stderr.
pub(crate) fn warn(message: &str) {
    let style = clap::builder::styling::AnsiColor::Yellow.on_default().bold();
    anstream::eprintln!("{style}warning:{style:#} {}", text::visible(message));
}

/// Text on stdout. A reader that went away is no error.
///
/// # Errors
/// If stdout cannot be written, as on a full disk.
pub(crate) fn print(text: &[u8]) -> Result<()> {
    print_while_read(text).map(|_| ())
}

/// Text on stdout; `false` if the reader went away, so that there is no use in going on.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_while_read(text: &[u8]) -> Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::new(ErrorKind::Internal, "stdout cannot be written").with_source(error)),
    }
}

/// Knows when nobody reads stdout any more.
pub(crate) struct ReaderGone(tokio::sync::oneshot::Receiver<()>);

impl ReaderGone {
    /// Watches from now on, on a thread of its own.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub(crate) fn watch() -> Result<ReaderGone> {
        let (gone, is_gone) = tokio::sync::oneshot::channel();
        let watch = move || {
            let stdout = io::stdout();
            // Asked for nothing, the end is told all the same; a file or a terminal that stays never answers.
            let poll = || rustix::event::poll(&mut [PollFd::new(&stdout, PollFlags::empty())], None);
            while poll() == Err(rustix::io::Errno::INTR) {}
            let _ = gone.send(());
        };
        let thread = std::thread::Builder::new().name("stdout".into()).spawn(watch);
        thread.map_err(|error| {
            Error::new(ErrorKind::Internal, "no thread can be started").with_source(error)
        })?;
        Ok(ReaderGone(is_gone))
    }

    /// Resolves then. Cancel-safe.
    pub(crate) async fn wait(&mut self) {
        if (&mut self.0).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[derive(Serialize)]
struct Versioned<'a, T> {
    v: u32,
    #[serde(flatten)]
    value: &'a T,
}

/// One line of JSON with `v: 1` on stdout.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json<T: Serialize>(value: &T) -> Result<()> {
    print(&json_line(value))
}

/// One line of JSON with `v: 1`.
pub(crate) fn json_line<T: Serialize>(value: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(&Versioned { v: FORMAT, value }).unwrap_or_default();
    line.push(b'\n');
    line
}

/// A table for people: no frame, as wide as it must be, at most as wide as the terminal.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    if let Ok(size) = rustix::termios::tcgetwinsize(io::stdout())
        && size.ws_col > 0
    {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(size.ws_col);
    }
    if !header.is_empty() {
        table.set_header(header);
    }
    table
}

/// The table's text with no blanks at the ends of its lines.
pub(crate) fn lines(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}
