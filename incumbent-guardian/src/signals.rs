//! Signals as whoever started this process left them, and those that are passed on.

use rustix::process::{Pid, Signal, kill_process_group};

/// Whether this process ignores a signal. Before it takes any, that is what `nohup`, or a shell that started it in the
/// background, asked for. False where `/proc` does not tell.
pub fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}

/// Passes a signal on to a command's group.
pub(crate) fn pass_on(group: i32, signal: i32) {
    let (Some(group), Some(signal)) = (Pid::from_raw(group), Signal::from_named_raw(signal)) else { return };
    // A session without a terminal ignores it, unless the command handles it.
    let signal = if signal == Signal::TSTP { Signal::STOP } else { signal };
    let _ = kill_process_group(group, signal);
    if signal == Signal::TERM {
        // A stopped command would not hear that it is to end.
        let _ = kill_process_group(group, Signal::CONT);
    }
}
