//! Signals as whoever started this process left them.

/// Whether this process ignores a signal. Before it takes any, that is what `nohup`, or a shell that started it in the
/// background, asked for. False where `/proc` does not tell.
pub fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}
