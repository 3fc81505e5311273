//! The first frames of a connection: who is there, whether both know the secret, and whether both mean the same cluster.
//!
//! Each side draws a challenge. Each proves that it knows the secret with an HMAC-SHA256 over all that was said by both, which
//! differs by direction, so that no proof can be sent back. What is wrong with a peer is told only to who has proved that.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use incumbent_core::peers::List;
use incumbent_core::{Authority, CandidateId, Error, ErrorKind, Nonce, Result};
use rustls::pki_types::{CertificateDer, ServerName};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::bytes::{Bytes, BytesMut};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::super::tls;
use super::config::Config;
use super::known::Known;
use super::roster;
use super::wire;
use crate::url::Host;

/// Why somebody is not spoken with.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Refused {
    /// Somebody must change something before it is worth another try.
    lasting: bool,
    text: String,
}

impl Refused {
    pub(super) fn for_now(text: impl Into<String>) -> Refused {
        Refused { lasting: false, text: text.into() }
    }

    fn for_good(text: impl Into<String>) -> Refused {
        Refused { lasting: true, text: text.into() }
    }

    fn error(self, config: &Config, who: &str) -> Unspoken {
        let kind = if self.lasting { ErrorKind::InvalidConfig } else { ErrorKind::Unavailable };
        Unspoken { error: config.error(kind, format!("{who}{}", self.text)), refused: true }
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) struct Unspoken {
    pub(super) error: Error,
    /// The other one is there, and one of both does not speak with the other.
    pub(super) refused: bool,
}

impl From<Error> for Unspoken {
    fn from(error: Error) -> Unspoken {
        Unspoken { refused: !error.is_retryable(), error }
    }
}

/// What every connection begins with.
const MAGIC: &[u8; 7] = b"INCPEER";
/// The version of all frames.
const VERSION: u8 = 3;
/// Longer than a greeting with the longest list.
const GREETING_MAX: usize = 64 * 1024;
/// How long a handshake may take.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub(super) type Connection = Framed<Box<dyn Stream>, LengthDelimitedCodec>;

/// Who this process is to others.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) config: Arc<Config>,
    /// `None`: no member, only asks.
    pub(super) member: Option<Membership>,
    /// Only wants to know whether this member would be let in.
    pub(super) trial: bool,
}

/// What a member shows.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    pub(super) cluster: Authority,
    pub(super) badge: Badge,
    /// The other members, as they were met first.
    pub(super) known: Arc<Known>,
}

/// A member, its state, and its process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Badge {
    pub(super) name: CandidateId,
    /// Drawn when its state was made.
    pub(super) nonce: Nonce,
    /// Drawn when its process started.
    pub(super) run: Nonce,
}

#[derive(Serialize, Deserialize)]
struct Greeting {
    cluster: Option<Authority>,
    badge: Option<Badge>,
    /// It is no member on this connection, and is told whether it could be one.
    trial: bool,
    /// Whom the sender means to speak to.
    to: Option<CandidateId>,
    agreement: String,
    /// The sender's list of peers.
    list: List,
    challenge: [u8; 32],
}

/// Connects to the member `to` and shows who this process is.
pub(super) async fn dial(own: &Own, to: &CandidateId) -> core::result::Result<Connection, Unspoken> {
    let listed = own.config.roster.get();
    let host = listed
        .host(to)
        .ok_or_else(|| own.config.error(ErrorKind::InvalidConfig, format!("{to} is no peer of the list")))?;
    let address = host.authority(0);
    let unreachable = |error: io::Error| {
        let text = format!("{to} at {address} cannot be reached: {error}");
        own.config.error(ErrorKind::Unavailable, text).with_source(error)
    };
    let greeted = async {
        let tcp = TcpStream::connect((host.name.as_str(), host.port.unwrap_or_default())).await;
        let tcp = tcp.map_err(unreachable)?;
        prepare(&tcp, own.config.timing.ttl);
        let stream: Box<dyn Stream> = match &own.config.tls {
            None => Box::new(tcp),
            Some(tls) => {
                let connector = tokio_rustls::TlsConnector::from(Arc::new(tls.config(&[])?));
                let stream = connector.connect(tls.server_name(&host.name)?, tcp).await;
                Box::new(stream.map_err(|error| match tls::advice(&error) {
                    Some(advice) => {
                        own.config.error(ErrorKind::Denied, format!("{to} at {address}: {advice}"))
                    }
                    None => unreachable(error),
                })?)
            }
        };
        introduce(own, to, stream).await
    };
    let limited = tokio::time::timeout(LIMIT.min(own.config.timing.ttl.max(Duration::from_secs(1))), greeted);
    limited.await.unwrap_or_else(|_| {
        let text = format!("{to} at {address} does not answer");
        Err(own.config.error(ErrorKind::Unavailable, text).into())
    })
}

async fn introduce(
    own: &Own,
    to: &CandidateId,
    stream: Box<dyn Stream>,
) -> core::result::Result<Connection, Unspoken> {
    let mut connection = frames(stream);
    let said = greeting(own, Some(to.clone()))?;
    let cut = |error| cut(&own.config, to, error);
    send(&mut connection, said.clone()).await.map_err(cut)?;
    let heard = receive(&mut connection).await.map_err(cut)?;
    let theirs =
        understand(&heard).map_err(|why| own.config.error(ErrorKind::Unsupported, format!("{to}: {why}")))?;
    let proof = receive(&mut connection).await.map_err(cut)?;
    if !own.config.secret.verifies(&[b"accepts", &said, &heard], &proof) {
        let text = format!("{to} knows another secret; give all peers the same secret_file=");
        return Err(own.config.error(ErrorKind::Denied, text).into());
    }
    let proof = own.config.secret.sign(&[b"dials", &said, &heard]);
    send(&mut connection, proof.into()).await.map_err(cut)?;
    let verdict = receive(&mut connection).await.map_err(cut)?;
    let wrong = |text: String| Unspoken::from(own.config.error(ErrorKind::InvalidConfig, text));
    if let Err(refused) = wire::decode::<core::result::Result<(), Refused>>(&verdict)? {
        return Err(refused.error(&own.config, &format!("{to} refuses this peer: ")));
    }
    let Some(badge) = theirs.badge.clone() else {
        return Err(wrong(format!("at the address of {to} answers who is no peer; check peers=")));
    };
    if badge.name != *to {
        return Err(wrong(format!(
            "at the address of {to} answers {}; check the addresses in peers=",
            badge.name
        )));
    }
    if let Some(member) = &own.member {
        agree(own, member, &theirs, &badge).await.map_err(|refused| refused.error(&own.config, ""))?;
    }
    connection.codec_mut().set_max_frame_length(wire::FRAME_MAX);
    Ok(connection)
}

/// Who has dialed.
pub(super) struct Caller {
    pub(super) connection: Connection,
    /// `None`: no member, only asks.
    pub(super) badge: Option<Badge>,
}

/// Speaks with whoever has connected. `admit` has the last word on a member, or on who is told whether it could be one.
///
/// # Errors
/// Why the connection is to be dropped, for the log.
pub(super) async fn accept(
    own: &Own,
    tcp: TcpStream,
    admit: impl FnOnce(&Badge, bool) -> core::result::Result<(), Refused>,
) -> core::result::Result<Caller, String> {
    prepare(&tcp, own.config.timing.ttl);
    let greeted = async {
        let (stream, certificate): (Box<dyn Stream>, _) = match &own.config.tls {
            None => (Box::new(tcp), None),
            Some(tls) => {
                let config = tls.server_config().map_err(|error| error.to_string())?;
                let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
                let stream = acceptor.accept(tcp).await.map_err(|error| format!("TLS: {error}"))?;
                let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                let certificate = certificate.map(|certificate| certificate.clone().into_owned());
                (Box::new(stream), certificate)
            }
        };
        answer(own, stream, certificate, admit).await
    };
    let limited = tokio::time::timeout(LIMIT, greeted);
    limited.await.unwrap_or_else(|_| Err("it said nothing for too long".to_owned()))
}

async fn answer(
    own: &Own,
    stream: Box<dyn Stream>,
    certificate: Option<CertificateDer<'static>>,
    admit: impl FnOnce(&Badge, bool) -> core::result::Result<(), Refused>,
) -> core::result::Result<Caller, String> {
    let mut connection = frames(stream);
    let text = |error: io::Error| error.to_string();
    let heard = receive(&mut connection).await.map_err(text)?;
    let said = greeting(own, None).map_err(|error| error.to_string())?;
    if heard.starts_with(MAGIC) {
        // Of another release: it sees of which one this is, and says so to its user.
        send(&mut connection, said.clone()).await.map_err(text)?;
    }
    let theirs = understand(&heard)?;
    let proof = own.config.secret.sign(&[b"accepts", &heard, &said]);
    send(&mut connection, proof.into()).await.map_err(text)?;
    let proof = receive(&mut connection).await.map_err(text)?;
    if !own.config.secret.verifies(&[b"dials", &heard, &said], &proof) {
        return Err("it knows another secret; give all peers the same secret_file=".to_owned());
    }
    let verdict = judge(own, &theirs, certificate.as_ref()).await.and_then(|()| match &theirs.badge {
        Some(badge) => admit(badge, theirs.trial),
        None => Ok(()),
    });
    let frame = wire::encode(&verdict).map_err(|error| error.to_string())?;
    send(&mut connection, frame).await.map_err(text)?;
    verdict.map_err(|refused| refused.text)?;
    connection.codec_mut().set_max_frame_length(wire::FRAME_MAX);
    Ok(Caller { connection, badge: theirs.badge.filter(|_| !theirs.trial) })
}

async fn judge(
    own: &Own,
    theirs: &Greeting,
    certificate: Option<&CertificateDer<'static>>,
) -> core::result::Result<(), Refused> {
    let Some(member) = &own.member else { return Err(Refused::for_good("this is no peer")) };
    let me = &member.badge.name;
    if let Some(to) = theirs.to.as_ref().filter(|to| *to != me) {
        return Err(Refused::for_good(format!("this is {me}, not {to}; check the addresses in peers=")));
    }
    let Some(badge) = &theirs.badge else { return Ok(()) };
    agree(own, member, theirs, badge).await?;
    if let (Some(certificate), Some(host)) = (certificate, own.config.roster.get().host(&badge.name)) {
        certified(certificate, host).map_err(|why| {
            Refused::for_good(format!(
                "the certificate of {} is not for its address in peers=, {}: {why}",
                badge.name, host.name
            ))
        })?;
    }
    Ok(())
}

/// What must be equal at both, and who the other is.
async fn agree(
    own: &Own,
    member: &Membership,
    theirs: &Greeting,
    badge: &Badge,
) -> core::result::Result<(), Refused> {
    let (me, name) = (&member.badge.name, &badge.name);
    if theirs.cluster.as_ref() != Some(&member.cluster) {
        let other = theirs.cluster.as_ref().map_or("none", Authority::as_str);
        let text = format!("{name} belongs to the cluster {other}, {me} to {}", member.cluster);
        return Err(Refused::for_good(text));
    }
    if name == me {
        return Err(Refused::for_good(format!("two peers are called {me}; give each a name of its own")));
    }
    let agreement = own.config.agreement();
    if theirs.agreement != agreement {
        return Err(Refused::for_good(format!(
            "peers must be told the same; {name} was told {}, {me} was told {agreement}",
            theirs.agreement
        )));
    }
    let (listed, other) = (own.config.roster.get(), &theirs.list);
    let list = &listed.list;
    if list.version == other.version && list != other {
        return Err(Refused::for_good(format!(
            "peers must be told the same; {name} was told peers={}, {me} was told peers={}, both as list {}",
            roster::text(other),
            roster::text(list),
            list.version
        )));
    }
    // A peer that is to be added is told its list by any member.
    if list.version > 0 && other.version > 0 && listed.host(name).is_none() {
        return Err(Refused::for_now(format!(
            "{name} is not in list {} of {me}; add it with incumbent peer add",
            list.version
        )));
    }
    let trial = own.trial || theirs.trial;
    member.known.meet(name, badge.nonce, !trial).await.map_err(|error| match error.kind() {
        ErrorKind::InvalidConfig => Refused::for_good(error.to_string()),
        _ => Refused::for_now(error.to_string()),
    })
}

fn certified(certificate: &CertificateDer<'_>, host: &Host) -> core::result::Result<(), String> {
    let name = ServerName::try_from(host.name.as_str()).map_err(|error| error.to_string())?;
    let parsed =
        rustls::server::ParsedCertificate::try_from(certificate).map_err(|error| error.to_string())?;
    rustls::client::verify_server_name(&parsed, &name).map_err(|error| error.to_string())
}

fn greeting(own: &Own, to: Option<CandidateId>) -> Result<Bytes> {
    let mut challenge = [0; 32];
    getrandom::fill(&mut challenge).map_err(|error| {
        Error::new(ErrorKind::Internal, "the operating system gives no random numbers").with_source(error)
    })?;
    let greeting = Greeting {
        cluster: own.member.as_ref().map(|member| member.cluster.clone()),
        badge: own.member.as_ref().map(|member| member.badge.clone()),
        trial: own.trial,
        to,
        agreement: own.config.agreement(),
        list: own.config.roster.get().list.clone(),
        challenge,
    };
    let body = wire::encode(&greeting)?;
    Ok([MAGIC.as_slice(), &[VERSION], &body].concat().into())
}

fn understand(frame: &[u8]) -> core::result::Result<Greeting, String> {
    let Some((version, body)) = frame.strip_prefix(MAGIC).and_then(<[u8]>::split_first) else {
        return Err("it does not speak as a peer does".to_owned());
    };
    if *version != VERSION {
        return Err(format!(
            "it speaks version {version} of the peers' protocol, this one {VERSION}; use one release"
        ));
    }
    wire::decode(body).map_err(|error| error.to_string())
}

/// As the acceptor understands a first frame; for the tests that feed it anything.
pub(super) fn is_greeting(frame: &[u8]) -> bool {
    understand(frame).is_ok()
}

fn frames(stream: Box<dyn Stream>) -> Connection {
    let mut codec = wire::codec();
    codec.set_max_frame_length(GREETING_MAX);
    Framed::new(stream, codec)
}

async fn send(connection: &mut Connection, frame: Bytes) -> io::Result<()> {
    connection.send(frame).await
}

async fn receive(connection: &mut Connection) -> io::Result<BytesMut> {
    let closed = || io::Error::new(io::ErrorKind::UnexpectedEof, "the other end closed it");
    connection.next().await.unwrap_or_else(|| Err(closed()))
}

/// A small frame goes out at once, and a host that vanished is noticed within a ttl.
fn prepare(tcp: &TcpStream, ttl: Duration) {
    // Without these it works, only slower.
    let _ = tcp.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = rustix::net::sockopt::set_tcp_user_timeout(tcp, ttl.as_millis().try_into().unwrap_or(u32::MAX));
    #[cfg(not(target_os = "linux"))]
    let _ = ttl;
}

/// The other side ended it; with TLS it may have said why.
fn cut(config: &Config, to: &CandidateId, error: io::Error) -> Error {
    let (kind, why) = match tls::advice(&error) {
        Some(advice) => (ErrorKind::Denied, advice),
        None if error.kind() == io::ErrorKind::InvalidData => (
            ErrorKind::Denied,
            "it does not speak as a peer does; all peers speak TLS, or none does, and check the port"
                .to_owned(),
        ),
        None => (ErrorKind::Unavailable, error.to_string()),
    };
    config.error(kind, format!("{to} cut the connection in the handshake: {why}")).with_source(error)
}
