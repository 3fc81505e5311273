//! A candidate's machine whose wall clock is wrong: this program once more, with a clock of its own that the case sets.

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook, Suite};
use incumbent_core::{Backend, BoxFuture, Error, ErrorKind, Result};
use rustix::time::{ClockId, clock_gettime};
use testkit::WallClock;

struct Machine {
    url: String,
    clock: WallClock,
    offset: AtomicI64,
    ttl: Duration,
}

impl Harness for Machine {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory(&self.url, &settings)?()
        })
    }

    fn ttl(&self) -> Duration {
        self.ttl
    }

    fn step_wall_clock(&self, seconds: i64) -> Hook<'_> {
        let offset = self.offset.fetch_add(seconds, Ordering::Relaxed) + seconds;
        self.clock.set(offset);
        let shown = shown_offset();
        let moved = (shown - offset).abs() <= 5;
        let error =
            || Error::new(ErrorKind::Internal, format!("set to {offset} s, the clock shows {shown} s"));
        Ok(Box::pin(std::future::ready(if moved { Ok(()) } else { Err(error()) })))
    }
}

/// By how much the clock that this program's C library shows is off the kernel's.
#[expect(clippy::disallowed_methods, reason = "the wall clock is what is looked at")]
fn shown_offset() -> i64 {
    let shown = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    shown.as_secs() as i64 - clock_gettime(ClockId::Realtime).tv_sec
}

/// Runs R6 on each of the stores, which are made ready within the new process only: a label, a URL, a ttl.
pub(crate) fn main_on<const N: usize>(
    stores: impl FnOnce() -> [(&'static str, String, Duration); N],
) -> ExitCode {
    let Some(clock) = WallClock::of_this_process() else {
        let clock = WallClock::new().expect("a wall clock to set");
        let mut again = Command::new(std::env::current_exe().expect("this program"));
        clock.give_to(again.args(std::env::args_os().skip(1)));
        let status = again.status().expect("this program starts once more");
        return if status.success() { ExitCode::SUCCESS } else { ExitCode::from(101) };
    };
    Suite::main_of(stores().map(|(label, url, ttl)| {
        let machine = Machine { url, clock: clock.clone(), offset: AtomicI64::new(0), ttl };
        Suite::new(machine).label(label).within("R6")
    }))
}
