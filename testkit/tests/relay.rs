//! The relay, between a client and an echo server.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use testkit::{Direction, Relay, now, wait_until};

const SOON: Duration = Duration::from_secs(30);

/// Sends back what it gets, on each connection, and counts nothing.
fn echo_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address").to_string();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                std::io::copy(&mut stream.try_clone().expect("a second handle"), &mut &stream)
            });
        }
    });
    addr
}

fn connect(relay: &Relay) -> TcpStream {
    let stream = TcpStream::connect(relay.addr()).expect("a connection");
    stream.set_read_timeout(Some(SOON)).expect("the call to succeed");
    stream
}

fn ask(mut stream: &TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).expect("the call to succeed");
}

fn answer(mut stream: &TcpStream, length: usize) -> String {
    let mut buffer = vec![0; length];
    stream.read_exact(&mut buffer).expect("the call to succeed");
    String::from_utf8(buffer).expect("UTF-8")
}

fn is_silent(stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(300))).expect("the call to succeed");
    let silent = matches!((&mut &*stream).read(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock);
    stream.set_read_timeout(Some(SOON)).expect("the call to succeed");
    silent
}

#[test]
fn bytes_pass_both_ways_and_are_counted() {
    let relay = Relay::to(&echo_server());
    let stream = connect(&relay);
    let text = "x".repeat(1 << 20);
    thread::scope(|scope| {
        scope.spawn(|| ask(&stream, &text));
        assert_eq!(answer(&stream, text.len()), text);
    });
    // The relay counts what it has passed on just after it has.
    let counted = || (relay.bytes(Direction::Requests), relay.bytes(Direction::Answers));
    assert!(wait_until(SOON, || counted() == (1 << 20, 1 << 20)), "{:?}", counted());
    assert_eq!((relay.accepted(), relay.open()), (1, 1));
    drop(stream);
    assert!(wait_until(SOON, || relay.open() == 0));
}

#[test]
fn a_held_answer_comes_when_it_may_pass() {
    let relay = Relay::to(&echo_server());
    let stream = connect(&relay);
    relay.hold(Direction::Answers);
    ask(&stream, "one");
    assert!(is_silent(&stream));
    assert!(wait_until(SOON, || relay.bytes(Direction::Requests) == 3));
    assert_eq!(relay.bytes(Direction::Answers), 0);
    relay.pass(Direction::Answers);
    assert_eq!(answer(&stream, 3), "one");
}

#[test]
fn a_held_request_does_not_reach_the_server() {
    let relay = Relay::to(&echo_server());
    relay.hold(Direction::Requests);
    let stream = connect(&relay);
    ask(&stream, "one");
    assert!(is_silent(&stream));
    assert_eq!(relay.bytes(Direction::Requests), 0);
    relay.heal();
    assert_eq!(answer(&stream, 3), "one");
}

#[test]
fn a_delay_is_kept_in_each_direction() {
    let relay = Relay::to(&echo_server());
    relay.delay(Direction::Requests, Duration::from_millis(200));
    relay.delay(Direction::Answers, Duration::from_millis(300));
    let stream = connect(&relay);
    let before = now();
    ask(&stream, "one");
    assert_eq!(answer(&stream, 3), "one");
    assert!(now().since(before) >= Duration::from_millis(500));
}

#[test]
fn a_cut_closes_and_discards_until_it_is_healed() {
    let relay = Relay::to(&echo_server());
    let stream = connect(&relay);
    relay.hold(Direction::Answers);
    ask(&stream, "one");
    assert!(wait_until(SOON, || relay.bytes(Direction::Requests) == 3));
    relay.cut();
    assert_eq!((&mut &stream).read(&mut [0]).unwrap(), 0);
    let refused = connect(&relay);
    assert_eq!((&mut &refused).read(&mut [0]).unwrap(), 0);
    relay.heal();
    let stream = connect(&relay);
    ask(&stream, "two");
    assert_eq!(answer(&stream, 3), "two");
}

#[test]
fn a_reset_is_seen_as_one() {
    let relay = Relay::to(&echo_server());
    let stream = connect(&relay);
    ask(&stream, "one");
    assert_eq!(answer(&stream, 3), "one");
    relay.reset();
    assert_eq!((&mut &stream).read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let stream = connect(&relay);
    ask(&stream, "two");
    assert_eq!(answer(&stream, 3), "two");
}

#[test]
fn the_end_of_either_side_passes_through() {
    let relay = Relay::to(&echo_server());
    let stream = connect(&relay);
    ask(&stream, "one");
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    (&mut &stream).read_to_string(&mut text).unwrap();
    assert_eq!(text, "one");
}

#[test]
fn a_server_that_is_not_there_looks_like_one_that_closes() {
    let port = testkit::Port::reserve();
    let relay = Relay::to(&port.addr().to_string());
    assert_eq!((&mut &connect(&relay)).read(&mut [0]).unwrap(), 0);
}
