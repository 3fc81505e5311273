//! The examples as their users run them: real processes, on the file backend, stopped by real signals.

mod example;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::Duration;

use example::{command, examples};
use tempfile::TempDir;
use testkit::{Proc, Signal};

/// Generous: two cores may be shared with a build.
const PATIENCE: Duration = Duration::from_secs(60);

/// A state directory of its own, and the URL that names it.
fn state(ttl: &str) -> (TempDir, String) {
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let url = format!("file:{}?ttl={ttl}", folder.path().join("state").display());
    (folder, url)
}

#[track_caller]
fn says(process: &Proc, words: &str) -> String {
    process.wait_line(|line| line.contains(words), PATIENCE).text
}

fn said(process: &Proc, words: &str) -> bool {
    process.lines().iter().any(|line| line.text.contains(words))
}

#[test]
fn hello_leads_once_and_hands_over_on_ctrl_c() {
    let (_folder, url) = state("15s");
    let first = Proc::spawn(command("hello", &[&url]));
    let led = says(&first, " leads, with token ");
    let token = led.rsplit(' ').next().and_then(|token| token.parse::<u64>().ok());
    assert!(token > Some(0), "{led}");
    let second = Proc::spawn(command("hello", &[&url]));
    says(&second, "stands for election");
    thread::sleep(Duration::from_millis(500));
    assert!(!said(&second, " leads"), "one at a time; {}", second.transcript());
    first.signal(Signal::INT);
    assert!(first.wait(PATIENCE).success(), "{}", first.transcript());
    assert!(said(&first, "is done"));
    says(&second, " leads, with token");
    second.signal(Signal::INT);
    assert!(second.wait(PATIENCE).success(), "{}", second.transcript());
}

#[test]
fn blocking_goes_on_where_a_killed_leader_was() {
    let (_folder, url) = state("2s");
    let first = Proc::spawn(command("blocking", &[&url]));
    says(&first, "leading; 0 were counted before");
    thread::sleep(Duration::from_millis(600));
    first.signal(Signal::TERM);
    assert!(first.wait(PATIENCE).success(), "{}", first.transcript());
    let done = says(&first, "stand in the checkpoint");
    let counted = done.split(&[' ', ';'][..]).find_map(|word| word.parse::<u64>().ok()).unwrap();
    assert!(counted > 0, "{done}");

    let second = Proc::spawn(command("blocking", &[&url]));
    says(&second, &format!("leading; {counted} were counted before"));
    second.signal(Signal::KILL);
    let third = Proc::spawn(command("blocking", &[&url]));
    let line = says(&third, "leading; ");
    let before: u64 = line.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(before >= counted, "{line}");
    third.signal(Signal::INT);
    assert!(third.wait(PATIENCE).success(), "{}", third.transcript());
}

#[test]
fn axum_finishes_the_request_that_is_under_way_before_another_serves() {
    let (_folder, url) = state("15s");
    let port = testkit::Port::reserve();
    let address = port.addr().to_string();
    let first = Proc::spawn(command("axum_shutdown", &[&url, &address]));
    says(&first, "serving at");
    let second = Proc::spawn(command("axum_shutdown", &[&url, &address]));
    says(&second, "standing for election");
    let served_first = get(&address, "/");
    let token = served_first.lines().last().and_then(|line| line.strip_prefix("token "));
    assert!(token.is_some_and(|token| token.parse::<u64>().is_ok()), "{served_first}");
    let slow = thread::spawn({
        let address = address.clone();
        move || get(&address, "/slow")
    });
    thread::sleep(Duration::from_millis(300));
    first.signal(Signal::TERM);
    says(&first, "no new requests: Shutdown");
    assert!(slow.join().unwrap().ends_with("finished\n"), "the request that was under way has its answer");
    assert!(first.wait(PATIENCE).success(), "{}", first.transcript());
    says(&second, "serving at");
    assert_ne!(get(&address, "/"), served_first, "another term, another token");
    second.signal(Signal::TERM);
    assert!(second.wait(PATIENCE).success(), "{}", second.transcript());
}

#[test]
fn a_fenced_service_takes_requests_of_the_newest_term_only() {
    let folder = tempfile::tempdir().unwrap();
    let fence = folder.path().join("fence").display().to_string();
    let replicas = [(); 2].map(|()| {
        let address = testkit::Port::reserve().addr().to_string();
        let replica = Proc::spawn(command("fenced_http", &[&address, &fence]));
        says(&replica, "serving at");
        (address, replica)
    });
    let charge = |address: &str, token: u64| {
        ask(address, "POST /charges", &format!("Fencing-Token: {token}\r\nFencing-Authority: a\r\n"))
    };
    assert!(charge(&replicas[0].0, 17).ends_with("charged under token 17\n"));
    assert!(charge(&replicas[1].0, 18).ends_with("charged under token 18\n"));
    let refused = charge(&replicas[0].0, 17);
    assert!(refused.starts_with("HTTP/1.1 409 ") && refused.contains("older than 18"), "{refused}");
    get(&replicas[0].0, "/charges");
}

/// The whole answer to one request.
fn ask(address: &str, what: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("somebody serves");
    write!(stream, "{what} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n")
        .expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

fn get(address: &str, path: &str) -> String {
    let answer = ask(address, &format!("GET {path}"), "");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    answer
}

/// The leader is frozen where it waits for its next line, past its lease; woken, it writes without another check.
#[test]
fn a_fenced_writer_that_wakes_up_under_another_leader_is_refused() {
    // A process that is frozen inside a commit of the file backend stops the election itself; then once more.
    assert!((0..5).any(|_| a_frozen_writer_is_refused()), "nobody ever took over from a frozen leader");
}

/// False if nobody took over.
fn a_frozen_writer_is_refused() -> bool {
    let (folder, url) = state("2s");
    let file = folder.path().join("report");
    let writer = || {
        let mut writer = Command::new(examples().join("fenced_writer"));
        writer.arg(&file).arg(&url);
        let mut writer = Proc::spawn_with_stdin(writer);
        let stdin = writer.stdin().expect("a pipe was asked for");
        (writer, stdin)
    };
    let (first, mut to_first) = writer();
    writeln!(to_first, "from the first").expect("it reads");
    says(&first, "wrote \"from the first\"");
    first.signal(Signal::STOP);

    let (second, mut to_second) = writer();
    if !testkit::wait_until(Duration::from_secs(15), || said(&second, "leading with token")) {
        return false;
    }
    writeln!(to_second, "from the second").expect("it reads");
    says(&second, "wrote \"from the second\"");
    writeln!(to_first, "too late").expect("it will read");
    first.signal(Signal::CONT);
    says(&first, "refused: token ");
    assert_eq!(std::fs::read_to_string(&file).ok().as_deref(), Some("from the second"));
    assert!(!said(&first, "wrote \"too late\""), "{}", first.transcript());

    // End of input: the work is complete, and the process with it.
    drop(to_second);
    assert!(second.wait(PATIENCE).success(), "{}", second.transcript());
    assert!(said(&second, "done"));
    true
}

#[test]
fn an_error_is_told_in_words() {
    for example in ["hello", "blocking"] {
        let process = Proc::spawn(command(example, &["nosuch://h"]));
        says(&process, "error: no backend is called \"nosuch\"");
        assert!(!process.wait(PATIENCE).success(), "{}", process.transcript());
    }
}
