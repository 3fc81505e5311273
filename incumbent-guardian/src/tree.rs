//! The processes of a tree, read from `/proc`, and the sweep that stops and then kills them.
//!
//! The guardian and the parent use the same sweep; they differ in what they take for the tree. Killing through a pidfd
//! whose start time was compared cannot hit a stranger that got a reused pid.

use std::collections::HashSet;
use std::fs;
use std::io;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, pidfd_open, pidfd_send_signal, waitpid,
};

/// Rounds of stopping in one sweep: a tree that still grows after that is met again by the next sweep.
const STOP_ROUNDS: usize = 16;

/// In clock ticks after boot.
pub(crate) type StartTime = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    session: i32,
    /// Runs, or waits for a processor.
    runnable: bool,
    /// Not yet reaped, but without any thread left.
    zombie: bool,
    /// Tells it from an earlier process with the same pid.
    start: StartTime,
}

impl Process {
    /// A process from its `/proc/PID/stat`.
    fn parse(stat: &str) -> Option<Process> {
        // The name stands in parentheses and may hold anything, so count from the last one.
        let (pid, _) = stat.split_once(' ')?;
        let (_, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Process {
            pid: pid.parse().ok()?,
            parent: number(1)? as i32,
            session: number(3)? as i32,
            runnable: fields[0] == "R",
            // A leader that ended before its threads shows as a zombie, while they run on.
            zombie: matches!(fields[0], "Z" | "X") && number(17)? <= 1,
            start: number(19)?,
        })
    }

    fn read(pid: i32) -> Option<Process> {
        Process::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Sends a signal to this very process. One that is gone is no error.
    fn signal(self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => {
                if Process::read(self.pid).is_some_and(|now| now.start == self.start) {
                    let _ = pidfd_send_signal(&pidfd, signal);
                }
            }
            Err(rustix::io::Errno::NOSYS) => {
                if Process::read(self.pid).is_some_and(|now| now.start == self.start) {
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
            Err(_) => {}
        }
    }
}

/// All processes that `/proc` shows, in no order.
///
/// # Errors
/// If `/proc` cannot be listed, or is that of another pid namespace: what it does not show is not proven dead.
fn processes() -> io::Result<Vec<Process>> {
    let pids = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let all: Vec<Process> = pids.filter_map(Process::read).collect();
    // Another process may have the same number there, as every first process of a pid namespace does.
    let own = std::process::id();
    if fs::read_link("/proc/self")?.to_str() != Some(&own.to_string()) {
        return Err(io::Error::other("/proc does not show this process"));
    }
    Ok(all)
}

/// When a process of ours started; the beginning of time if that cannot be read.
pub(crate) fn start_time(pid: u32) -> StartTime {
    Process::read(pid as i32).map_or(0, |process| process.start)
}

/// Passes a signal on to the group that `main` leads, if that still is the process that started at `start`: dead or alive, it is not
/// reaped then, and the number nobody else's.
pub(crate) fn signal_group(main: i32, start: StartTime, signal: i32) {
    if Process::read(main).is_some_and(|now| now.start == start) {
        crate::signals::pass_on(main, signal);
    }
}

/// Whether a process runs or waits for a processor, so that it is not frozen.
pub(crate) fn is_runnable(pid: u32) -> bool {
    Process::read(pid as i32).is_some_and(|process| process.runnable)
}

/// Whether a process has ended and is not reaped yet.
pub(crate) fn is_zombie(pid: i32) -> bool {
    Process::read(pid).is_some_and(|process| process.zombie)
}

/// The descendants of the processes in `roots`, without these, parents before their children.
fn descendants(all: &[Process], roots: impl IntoIterator<Item = i32>) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut seen = HashSet::new();
    for root in roots {
        let mut next = found.len();
        let mut parent = root;
        loop {
            for process in all {
                if process.parent == parent && seen.insert(process.pid) {
                    found.push(*process);
                }
            }
            let Some(process) = found.get(next) else { break };
            parent = process.pid;
            next += 1;
        }
    }
    found
}

/// Stops what `select` takes from all processes, until that is no more growing, then kills it, children before
/// parents, so that none sees another die. Returns what was alive.
///
/// # Errors
/// Those of [`processes`].
fn sweep(select: impl Fn(&[Process]) -> Vec<Process>) -> io::Result<Vec<Process>> {
    let mut stopped = HashSet::new();
    let mut alive = Vec::new();
    for _ in 0..STOP_ROUNDS {
        alive = select(&processes()?);
        alive.retain(|process| !process.zombie);
        let fresh: Vec<_> = alive.iter().filter(|process| stopped.insert(process.pid)).collect();
        if fresh.is_empty() {
            break;
        }
        fresh.into_iter().for_each(|process| process.signal(Signal::STOP));
    }
    alive.iter().rev().for_each(|process| process.signal(Signal::KILL));
    Ok(alive)
}

/// Stops and kills everything below a process, but not itself. Returns the pids of what was alive.
///
/// # Errors
/// Those of [`processes`].
pub(crate) fn kill_below(root: u32) -> io::Result<Vec<i32>> {
    Ok(pids(sweep(|all| descendants(all, [root as i32]))?))
}

/// Stops and kills what dead guardians left to this process, their subreaper. Returns the pids of what was alive.
///
/// A process whose parent we became, of a session other than ours, is such an orphan: only a guardian makes sessions for
/// what it starts, and nobody can join ours from outside. `guardians` are those not reaped yet; what started before
/// `since` was there before the dead one.
///
/// # Errors
/// Those of [`processes`].
pub(crate) fn kill_orphans(guardians: &[u32], since: StartTime) -> io::Result<Vec<i32>> {
    let alive = sweep(|all| {
        let roots = orphans(all, guardians, since);
        let mut tree = roots.clone();
        tree.extend(descendants(all, roots.iter().map(|root| root.pid)));
        tree
    })?;
    Ok(pids(alive))
}

/// Reaps dead orphans; returns the pid and the status of each.
///
/// # Errors
/// Those of [`processes`].
pub(crate) fn reap_orphans(guardians: &[u32], since: StartTime) -> io::Result<Vec<(i32, WaitStatus)>> {
    let mut reaped = Vec::new();
    for orphan in orphans(&processes()?, guardians, since) {
        if let Ok(Some((_, status))) = waitpid(Pid::from_raw(orphan.pid), WaitOptions::NOHANG) {
            reaped.push((orphan.pid, status));
        }
    }
    Ok(reaped)
}

fn orphans(all: &[Process], guardians: &[u32], since: StartTime) -> Vec<Process> {
    let own = std::process::id() as i32;
    let session = all.iter().find(|process| process.pid == own).map(|process| process.session);
    let is_orphan = |process: &&Process| {
        process.parent == own
            && Some(process.session) != session
            && process.start >= since
            && !guardians.contains(&(process.pid as u32))
    };
    all.iter().filter(is_orphan).copied().collect()
}

fn pids(processes: Vec<Process>) -> Vec<i32> {
    processes.into_iter().map(|process| process.pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32) -> Process {
        Process { pid, parent, session: 1, runnable: false, zombie: false, start: 0 }
    }

    #[test]
    fn descendants_come_after_their_parents_and_strangers_do_not() {
        let all = [process(9, 5), process(5, 2), process(3, 2), process(2, 1), process(7, 1), process(8, 7)];
        let found: Vec<_> = descendants(&all, [2]).iter().map(|process| process.pid).collect();
        assert_eq!(found, [5, 3, 9]);
        assert_eq!(descendants(&all, [9]), []);
        assert_eq!(descendants(&all, [2, 5]).len(), 3);
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_confuse() {
        let stat = "42 (a) R 1 (b) S 7 40 39 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 1 1 1";
        let process = Process::parse(stat).unwrap();
        assert_eq!((process.pid, process.parent, process.session, process.start), (42, 7, 39, 12345));
        assert!(!process.zombie);
    }

    #[test]
    fn a_dead_leader_with_living_threads_is_alive() {
        let stat = |threads| format!("42 (a) Z 7 40 39 0 -1 0 1 2 3 4 5 6 7 8 20 0 {threads} 0 12345 1 1 1");
        assert!(Process::parse(&stat(1)).unwrap().zombie);
        assert!(!Process::parse(&stat(2)).unwrap().zombie);
    }

    #[test]
    fn stellar_core_883_a_reused_pid_is_not_killed() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let process = Process::read(child.id() as i32).unwrap();
        Process { start: process.start + 1, ..process }.signal(Signal::KILL);
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(child.try_wait().unwrap().is_none(), "a later process with the same pid was killed");
        process.signal(Signal::KILL);
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn sees_itself() {
        let own = std::process::id() as i32;
        assert!(processes().unwrap().iter().any(|process| process.pid == own && !process.zombie));
    }
}
