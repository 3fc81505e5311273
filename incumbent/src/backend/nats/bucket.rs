//! What a bucket is: whether elections can live in it, and which history it has.

use incumbent_core::{Error, ErrorKind, Result};
use serde::Deserialize;

use super::failure::{self, Effect, Refusal};
use super::keys::Keys;

/// The lowest version that was seen to keep what it acknowledged with replicas. 2.9.10 acknowledges several writes of one revision.
pub(super) const REPLICATED_SINCE: Version = Version(2, 10, 27);

/// A version of nats-server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Version(u32, u32, u32);

impl Version {
    /// The numbers in front; what cannot be read counts as the oldest.
    pub(super) fn parse(text: &str) -> Version {
        let text = text.trim_start_matches('v');
        let mut numbers = text.split('.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().unwrap_or(0)
        });
        let mut next = || numbers.next().unwrap_or(0);
        Version(next(), next(), next())
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// What JetStream says about a bucket's stream.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Facts {
    /// When it was created, to the nanosecond: a bucket that was made anew counts its revisions from 1 again.
    pub(super) created: String,
    config: Config,
    #[serde(default)]
    cluster: Cluster,
}

#[derive(Clone, Debug, Deserialize)]
struct Config {
    storage: String,
    retention: String,
    #[serde(default)]
    max_age: u64,
    #[serde(default)]
    max_msgs: i64,
    #[serde(default)]
    max_bytes: i64,
    #[serde(default)]
    discard: String,
    #[serde(default)]
    num_replicas: u32,
    #[serde(default)]
    sealed: bool,
    mirror: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Cluster {
    leader: Option<String>,
    #[serde(default)]
    replicas: Vec<Peer>,
}

#[derive(Clone, Debug, Deserialize)]
struct Peer {
    name: String,
}

#[derive(Deserialize)]
struct Answer {
    error: Option<Refusal>,
    #[serde(flatten)]
    facts: Option<Facts>,
}

impl Facts {
    /// What `answer` to a question about the stream says.
    pub(super) fn parse(answer: &[u8], host: &str, keys: &Keys) -> Result<Facts> {
        let garbage = || failure::garbage(host, Effect::None);
        let answer: Answer = serde_json::from_slice(answer).map_err(|_| garbage())?;
        match answer.error {
            Some(refusal) => Err(refusal.explain(host, keys, Effect::None)),
            None => answer.facts.ok_or_else(garbage),
        }
    }

    /// True if several servers hold it.
    pub(super) fn is_replicated(&self) -> bool {
        self.config.num_replicas > 1
    }

    /// The server that leads it, by name; `None` without a cluster.
    pub(super) fn leader(&self) -> Option<&str> {
        self.cluster.leader.as_deref()
    }

    /// The servers that hold it, by name.
    pub(super) fn members(&self) -> impl Iterator<Item = &str> {
        self.cluster
            .leader
            .iter()
            .map(String::as_str)
            .chain(self.cluster.replicas.iter().map(|peer| &*peer.name))
    }

    fn is_bounded(&self) -> bool {
        self.config.max_msgs > 0 || self.config.max_bytes > 0
    }

    /// What an operator should know or change, each as one line.
    pub(super) fn advice(&self, keys: &Keys) -> Vec<String> {
        let bucket = &keys.bucket;
        let mut advice = Vec::new();
        if !self.is_replicated() {
            advice.push(format!(
                "the bucket {bucket} has one replica: elections stand still while its server does; in a cluster make it with --replicas=3"
            ));
        }
        if self.is_bounded() {
            advice.push(format!(
                "the bucket {bucket} is limited in size: when it is full, renewals are refused and terms end; make it without --max-bucket-size"
            ));
        }
        advice
    }

    /// Refuses a bucket in which a record can vanish, or that cannot be written.
    pub(super) fn check(&self, host: &str, keys: &Keys) -> Result<()> {
        let bucket = &keys.bucket;
        let wrong =
            |kind, text: &str| Err(failure::error(kind, host, format_args!("the bucket {bucket} {text}")));
        let config = &self.config;
        if config.storage != "file" {
            return wrong(
                ErrorKind::InvalidConfig,
                "is kept in memory, so a restart forgets who leads; make it with --storage=file",
            );
        }
        if config.max_age != 0 {
            return wrong(
                ErrorKind::InvalidConfig,
                "deletes what is older than its ttl (max_age), also the record of who leads; make it without one",
            );
        }
        if config.mirror.is_some() {
            return wrong(
                ErrorKind::ReadOnly,
                "is a mirror, which takes no writes; name the one that it mirrors",
            );
        }
        if config.sealed {
            return wrong(ErrorKind::ReadOnly, "is sealed and takes no writes; make another one");
        }
        if config.retention != "limits" || (self.is_bounded() && config.discard != "new") {
            return wrong(
                ErrorKind::InvalidConfig,
                "throws old records away when it is full; make it with nats kv add, which discards new ones instead",
            );
        }
        Ok(())
    }
}

/// The error for a server that is too old to hold a replicated bucket.
pub(super) fn too_old(name: &str, version: Version, host: &str, keys: &Keys) -> Error {
    failure::error(
        ErrorKind::InvalidConfig,
        host,
        format_args!(
            "the bucket {} has replicas and the server {name} is nats-server {version}, which may acknowledge two writes of one revision; upgrade every server to {REPLICATED_SINCE} or newer, or make the bucket with --replicas=1",
            keys.bucket
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        let old = ["2.9.10", "2.9.25", "2.10.3", "2.10.26-binary", "", "nonsense", "v2.10.9"];
        let new = ["2.10.27", "2.10.29", "2.11.0-preview.2", "2.12.1", "v3.0.0", "2.10.27-RC.1"];
        assert!(old.iter().all(|text| Version::parse(text) < REPLICATED_SINCE));
        assert!(new.iter().all(|text| Version::parse(text) >= REPLICATED_SINCE));
    }
}
