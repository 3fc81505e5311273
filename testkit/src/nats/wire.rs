//! A client of NATS that speaks its text protocol and asks one thing at a time: what an operator does with the `nats` command.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::{Error, Result};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection; it blocks.
#[derive(Debug)]
pub struct Wire {
    reader: BufReader<TcpStream>,
    asked: u64,
}

impl Wire {
    /// Connects to a server without TLS; `login` holds the fields of CONNECT that let it in.
    pub fn connect(addr: &str, login: &Value) -> Result<Wire> {
        Wire::connect_with(addr, |_| login.clone())
    }

    /// The same, where the server wants its nonce signed.
    pub(super) fn connect_with(addr: &str, login: impl FnOnce(&str) -> Value) -> Result<Wire> {
        let failed = |e: std::io::Error| Error::new(format!("nats at {addr}: {e}"));
        let stream = TcpStream::connect(addr).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let mut wire = Wire { reader: BufReader::new(stream), asked: 0 };
        let greeting = wire.line()?;
        let info: Value = serde_json::from_str(greeting.trim_start_matches("INFO ")).unwrap_or_default();
        let login = login(info["nonce"].as_str().unwrap_or_default());
        let mut connect = json!({"verbose": false, "pedantic": false, "headers": true, "no_responders": true, "lang": "testkit", "version": "0", "protocol": 1});
        if let (Some(connect), Some(login)) = (connect.as_object_mut(), login.as_object()) {
            connect.extend(login.clone());
        }
        wire.send(format!("CONNECT {connect}\r\nPING\r\n").as_bytes())?;
        wire.answer(|line| line.starts_with("PONG"))?;
        wire.send(b"SUB _INBOX.testkit.* 1\r\n")?;
        Ok(wire)
    }

    /// Sends `payload` with `headers` and gives what is answered.
    pub fn request(&mut self, subject: &str, headers: &[(&str, &str)], payload: &[u8]) -> Result<Vec<u8>> {
        self.asked += 1;
        let reply = format!("_INBOX.testkit.{}", self.asked);
        let mut head = String::from("NATS/1.0\r\n");
        for (name, value) in headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head.push_str("\r\n");
        let total = head.len() + payload.len();
        let mut message = format!("HPUB {subject} {reply} {} {total}\r\n{head}", head.len()).into_bytes();
        message.extend_from_slice(payload);
        message.extend_from_slice(b"\r\n");
        self.send(&message)?;
        loop {
            let line = self.answer(|line| line.starts_with("MSG ") || line.starts_with("HMSG "))?;
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |back: usize| {
                words.len().checked_sub(back).and_then(|at| words[at].parse::<usize>().ok()).unwrap_or(0)
            };
            let skipped = if words[0] == "HMSG" { number(2) } else { 0 };
            let mut body = vec![0; number(1) + 2];
            self.reader.read_exact(&mut body).map_err(|e| Error::new(format!("nats: {e}")))?;
            if words.get(1) == Some(&reply.as_str()) {
                body.truncate(body.len() - 2);
                return Ok(body.split_off(skipped));
            }
        }
    }

    /// Asks the API of JetStream.
    pub fn api(&mut self, subject: &str, request: &Value) -> Result<Value> {
        let text = if request.is_null() { String::new() } else { request.to_string() };
        let answer = self.request(&format!("$JS.API.{subject}"), &[], text.as_bytes())?;
        serde_json::from_slice(&answer).map_err(|e| Error::new(format!("nats {subject}: {e}")))
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.reader.get_mut().write_all(bytes).map_err(|e| Error::new(format!("nats: {e}")))
    }

    /// The next line that is `wanted`. PINGs on the way are answered, errors are returned.
    fn answer(&mut self, wanted: impl Fn(&str) -> bool) -> Result<String> {
        loop {
            let line = self.line()?;
            if wanted(&line) {
                return Ok(line);
            }
            if line.starts_with("PING") {
                self.send(b"PONG\r\n")?;
            } else if line.starts_with("-ERR") {
                return Err(Error::new(format!("nats: {line}")));
            }
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => Err(Error::new("nats: the server has closed the connection")),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(e) => Err(Error::new(format!("nats: {e}"))),
        }
    }
}
