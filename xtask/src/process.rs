//! Runs a command, shows its output and reads the test results in it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::tally::{Results, Tally};

/// A command that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Runs `command` to its end, shows its output behind `prefix` and adds its results to `tally`.
pub(crate) fn run(mut command: Command, label: &str, group: &str, prefix: &str, tally: &mut Tally) {
    for (name, _) in std::env::vars_os() {
        // Settings of the person who runs the tests are not the tests' settings.
        if name.to_string_lossy().starts_with("INCUMBENT_") {
            command.env_remove(name);
        }
    }
    command.env("INCUMBENT_TEST_GROUP", group).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut results = Results::default();
    let (ended_well, how) = match command.spawn() {
        Ok(child) => follow(child, prefix, &mut results),
        Err(e) => (false, format!("cannot run: {e}")),
    };
    tally.add(results, label, ended_well, &how);
}

fn follow(mut child: Child, prefix: &str, results: &mut Results) -> (bool, String) {
    let output = child.stdout.take().expect("stdout was piped");
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let end = testkit::now() + LIMIT;
    loop {
        match lines.recv_timeout(end.since(testkit::now())) {
            Ok(line) => {
                let line = String::from_utf8_lossy(&line);
                println!("{prefix}{line}");
                results.read(&line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                let _ = child.wait();
                return (false, format!("killed after {} minutes", LIMIT.as_secs() / 60));
            }
        }
    }
    match child.wait() {
        Ok(status) => (status.success(), status.to_string()),
        Err(e) => (false, format!("cannot wait for it: {e}")),
    }
}
