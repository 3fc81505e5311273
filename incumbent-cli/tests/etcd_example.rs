//! The example of a fence in etcd, as its users run it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use testkit::{Etcd, Proc, Signal, Version};

const PATIENCE: Duration = Duration::from_secs(60);

fn script() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../incumbent/examples/fenced_etcd.sh")
}

/// With etcdctl in its path, and where it finds the data.
fn with_etcdctl(mut command: Command, etcd: &Etcd) -> Command {
    let etcdctl = etcd.etcdctl_command();
    let folder = Path::new(etcdctl.get_program()).parent().expect("a folder").to_owned();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", folder.display()));
    for (name, value) in etcdctl.get_envs().filter(|(name, _)| *name != "PATH") {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

fn candidate(etcd: &Etcd) -> Proc {
    let mut command = Command::new(env!("CARGO_BIN_EXE_incumbent"));
    command.args(["run", "fenced-etcd", "--on", &etcd.url(), "--", script()]);
    Proc::spawn(with_etcdctl(command, etcd))
}

/// The token and the count of the next line that tells them.
fn counted(process: &Proc) -> (u64, u64) {
    let line = process.wait_line(|line| line.contains(": counted to "), PATIENCE).text;
    let numbers: Vec<u64> = line.split([' ', ':']).filter_map(|word| word.parse().ok()).collect();
    (numbers[0], numbers[1])
}

#[test]
fn the_example_counts_on_under_the_next_token_and_refuses_the_last_one() {
    let etcd = Etcd::single(Version::V3_5).start().expect("etcd starts");
    let first = candidate(&etcd);
    let (token, count) = counted(&first);
    let second = candidate(&etcd);
    first.signal(Signal::TERM);
    let (next, more) = counted(&second);
    assert!(next > token && more > count, "{token}: {count}, then {next}: {more}");
    first.wait(PATIENCE);

    let authority = etcd.etcdctl_ok(&["get", "ledger/fence", "--print-value-only"]);
    let authority = authority.trim().splitn(3, ' ').nth(2).expect("v1 TOKEN AUTHORITY").to_owned();
    for (token, authority, why) in [(token, authority.as_str(), "leads"), (next + 1, "another", "authority")]
    {
        let mut stale = with_etcdctl(Command::new(script()), &etcd);
        stale.env("INCUMBENT_TOKEN", token.to_string()).env("INCUMBENT_AUTHORITY", authority);
        let output = stale.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && text.contains(why), "{text}");
    }
}
