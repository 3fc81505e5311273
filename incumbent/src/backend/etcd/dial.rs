//! TCP and TLS below gRPC, and finding out what a server speaks with which gRPC came to nothing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use incumbent_core::Result;
use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::failure;
use crate::backend::tls::{self, Tls};

/// With what an HTTP/2 client begins: the preface and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// How long a server may take to object to a handshake that it has taken part in.
const OBJECTION: Duration = Duration::from_millis(500);

/// Connects to one server.
#[derive(Clone)]
pub(super) struct Dialer {
    host: Arc<str>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// A connection, encrypted or not.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

impl Dialer {
    /// # Errors
    /// [`incumbent_core::ErrorKind::InvalidConfig`] if a certificate file cannot be used.
    pub(super) fn new(host: &str, tls: Option<&Tls>) -> Result<Dialer> {
        let tls = match tls {
            Some(tls) => {
                let config = tls.config(&[b"h2"]).map_err(|error| error.with_backend("etcd"))?;
                let name = tls.server_name(name_in(host)).map_err(|error| error.with_backend("etcd"))?;
                Some((TlsConnector::from(Arc::new(config)), name))
            }
            None => None,
        };
        Ok(Dialer { host: host.into(), tls })
    }

    async fn dial(self) -> io::Result<Box<dyn Io>> {
        let tcp = TcpStream::connect(&*self.host).await?;
        tcp.set_nodelay(true)?;
        match self.tls {
            None => Ok(Box::new(tcp)),
            Some((connector, name)) => Ok(Box::new(connector.connect(name, tcp).await?)),
        }
    }

    /// What is wrong, if the server speaks TLS and we do not or the other way round, or if it objects to our certificate.
    ///
    /// A failed gRPC connection does not tell this reliably: who writes to a connection that was closed in his face may
    /// never read the reason.
    pub(super) async fn diagnose(self) -> Option<String> {
        let plain = self.tls.is_none();
        if plain { self.speaks_tls().await } else { self.objects_to_tls().await }
    }

    async fn speaks_tls(self) -> Option<String> {
        // No authority is trusted, so the handshake of a server with TLS fails, in its own way.
        let config = tls::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let name = ServerName::try_from(name_in(&self.host).to_owned()).ok()?;
        let dialer = Dialer { tls: Some((TlsConnector::from(Arc::new(config)), name)), ..self };
        let failure = dialer.dial().await.err()?;
        failure::is_answer_in_tls(&failure).then(|| {
            "it speaks TLS only; use tls=on, and ca= if its authority is not one of the system's".to_owned()
        })
    }

    async fn objects_to_tls(self) -> Option<String> {
        match self.clone().dial().await {
            Err(failure) => match failure::tls_advice(&failure) {
                None if self.speaks_plain().await => Some(tls::NOT_TLS.to_owned()),
                advice => advice,
            },
            // With TLS 1.3 a server objects to a client's certificate after the client's part of the handshake.
            Ok(mut connection) => match timeout(OBJECTION, connection.read(&mut [0])).await {
                Ok(Err(failure)) => failure::tls_advice(&failure),
                _ => None,
            },
        }
    }

    /// True if the server answers HTTP/2 in plain text.
    async fn speaks_plain(self) -> bool {
        let greet = async {
            let mut connection = Dialer { tls: None, ..self }.dial().await?;
            connection.write_all(PREFACE).await?;
            let mut frame = [0; 9];
            connection.read_exact(&mut frame).await?;
            io::Result::Ok(frame[3] == 4) // SETTINGS
        };
        matches!(timeout(OBJECTION, greet).await, Ok(Ok(true)))
    }
}

impl Service<http::Uri> for Dialer {
    type Response = TokioIo<Box<dyn Io>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let dialing = self.clone().dial();
        Box::pin(async { Ok(TokioIo::new(dialing.await?)) })
    }
}

/// The name or address in `host:port`, without the brackets of an IPv6 address.
fn name_in(host: &str) -> &str {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name)
}
