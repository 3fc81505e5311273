//! A disk that has become slow, as a running process sees it.

use std::time::Duration;

use rustix::process::Signal;

use crate::fetch;
use crate::probe::{Capability, require};
use crate::proc::Proc;

/// While it lives, each such call of a process begins late; dropping it lets calls that wait go on at once.
#[derive(Debug)]
#[must_use]
pub struct Stall {
    tracer: Proc,
}

impl Stall {
    /// Delays each `fdatasync` of the process `pid` by `delay`, from now on.
    ///
    /// # Panics
    /// Where strace cannot attach to it.
    #[track_caller]
    pub fn fdatasync(pid: u32, delay: Duration) -> Stall {
        Stall::call("fdatasync", pid, delay)
    }

    /// Delays each `fsync` of the process `pid` by `delay`, from now on.
    ///
    /// # Panics
    /// Where strace cannot attach to it.
    #[track_caller]
    pub fn fsync(pid: u32, delay: Duration) -> Stall {
        Stall::call("fsync", pid, delay)
    }

    #[track_caller]
    fn call(name: &str, pid: u32, delay: Duration) -> Stall {
        require(Capability::Ptrace);
        let mut strace = fetch::strace().unwrap_or_else(|e| panic!("{e}"));
        strace.args(["-f", "-e", &format!("trace={name}"), "-e", "signal=none"]);
        strace.arg("-e").arg(format!("inject={name}:delay_enter={}", delay.as_micros()));
        strace.arg("-p").arg(pid.to_string());
        let tracer = Proc::spawn(strace);
        tracer.wait_line(|line| line.contains(" attached"), Duration::from_secs(30));
        Stall { tracer }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        // Asked politely, strace detaches from every thread first.
        if self.tracer.try_wait().is_none() {
            self.tracer.signal(Signal::TERM);
            crate::clock::wait_until(Duration::from_secs(10), || self.tracer.try_wait().is_some());
        }
    }
}
