//! What a URL says of this peer and of the others.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use incumbent_core::peers::ring::{Circulation, RingConfig};
use incumbent_core::peers::{ClaimConfig, Config as Rules, Criterion};
use incumbent_core::timing::PeerTiming;
use incumbent_core::{CandidateId, ElectionName, Error, ErrorKind, Result, Settings};
use ring::hmac;

use super::super::server;
use super::super::tls::Tls;
use super::roster::{self, Roster};
use crate::url::{Host, StoreUrl, bad, parse_host};

/// A shared secret is at least this long, in bytes: a guess takes for ever.
const SECRET_MIN: usize = 16;
/// More peers than this only make elections slower.
const MEMBERS_MAX: usize = 64;

const RAFT: &str = "raft";
const BULLY: &str = "bully";
const RING: &str = "ring";

/// How the peers elect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Algorithm {
    Raft,
    Bully,
    Ring(Circulation),
}

/// What a URL says.
#[derive(Clone)]
pub(crate) struct Config {
    pub(super) scheme: &'static str,
    pub(super) algorithm: Algorithm,
    /// Whether a majority decides. Without it every part of a network that falls apart has a leader.
    pub(super) majority: bool,
    pub(super) criterion: Criterion,
    /// This peer; `None`: only asks the others.
    pub(super) name: Option<CandidateId>,
    /// The peers as the URL says them: the first list, and where others are looked for.
    pub(super) members: BTreeMap<CandidateId, Host>,
    /// The list in force.
    pub(super) roster: Arc<Roster>,
    /// Where this peer keeps what must outlive it.
    pub(super) state: Option<PathBuf>,
    /// Where it is told how recent its data is.
    pub(super) data_version_file: Option<PathBuf>,
    pub(super) secret: Secret,
    /// `None`: plain text, on this machine only.
    pub(super) tls: Option<Tls>,
    pub(super) timing: PeerTiming,
}

/// What whoever speaks to these peers must know. Shown nowhere.
#[derive(Clone)]
pub(super) struct Secret(Arc<hmac::Key>);

impl Secret {
    fn new(bytes: &[u8]) -> Secret {
        Secret(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }

    pub(super) fn sign(&self, parts: &[&[u8]]) -> Vec<u8> {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        context.sign().as_ref().to_vec()
    }

    /// Takes the same time wherever the difference is.
    pub(super) fn verifies(&self, parts: &[&[u8]], proof: &[u8]) -> bool {
        let mut message = Vec::new();
        for part in parts {
            message.extend_from_slice(&(part.len() as u64).to_le_bytes());
            message.extend_from_slice(part);
        }
        hmac::verify(&self.0, &message, proof).is_ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The parameters of `raft://`, besides those of all; then come those of the others.
const PARAMETERS: [&str; 11] = [
    "peers",
    "state",
    "secret_file",
    "data_version_file",
    "tls",
    "ca",
    "cert",
    "key",
    "majority",
    "criterion",
    "variant",
];

impl Config {
    /// Understands `SCHEME://NAME?peers=NAME=HOST:PORT,…&state=DIR&secret_file=FILE`.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownScheme`], [`ErrorKind::InvalidConfig`].
    pub(super) fn new(url: &StoreUrl, settings: &Settings) -> Result<Config> {
        let (scheme, known) = match url.scheme.as_str() {
            RAFT => (RAFT, 8),
            BULLY => (BULLY, 10),
            RING => (RING, 11),
            other => {
                let text = format!(
                    "{other} is no election among peers; write {RAFT}://NAME?peers=…, {BULLY}: or {RING}:"
                );
                return Err(Error::new(ErrorKind::UnknownScheme, text));
            }
        };
        url.only(&PARAMETERS[..known])?;
        let choice = |parameter: &str, values: &[&str]| {
            let value = url.parameter(parameter).unwrap_or(values[0]);
            values
                .iter()
                .position(|known| *known == value)
                .ok_or_else(|| bad(format!("{scheme}: {parameter}={value} is none of {}", values.join(", "))))
        };
        let majority = scheme == RAFT || choice("majority", &["false", "true"])? == 1;
        let criterion = match choice("criterion", &["greatest-id", "most-recent-data"])? {
            0 => Criterion::GreatestId,
            _ => Criterion::MostRecentData,
        };
        let algorithm = match scheme {
            RAFT => Algorithm::Raft,
            BULLY => Algorithm::Bully,
            _ => Algorithm::Ring(match choice("variant", &["chang-roberts", "collect"])? {
                0 => Circulation::Greatest,
                _ => Circulation::Collect,
            }),
        };
        let example = format!("{scheme}://node-1?peers=node-1=10.0.0.1:7400,node-2=10.0.0.2:7400&state=DIR");
        if url.user.is_some() || url.password.is_some() || !url.path.is_empty() {
            return Err(bad(format!("{scheme}: has no user and no prefix; write {example}")));
        }
        let name = match url.hosts.as_slice() {
            [] => None,
            [Host { name, port: None }] => Some(member_name(name)?),
            _ => return Err(bad(format!("{scheme}: needs the name of this one peer; write {example}"))),
        };
        let members = members(url.parameter("peers").unwrap_or_default())
            .map_err(|reason| bad(format!("{scheme}: {reason}; write {example}")))?;
        if let Some(name) = name.as_ref().filter(|name| !members.contains_key(name)) {
            return Err(bad(format!("{scheme}: {name} is not among peers=; add it there, at all peers")));
        }
        let local = members.values().all(Host::is_loopback);
        let tls = server::tls_to(url, local)?;
        if !local && tls.is_none() {
            return Err(bad(format!(
                "{scheme}: peers on other machines speak TLS only; leave tls=off out and give ca=, cert= and key="
            )));
        }
        if tls.as_ref().is_some_and(|tls| tls.identity.is_none() || tls.ca.is_none()) {
            return Err(bad(format!(
                "{scheme}: peers show each other certificates; give ca= (the authority that signed them), cert= and key="
            )));
        }
        let secret = match (url.parameter("secret_file"), &tls) {
            (Some(path), _) => secret(path)?,
            (None, Some(_)) => Secret::new(b""),
            (None, None) => {
                return Err(bad(format!(
                    "{scheme}: peers on one machine need secret_file=, a file with one line of at least {SECRET_MIN} bytes that others cannot read"
                )));
            }
        };
        let path = |parameter| url.parameter(parameter).filter(|path| !path.is_empty()).map(PathBuf::from);
        Ok(Config {
            scheme,
            algorithm,
            majority,
            criterion,
            name,
            roster: Arc::new(Roster::of_url(&members)),
            members,
            state: path("state"),
            data_version_file: path("data_version_file"),
            secret,
            tls,
            timing: PeerTiming::new(settings.ttl, settings.drift_ppm)?,
        })
    }

    /// How many peers must be reached before anybody leads, this one too.
    pub(super) fn quorum(&self) -> usize {
        if self.majority { self.roster.get().list.quorum() } else { 1 }
    }

    /// What a peer of Bully is told.
    pub(super) fn bully(&self, rules: Rules) -> ClaimConfig {
        ClaimConfig { peers: rules, majority: self.majority, criterion: self.criterion }
    }

    /// What a peer of a ring is told.
    pub(super) fn ring(&self, rules: Rules) -> RingConfig {
        let circulation = match self.algorithm {
            Algorithm::Ring(circulation) => circulation,
            Algorithm::Raft | Algorithm::Bully => Circulation::Greatest,
        };
        RingConfig { claim: self.bully(rules), circulation }
    }

    /// All that must be equal at all peers besides their list, as text.
    pub(super) fn agreement(&self) -> String {
        let PeerTiming { ttl, drift_ppm, .. } = self.timing;
        let mut text = self.scheme.to_owned();
        if self.algorithm == Algorithm::Ring(Circulation::Collect) {
            text.push_str(" variant=collect");
        }
        if self.algorithm != Algorithm::Raft {
            let _ = write!(text, " majority={}", self.majority);
        }
        if self.criterion == Criterion::MostRecentData {
            text.push_str(" criterion=most-recent-data");
        }
        let _ = write!(text, " ttl={}ms drift={drift_ppm}ppm", ttl.as_millis());
        text
    }

    /// What to say if the URL says another list than the one in force.
    pub(super) fn behind(&self) -> Option<String> {
        let list = &self.roster.get().list;
        let behind = list.version > 1 && list.members != roster::first(&self.members).members;
        let text = roster::text(list);
        behind.then(|| {
            format!(
                "list {} of the peers is in force, and the URL says another one: write peers={text}",
                list.version
            )
        })
    }

    /// What this process was told.
    pub(super) fn told(&self) -> String {
        format!("{} peers={}", self.agreement(), roster::text(&roster::first(&self.members)))
    }

    /// How long a peer may be silent before this one gives up on what it asked.
    pub(super) fn patience(&self) -> Duration {
        (self.timing.ttl / 8).clamp(Duration::from_millis(100), Duration::from_secs(2))
    }

    pub(super) fn error(&self, kind: ErrorKind, text: impl Into<String>) -> Error {
        Error::new(kind, text).with_backend(self.scheme)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("name", &self.name)
            .field("told", &self.told())
            .field("state", &self.state)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

fn members(list: &str) -> Result<BTreeMap<CandidateId, Host>, String> {
    let mut members = BTreeMap::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (name, host) =
            part.split_once('=').ok_or_else(|| format!("{part:?} in peers= is no NAME=HOST:PORT"))?;
        let name = member_name(name).map_err(|error| error.to_string())?;
        let host = parse_host(host).map_err(|error| error.to_string())?;
        if host.port.is_none() {
            return Err(format!("{name} in peers= has no port"));
        }
        if members.values().any(|other| *other == host) {
            return Err(format!("two of peers= have the address of {name}"));
        }
        if members.insert(name.clone(), host).is_some() {
            return Err(format!("{name} stands twice in peers="));
        }
    }
    match members.len() {
        0 => Err("it needs peers=".to_owned()),
        1..=MEMBERS_MAX => Ok(members),
        many => Err(format!("{many} peers are more than {MEMBERS_MAX}; 3 or 5 are enough")),
    }
}

/// A peer's name stands in URLs and in logs: it keeps to the rule for elections.
pub(super) fn member_name(name: &str) -> Result<CandidateId> {
    if ElectionName::new(name).is_err() {
        return Err(bad(format!("{name:?} is no name of a peer; {}", ElectionName::RULE)));
    }
    CandidateId::new(name)
}

fn secret(path: &str) -> Result<Secret> {
    let bytes = std::fs::read(path)
        .map_err(|error| bad(format!("secret_file={path} cannot be read: {error}")).with_source(error))?;
    let secret = bytes.trim_ascii();
    if secret.len() < SECRET_MIN {
        return Err(bad(format!(
            "secret_file={path} holds fewer than {SECRET_MIN} bytes; make it as with: head -c 32 /dev/urandom | base64"
        )));
    }
    Ok(Secret::new(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(url: &str) -> Result<Config> {
        Config::new(&StoreUrl::parse(url)?, &Settings::default())
    }

    #[test]
    fn a_list_that_cannot_work_is_refused_with_the_reason() {
        for (url, hint) in [
            ("raft://a", "needs peers="),
            ("raft://a?peers=a", "no NAME=HOST:PORT"),
            ("raft://a?peers=a=127.0.0.1", "has no port"),
            ("raft://a?peers=a=127.0.0.1:1,a=127.0.0.1:2", "stands twice"),
            ("raft://a?peers=a=127.0.0.1:1,b=127.0.0.1:1", "the address of b"),
            ("raft://c?peers=a=127.0.0.1:1,b=127.0.0.1:2", "c is not among peers="),
            ("raft://a?peers=a=127.0.0.1:1", "need secret_file="),
            ("raft://a?peers=a=10.0.0.1:1&tls=off", "speak TLS only"),
            ("raft://a?peers=a=10.0.0.1:1", "give ca="),
            ("raft://a?peers=a=127.0.0.1:1&stat=x", "did you mean state?"),
            ("raft://me@a?peers=a=127.0.0.1:1", "has no user"),
            ("raft://a,b?peers=a=127.0.0.1:1", "this one peer"),
            ("raft://a?peers=a=127.0.0.1:1&majority=true", "majority"),
            ("bully://a?peers=a=127.0.0.1:1&majority=yes", "majority=yes is none of false, true"),
            ("bully://a?peers=a=127.0.0.1:1&variant=collect", "variant"),
            ("ring://a?peers=a=127.0.0.1:1&variant=token", "is none of chang-roberts, collect"),
            ("ring://a?peers=a=127.0.0.1:1&criterion=least", "is none of greatest-id, most-recent-data"),
            ("raft://a?peers=a=127.0.0.1:1&secret_file=/no/such/file", "cannot be read"),
            ("raft://a?peers=a=127.0.0.1:1&secret_file=/dev/null", "fewer than 16 bytes"),
        ] {
            let error = open(url).err().unwrap_or_else(|| panic!("{url} was taken"));
            assert!(error.to_string().contains(hint), "{url}: {error}");
        }
    }
}
