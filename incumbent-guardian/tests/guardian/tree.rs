//! A tree of processes that shows whether it runs.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{
    Parent, User, assert_silent, is_alive, is_stopped, marked, scratch, send, sh, ticker, ticks, until,
    until_ticking,
};
use crate::parent::Plan;

/// A command whose own process, child and setsid grandchild all tick, each into a file of its own.
pub(crate) struct Tree {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) plan: Plan,
    /// The pid of the command, once it is started.
    pub(crate) main: i32,
}

impl Tree {
    pub(crate) fn new(lease_ms: u64, lead_ms: u64) -> Tree {
        let dir = scratch();
        let files: Vec<PathBuf> = ["main", "child", "grandchild"].map(|name| dir.path().join(name)).into();
        let script = format!(
            "sh -c '{}' & (setsid sh -c '{}' </dev/null >/dev/null 2>&1 &); {}",
            ticker(&files[1]),
            ticker(&files[2]),
            ticker(&files[0])
        );
        let plan = Plan { dir: dir.path().into(), argv: sh(&script), lease_ms, lead_ms, ..Plan::default() };
        Tree { dir, files, plan, main: 0 }
    }

    pub(crate) fn start(&mut self, user: User) -> Parent {
        let mut parent = Parent::spawn_as(user, std::mem::take(&mut self.plan));
        self.main = parent.started();
        self.files.iter().for_each(|file| until_ticking(file));
        parent
    }

    /// The processes of the tree, except the short-lived sleeps.
    pub(crate) fn pids(&self) -> Vec<i32> {
        self.files.iter().flat_map(|file| marked(file)).collect()
    }

    /// Those that stay: a shell's child looks like it until it executes something.
    pub(crate) fn lasting_pids(&self) -> Vec<i32> {
        let pids = self.pids();
        std::thread::sleep(Duration::from_millis(100));
        pids.into_iter().filter(|pid| is_alive(*pid)).collect()
    }

    pub(crate) fn total(&self) -> u64 {
        self.files.iter().map(|file| ticks(file)).sum()
    }

    pub(crate) fn assert_dead(&self) {
        assert_eq!(self.pids(), [0; 0]);
        self.files.iter().for_each(|file| assert_silent(file));
    }

    /// Freezes every process of the tree, also the sleeps, in rounds, since they come and go.
    pub(crate) fn freeze(&self) {
        until("the tree is frozen", || {
            self.pids().into_iter().for_each(|pid| send(pid, Signal::STOP));
            let before = self.total();
            std::thread::sleep(Duration::from_millis(100));
            self.pids().into_iter().all(is_stopped) && self.total() == before
        });
    }
}

/// Kills a parent and its guardian so that neither sees the other die.
pub(crate) fn kill_both(parent: &mut Parent) {
    freeze(parent.guardian);
    freeze(parent.pid());
    send(parent.guardian, Signal::KILL);
    parent.send(Signal::KILL);
    parent.wait();
    until("the guardian is dead", || !is_alive(parent.guardian));
}

pub(crate) fn freeze(pid: i32) {
    send(pid, Signal::STOP);
    until("it is frozen", || is_stopped(pid));
}
