//! The command's process group, as whoever sends it signals knows it. Signals go there directly: not through the guardian,
//! which may be frozen, and not through the thread that supervises it, which would have to be woken first.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::tree::{self, StartTime};

/// The process that becomes the command, and when it started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Main {
    pub(crate) pid: i32,
    pub(crate) start: StartTime,
}

#[derive(Debug, Default)]
pub(crate) struct Group(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// While it runs, as far as is known.
    main: Option<Main>,
    /// Signals that arrived while it does not.
    early: Vec<i32>,
}

impl Group {
    /// Passes a signal on; to a command that does not run yet, once it does.
    pub(crate) fn signal(&self, signal: i32) {
        let mut state = self.lock();
        match state.main {
            Some(main) => tree::signal_group(main.pid, main.start, signal),
            None => state.early.push(signal),
        }
    }

    /// The command runs.
    pub(crate) fn runs(&self, main: Main) {
        let mut state = self.lock();
        state.main = Some(main);
        std::mem::take(&mut state.early)
            .into_iter()
            .for_each(|signal| tree::signal_group(main.pid, main.start, signal));
    }

    /// The command has ended.
    pub(crate) fn ended(&self) {
        self.lock().main = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
