//! The rules on `memory:`.

use std::process::ExitCode;
use std::sync::Arc;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook, Suite};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Result};

/// Why there are no faults from outside.
const INSIDE: &str = "nobody but this process can reach its memory";
const NO_SESSIONS: &str = "a record store has no sessions";

struct Memory;

impl Harness for Memory {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory("memory:conformance", &settings)?()
        })
    }

    fn delete<'a>(&'a self, _election: &'a ElectionName) -> Hook<'a> {
        Err(INSIDE)
    }

    fn replace<'a>(&'a self, _election: &'a ElectionName) -> Hook<'a> {
        Err(INSIDE)
    }

    fn delete_place<'a>(&'a self, _claim: &'a Claim) -> Hook<'a> {
        Err("a candidate that waits has no record")
    }

    fn end_session<'a>(&'a self, _election: &'a ElectionName) -> Hook<'a> {
        Err(NO_SESSIONS)
    }

    fn back_up(&self, _put_back: bool) -> Hook<'_> {
        Err(INSIDE)
    }

    fn stall(&self, _on: bool) -> Hook<'_> {
        Err("memory has no disk")
    }

    fn step_wall_clock(&self, _seconds: i64) -> Hook<'_> {
        Err("done in a process with a wall clock of its own, by the test wall_clock")
    }

    fn hold_answers(&self, _on: bool) -> Hook<'_> {
        Err("a call to memory has no way back on which to be held")
    }
}

fn main() -> ExitCode {
    Suite::new(Memory).main()
}
