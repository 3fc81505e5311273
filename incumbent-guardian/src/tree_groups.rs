//! Where there is no `/proc`: the command's group is all that can be killed. Daemonised grandchildren are not covered.

use std::io;

use rustix::process::WaitStatus;

pub(crate) type StartTime = u64;

pub(crate) fn start_time(_pid: u32) -> StartTime {
    0
}

/// Only while the command runs, as far as is known: then the number is nobody else's.
pub(crate) fn signal_group(main: i32, _start: StartTime, signal: i32) {
    crate::signals::pass_on(main, signal);
}

/// Not known here: the time that a guardian has to answer has to do.
pub(crate) fn is_runnable(_pid: u32) -> bool {
    false
}

pub(crate) fn is_zombie(_pid: i32) -> bool {
    false
}

pub(crate) fn kill_below(_root: u32) -> io::Result<Vec<i32>> {
    Ok(Vec::new())
}

pub(crate) fn kill_orphans(_guardians: &[u32], _since: StartTime) -> io::Result<Vec<i32>> {
    Ok(Vec::new())
}

pub(crate) fn reap_orphans(_guardians: &[u32], _since: StartTime) -> io::Result<Vec<(i32, WaitStatus)>> {
    Ok(Vec::new())
}
