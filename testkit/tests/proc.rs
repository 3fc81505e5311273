//! Processes under test, and what is left when a test process dies.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use testkit::{Port, Proc, Signal, Stream, wait_until};

const SOON: Duration = Duration::from_secs(30);

fn sh(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

fn lives(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn output_is_read_while_the_process_runs() {
    let mut proc =
        Proc::spawn_with_stdin(sh("echo one; read -r line; echo \"got $line\" >&2; echo one again; exit 3"));
    assert_eq!(proc.wait_line(|line| line.contains("one"), SOON).stream, Stream::Out);
    assert!(proc.try_wait().is_none());
    proc.stdin().unwrap().write_all(b"two\n").unwrap();
    assert_eq!(proc.wait_lines(2, |line| line.contains("one"), SOON)[1].text, "one again");
    assert_eq!(proc.wait(SOON).code(), Some(3));
    assert_eq!(
        (proc.text(Stream::Out).as_str(), proc.text(Stream::Err).as_str()),
        ("one\none again\n", "got two\n")
    );
}

#[test]
#[should_panic(expected = "it has closed its output; 1 lines")]
fn a_line_that_cannot_come_any_more_is_not_waited_for() {
    Proc::spawn(sh("echo one")).wait_line(|line| line == "two", Duration::from_secs(600));
}

#[test]
fn a_signal_reaches_the_process_and_its_status_says_so() {
    let proc = Proc::spawn(sh("exec sleep 600"));
    proc.signal(Signal::TERM);
    assert_eq!(proc.wait(SOON).signal(), Some(15));
}

#[test]
fn dropping_kills_the_whole_group() {
    let proc = Proc::spawn(sh("sleep 600 & echo $!; wait"));
    let child: u32 = proc.wait_line(|_| true, SOON).text.parse().unwrap();
    let parent = proc.pid();
    assert!(lives(child) && lives(parent));
    drop(proc);
    assert!(wait_until(SOON, || !lives(child) && !lives(parent)));
}

/// Not a test by itself: the process that the next test kills.
#[test]
fn child_that_is_killed() {
    if std::env::var_os("TESTKIT_KILLED_CHILD").is_none() {
        return;
    }
    let proc = Proc::spawn(sh("sleep 600 & echo $!; wait"));
    println!("child {}", proc.wait_line(|_| true, SOON).text);
    println!("dir {}", testkit::run_dir("left").display());
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn nothing_is_left_of_a_test_process_that_was_killed() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_that_is_killed", "--nocapture"]).env("TESTKIT_KILLED_CHILD", "1");
    let victim = Proc::spawn(command);
    let value = |key: &str| {
        let line = victim.wait_line(|line| line.contains(key), SOON).text;
        line.rsplit_once(key).unwrap().1.to_owned()
    };
    let (child, dir): (u32, String) = (value("child ").parse().unwrap(), value("dir "));
    assert!(lives(child) && Path::new(&dir).exists());
    victim.signal(Signal::KILL);
    assert!(wait_until(SOON, || !lives(child)), "process {child} lives on");
    assert!(wait_until(SOON, || !Path::new(&dir).exists()), "{dir} is left");
}

#[test]
fn a_port_is_reserved_once() {
    let ports: Vec<Port> = (0..100).map(|_| Port::reserve()).collect();
    let mut numbers: Vec<u16> = ports.iter().map(Port::number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 100);
    assert!(ports.iter().all(|port| std::net::TcpListener::bind(port.addr()).is_ok()));
}
