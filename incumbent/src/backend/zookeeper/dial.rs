//! From an address to a connection that holds a session.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use incumbent_core::Result;
use incumbent_core::ephemeral::Attachment;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::failure;
use super::jute::{FRAME_MAX, Reader, Writer, code, op, xid};
use crate::backend::tls::Tls;

/// Who we are to ZooKeeper. Shows its password to nobody but the server.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) user: String,
    pub(super) password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A session that a connection can ask for.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Ticket {
    /// 0 asks for a new one.
    pub(super) session: i64,
    pub(super) password: Vec<u8>,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.session)
    }
}

/// What a handshake came to.
pub(super) enum Handshake {
    /// The session is held from now on.
    Held(Box<dyn Io>, Attachment, Ticket),
    /// ZooKeeper has ended the session that was asked for.
    Ended,
    /// The server closed the connection in answer.
    Closed,
}

/// A connection, encrypted or not.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// How to reach one server.
#[derive(Clone, Debug)]
pub(super) struct Dialer {
    pub(super) host: Arc<str>,
    /// The host's name without its port.
    pub(super) name: String,
    pub(super) tls: Option<Tls>,
    pub(super) credentials: Option<Credentials>,
}

impl Dialer {
    /// Opens a connection and asks for the session of `ticket` on it.
    ///
    /// # Errors
    /// The server cannot be reached, does not answer as ZooKeeper, or refuses TLS or credentials. Nothing was written.
    pub(super) async fn attach(&self, ticket: &Ticket, ttl: Duration, seen: i64) -> Result<Handshake> {
        let sent_at = crate::clock::now();
        let mut io = self.dial().await?;
        let connect = Writer::default()
            .int(0)
            .long(seen)
            .int(i32::try_from(ttl.as_millis()).unwrap_or(i32::MAX))
            .long(ticket.session)
            .bytes(if ticket.password.is_empty() { &[0; 16] } else { &ticket.password })
            .bool(false);
        let Some(answer) = self.ask(&mut io, connect).await? else { return Ok(Handshake::Closed) };
        let Some((granted_ms, session, password)) = connected(&answer) else {
            return Err(failure::garbage(&self.host));
        };
        if granted_ms <= 0 || session == 0 {
            return Ok(Handshake::Ended);
        }
        let ttl = Duration::from_millis(granted_ms.unsigned_abs().into());
        if !self.authenticate(&mut io).await? {
            return Ok(Handshake::Closed);
        }
        let attachment = Attachment { session, sent_at, ttl };
        Ok(Handshake::Held(io, attachment, Ticket { session, password }))
    }

    async fn dial(&self) -> Result<Box<dyn Io>> {
        let named = |error: incumbent_core::Error| error.with_backend("zookeeper");
        // What is wrong with the files needs no server to be told.
        let tls = self.tls.as_ref().map(|tls| Ok((tls.config(&[])?, tls.server_name(&self.name)?)));
        let tls = tls.transpose().map_err(named)?;
        let tcp = self.connect().await?;
        let Some((config, name)) = tls else { return Ok(Box::new(tcp)) };
        match TlsConnector::from(Arc::new(config)).connect(name, tcp).await {
            Ok(io) => Ok(Box::new(io)),
            Err(cause) if ended(&cause) && self.speaks_plain_text().await => {
                Err(failure::not_tls(&self.host))
            }
            Err(cause) => Err(failure::cannot_connect(cause, &self.host)),
        }
    }

    async fn connect(&self) -> Result<TcpStream> {
        let cannot = |cause| failure::cannot_connect(cause, &self.host);
        let tcp = TcpStream::connect(&*self.host).await.map_err(cannot)?;
        tcp.set_nodelay(true).map_err(cannot)?;
        Ok(tcp)
    }

    /// A port without TLS takes what begins TLS for a packet that is too long, and closes the connection without a word. Asked for
    /// its state it says something, if only that this is not allowed.
    async fn speaks_plain_text(&self) -> bool {
        let Ok(mut io) = self.connect().await else { return false };
        let mut answer = [0; 4];
        io.write_all(b"srvr").await.is_ok() && io.read_exact(&mut answer).await.is_ok()
    }

    /// ZooKeeper takes any user and password; which nodes they open is up to those nodes. False if it closed the connection.
    async fn authenticate(&self, io: &mut Box<dyn Io>) -> Result<bool> {
        let Some(Credentials { user, password }) = &self.credentials else { return Ok(true) };
        let proof = format!("{user}:{password}");
        let request = Writer::request(xid::AUTH, op::AUTH).int(0).text("digest").text(&proof);
        let Some(answer) = self.ask(io, request).await? else { return Ok(false) };
        let mut answer = Reader(&answer);
        let (Some(_), Some(_), Some(answer)) = (answer.int(), answer.long(), answer.int()) else {
            return Err(failure::garbage(&self.host));
        };
        match answer {
            code::OK => Ok(true),
            refused => Err(failure::refused(refused, op::AUTH, "", &self.host)),
        }
    }

    /// `None` if the connection was closed in answer.
    async fn ask(&self, io: &mut Box<dyn Io>, request: Writer) -> Result<Option<Vec<u8>>> {
        let broken = |cause| match ended(&cause) {
            true => Ok(None),
            false => Err(failure::cannot_connect(cause, &self.host)),
        };
        if let Err(cause) = io.write_all(&request.into_frame()).await {
            return broken(cause);
        }
        let mut length = [0; 4];
        if let Err(cause) = io.read_exact(&mut length).await {
            return broken(cause);
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > FRAME_MAX {
            return Err(failure::garbage(&self.host));
        }
        let mut body = vec![0; length];
        match io.read_exact(&mut body).await {
            Ok(_) => Ok(Some(body)),
            Err(cause) => broken(cause),
        }
    }
}

/// True if the server closed the connection.
fn ended(cause: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(cause.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

/// Time in ms, session and its password, from the answer to a connect.
fn connected(answer: &[u8]) -> Option<(i32, i64, Vec<u8>)> {
    let mut answer = Reader(answer);
    answer.int()?;
    let (granted_ms, session) = (answer.int()?, answer.long()?);
    Some((granted_ms, session, answer.bytes()?.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_does_not_show_the_password() {
        let credentials = Credentials { user: "alice".into(), password: "s3cret".into() };
        assert!(!format!("{credentials:?}").contains("s3cret"));
        let ticket = Ticket { session: 16, password: b"s3cret".to_vec() };
        assert_eq!(format!("{ticket:?}"), "0x10");
    }

    #[test]
    fn an_answer_that_is_none_is_garbage() {
        assert_eq!(connected(b"HTTP"), None);
        let answer = Writer::default().int(0).int(2000).long(9).bytes(&[1; 16]).into_body();
        assert_eq!(connected(&answer), Some((2000, 9, vec![1; 16])));
    }
}
