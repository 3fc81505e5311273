//! A wall clock of its own for a process, which a test sets back and forth. Its boot and monotonic clocks stay as they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::fetch;
use crate::reaper::run_dir;

const FILE: &str = "FAKETIME_TIMESTAMP_FILE";

/// The wall clock of one process or several: the system's, moved by an offset.
#[derive(Debug, Clone)]
pub struct WallClock {
    file: PathBuf,
    preload: PathBuf,
}

impl WallClock {
    /// One that shows the system's time, until it is [`set`](WallClock::set).
    pub fn new() -> Result<WallClock> {
        let preload = library()?;
        let clock = WallClock { file: run_dir("wall-clock").join("offset"), preload };
        clock.set(0);
        Ok(clock)
    }

    /// The one that this process was started with, if it was.
    pub fn of_this_process() -> Option<WallClock> {
        Some(WallClock {
            file: std::env::var_os(FILE)?.into(),
            preload: std::env::var_os("LD_PRELOAD")?.into(),
        })
    }

    /// Gives it to a process that is to be started, and to its children. It reaches programs that read the time by way of the
    /// C library; those in Go do not.
    pub fn give_to(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.preload).env(FILE, &self.file);
        command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }

    /// Sets it to the system's time plus `seconds`.
    ///
    /// # Panics
    /// If the file that holds the offset cannot be written.
    pub fn set(&self, seconds: i64) {
        let new = self.file.with_extension("new");
        let write =
            |new: &Path| fs::write(new, format!("{seconds:+}s\n")).and_then(|()| fs::rename(new, &self.file));
        write(&new).unwrap_or_else(|error| panic!("{}: {error}", self.file.display()));
    }
}

/// libfaketime, Debian's, fetched.
fn library() -> Result<PathBuf> {
    let root = fetch::FAKETIME.ensure()?;
    let found = fs::read_dir(root.join("usr/lib")).into_iter().flatten().flatten();
    let found = found.map(|entry| entry.path().join("faketime/libfaketime.so.1")).find(|path| path.is_file());
    found.ok_or_else(|| Error::new(format!("no libfaketime.so.1 under {}", root.display())))
}
