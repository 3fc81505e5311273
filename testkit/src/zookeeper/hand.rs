//! What an operator does by hand, fast enough for a test: a session of its own, one request at a time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// An operator's connection. Dropping it ends its session.
#[derive(Debug)]
pub struct Hand {
    connection: TcpStream,
    number: i32,
}

/// A node as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Znode {
    /// What it holds.
    pub data: Vec<u8>,
    /// The transaction that created it.
    pub czxid: i64,
    /// The session that it ends with; 0: none.
    pub owner: i64,
    /// How often it was written.
    pub version: i32,
}

const PERSISTENT: i32 = 0;
const EPHEMERAL: i32 = 1;

impl Hand {
    /// Ends the session of another client, with all its nodes: as its holder, by the password that ZooKeeper makes of its number.
    ///
    /// # Panics
    /// If it cannot be done.
    #[track_caller]
    pub fn end_session(endpoint: &str, session: i64) {
        let connect = connect(session, &password(session));
        let close = bytes(&[&1_i32.to_be_bytes()[..], &(-11_i32).to_be_bytes()].concat());
        // The holder takes its session back as soon as it notices; both requests go together, and again if that came between.
        for _ in 0..50 {
            let mut connection = TcpStream::connect(endpoint).unwrap_or_else(|e| panic!("{endpoint}: {e}"));
            let mut answer = Vec::new();
            let asked = connection.write_all(&[bytes(&connect), close.clone()].concat());
            let read = asked.and_then(|()| connection.read_to_end(&mut answer));
            let ended = answer.get(12..20).is_some_and(|id| id == [0; 8]);
            let closed = read.is_ok() && answer.len() > 41;
            if ended || closed {
                return;
            }
        }
        panic!("session {session:#x} cannot be ended");
    }

    /// Takes the session of another client onto a connection of ours, which says nothing further. Dropping the connection ends it,
    /// not the session.
    ///
    /// # Panics
    /// If it cannot be done.
    #[track_caller]
    pub fn take_session(endpoint: &str, session: i64) -> TcpStream {
        // The holder may take it back meanwhile, which ends the connection.
        for _ in 0..50 {
            let mut connection = TcpStream::connect(endpoint).unwrap_or_else(|e| panic!("{endpoint}: {e}"));
            let mut answer = [0; 20];
            let asked = connection.write_all(&bytes(&connect(session, &password(session))));
            if asked.and_then(|()| connection.read_exact(&mut answer)).is_ok() {
                assert_eq!(answer[12..], session.to_be_bytes(), "ZooKeeper gives the session away");
                return connection;
            }
        }
        panic!("session {session:#x} cannot be taken");
    }

    /// Connects to a member as a new client.
    ///
    /// # Panics
    /// If it does not let us in.
    #[track_caller]
    pub fn connect(endpoint: &str) -> Hand {
        let connection = TcpStream::connect(endpoint).unwrap_or_else(|e| panic!("{endpoint}: {e}"));
        let second = Duration::from_secs(1);
        connection.set_read_timeout(Some(second * 20)).expect("a time limit");
        let mut hand = Hand { connection, number: 0 };
        hand.send(&connect(0, &[0; 16]));
        let answer = hand.receive();
        let granted = i64::from_be_bytes(answer[8..16].try_into().expect("8 bytes"));
        assert_ne!(granted, 0, "ZooKeeper grants no session");
        hand
    }

    /// Breaks the connection without a word, so that its session runs out.
    pub fn vanish(self) {
        let _ = self.connection.shutdown(std::net::Shutdown::Both);
    }

    /// The names of a node's children; none without the node.
    #[track_caller]
    pub fn children(&mut self, path: &str) -> Vec<String> {
        let Ok(answer) = self.ask(8, &[&text(path)[..], &[0]].concat()) else { return Vec::new() };
        let count = i32::from_be_bytes(answer[..4].try_into().expect("4 bytes"));
        let mut rest = &answer[4..];
        let mut next = || {
            let length = u32::from_be_bytes(rest[..4].try_into().expect("4 bytes")) as usize;
            let name = String::from_utf8_lossy(&rest[4..4 + length]).into_owned();
            rest = &rest[4 + length..];
            name
        };
        let mut names: Vec<String> = (0..count).map(|_| next()).collect();
        names.sort_by_key(|name| name[name.len().saturating_sub(10)..].to_owned());
        names
    }

    /// A node, if it is there.
    #[track_caller]
    pub fn get(&mut self, path: &str) -> Option<Znode> {
        let answer = self.ask(4, &[&text(path)[..], &[0]].concat()).ok()?;
        let length = i32::from_be_bytes(answer[..4].try_into().expect("4 bytes")).max(0) as usize;
        let stat = &answer[4 + length..];
        let long = |at: usize| i64::from_be_bytes(stat[at..at + 8].try_into().expect("8 bytes"));
        Some(Znode {
            data: answer[4..4 + length].to_vec(),
            czxid: long(0),
            owner: long(44),
            version: i32::from_be_bytes(stat[32..36].try_into().expect("4 bytes")),
        })
    }

    /// Creates a node that stays, open to all.
    #[track_caller]
    pub fn create(&mut self, path: &str, data: &str) {
        self.done(1, &[&text(path)[..], &text(data), &OPEN, &PERSISTENT.to_be_bytes()].concat());
    }

    /// Creates a node that ends with this connection's session.
    #[track_caller]
    pub fn create_ephemeral(&mut self, path: &str, data: &str) {
        self.done(1, &[&text(path)[..], &text(data), &OPEN, &EPHEMERAL.to_be_bytes()].concat());
    }

    /// Writes what a node holds.
    #[track_caller]
    pub fn set(&mut self, path: &str, data: &str) {
        self.done(5, &[&text(path)[..], &text(data), &(-1_i32).to_be_bytes()].concat());
    }

    /// Deletes a node.
    #[track_caller]
    pub fn delete(&mut self, path: &str) {
        self.done(2, &[&text(path)[..], &(-1_i32).to_be_bytes()].concat());
    }

    /// Deletes a node and those under it, as far as they are there and nobody creates others meanwhile.
    #[track_caller]
    pub fn clear(&mut self, path: &str) {
        for name in self.children(path) {
            self.clear(&format!("{path}/{name}"));
        }
        let _ = self.ask(2, &[&text(path)[..], &(-1_i32).to_be_bytes()].concat());
    }

    #[track_caller]
    fn done(&mut self, op: i32, record: &[u8]) {
        if let Err(code) = self.ask(op, record) {
            panic!("ZooKeeper refuses request {op}: code {code}");
        }
    }

    #[track_caller]
    fn ask(&mut self, op: i32, record: &[u8]) -> Result<Vec<u8>, i32> {
        self.number += 1;
        self.send(&[&self.number.to_be_bytes()[..], &op.to_be_bytes(), record].concat());
        let answer = self.receive();
        let int = |at: usize| i32::from_be_bytes(answer[at..at + 4].try_into().expect("4 bytes"));
        assert_eq!(int(0), self.number, "an answer to another request");
        match int(12) {
            0 => Ok(answer[16..].to_vec()),
            code => Err(code),
        }
    }

    #[track_caller]
    fn send(&mut self, body: &[u8]) {
        self.connection.write_all(&bytes(body)).unwrap_or_else(|e| panic!("cannot send to ZooKeeper: {e}"));
    }

    #[track_caller]
    fn receive(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        let mut read = |buffer: &mut [u8]| {
            self.connection.read_exact(buffer).unwrap_or_else(|e| panic!("no answer from ZooKeeper: {e}"));
        };
        read(&mut length);
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        read(&mut body);
        body
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let _ =
            self.connection.write_all(&bytes(&[&0_i32.to_be_bytes()[..], &(-11_i32).to_be_bytes()].concat()));
        let _ = self.connection.read(&mut [0; 64]);
    }
}

fn connect(session: i64, password: &[u8]) -> Vec<u8> {
    let parts = [
        &0_i32.to_be_bytes()[..],
        &0_i64.to_be_bytes(),
        &4000_i32.to_be_bytes(),
        &session.to_be_bytes(),
        &bytes(password),
        &[0],
    ];
    parts.concat()
}

/// One entry: all rights (31) for `world:anyone`.
const OPEN: [u8; 27] = *b"\0\0\0\x01\0\0\0\x1f\0\0\0\x05world\0\0\0\x06anyone";

fn bytes(data: &[u8]) -> Vec<u8> {
    let length = i32::try_from(data.len()).expect("a small record");
    [&length.to_be_bytes()[..], data].concat()
}

fn text(text: &str) -> Vec<u8> {
    bytes(text.as_bytes())
}

/// The password of a session: the first 16 bytes that Java's generator gives for its number.
fn password(session: i64) -> Vec<u8> {
    const MASK: u64 = (1 << 48) - 1;
    const MULTIPLIER: u64 = 0x5_DEEC_E66D;
    let seed = (session ^ 0xB341_5C00) as u64;
    let mut state = (seed ^ MULTIPLIER) & MASK;
    let mut next = || {
        state = state.wrapping_mul(MULTIPLIER).wrapping_add(0xB) & MASK;
        (state >> 16) as u32
    };
    (0..4).flat_map(|_| next().to_le_bytes()).collect()
}
