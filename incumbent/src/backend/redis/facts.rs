//! What a server says about itself when a connection is made, and what of it weakens the promises.

use incumbent_core::{ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value, cmd};

use super::failure;

/// The lowest version: scripts that may run when memory is full, and whose refusals come before their first write.
const VERSION_MIN: u32 = 7;

/// The state of a server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Facts {
    version: String,
    is_replica: bool,
    is_loading: bool,
    is_cluster: bool,
    replicas: u32,
    maxmemory: u64,
    maxmemory_policy: String,
    appendonly: bool,
    /// `None` if the user may not ask.
    appendfsync: Option<String>,
}

impl Facts {
    /// Asks for them.
    pub(super) async fn ask(connection: &mut MultiplexedConnection) -> RedisResult<Facts> {
        let mut facts = Facts::default();
        for section in ["server", "replication", "persistence", "memory"] {
            let text: String = cmd("INFO").arg(section).query_async(connection).await?;
            text.lines()
                .filter_map(|line| line.trim_end().split_once(':'))
                .for_each(|(key, value)| facts.take(key, value));
        }
        // A right that a candidate need not have.
        let asked = cmd("CONFIG").arg("GET").arg("appendfsync").query_async::<Value>(connection).await;
        facts.appendfsync = asked.ok().and_then(|answer| {
            let map: std::collections::HashMap<String, String> = redis::from_redis_value(answer).ok()?;
            map.into_values().next()
        });
        Ok(facts)
    }

    fn take(&mut self, key: &str, value: &str) {
        match key {
            "redis_version" => self.version = value.to_owned(),
            "redis_mode" => self.is_cluster = value == "cluster",
            "role" => self.is_replica = value != "master",
            "connected_slaves" => self.replicas = value.parse().unwrap_or(0),
            "loading" => self.is_loading = value != "0",
            "aof_enabled" => self.appendonly = value != "0",
            "maxmemory" => self.maxmemory = value.parse().unwrap_or(0),
            "maxmemory_policy" => self.maxmemory_policy = value.to_owned(),
            _ => {}
        }
    }

    /// Refuses a server that cannot hold an election.
    pub(super) fn check(&self, host: &str) -> Result<()> {
        let major = self.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_none_or(|major| major < VERSION_MIN) {
            let text = format!("it is version {:?}; Redis {VERSION_MIN}.0 or newer is needed", self.version);
            return Err(failure::error(ErrorKind::InvalidConfig, host, text));
        }
        if self.is_cluster {
            return Err(failure::cluster(host));
        }
        if self.is_loading {
            return Err(failure::error(ErrorKind::Unavailable, host, "it is still loading its data"));
        }
        if self.is_replica {
            return Err(failure::replica(host));
        }
        Ok(())
    }

    /// What an operator should know or change, each as one line.
    pub(super) fn advice(&self) -> Vec<String> {
        let mut advice = Vec::new();
        if self.maxmemory > 0 && self.maxmemory_policy.starts_with("allkeys-") {
            advice.push(format!(
                "maxmemory-policy {} may evict the records of elections, which ends terms; set maxmemory-policy noeviction, or volatile-lru",
                self.maxmemory_policy
            ));
        }
        match (self.appendonly, self.appendfsync.as_deref()) {
            (false, _) => advice.push(
                "appendonly is off: a restart of Redis may forget who leads and what the last token was; set appendonly yes and appendfsync always".to_owned(),
            ),
            (true, None | Some("always")) => {}
            (true, Some(policy)) => advice.push(format!(
                "appendfsync {policy}: a power failure may forget the latest grants, and then two may lead for up to one ttl; set appendfsync always"
            )),
        }
        if self.replicas > 0 {
            advice.push(
                "it has replicas: a fail-over may forget the latest grants, and then two may lead for up to one ttl; only a fence at the resource protects".to_owned(),
            );
        }
        advice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_lost_is_said() {
        let mut facts = Facts { appendonly: true, appendfsync: Some("always".into()), ..Facts::default() };
        assert_eq!(facts.advice(), [""; 0]);
        facts.maxmemory_policy = "allkeys-lru".into();
        assert_eq!(facts.advice(), [""; 0], "without maxmemory nothing is evicted");
        facts.maxmemory = 1;
        assert!(facts.advice()[0].contains("noeviction"));
        facts.maxmemory_policy = "volatile-lru".into();
        assert_eq!(facts.advice(), [""; 0], "records have no time to live");
        facts.appendfsync = Some("everysec".into());
        assert!(facts.advice()[0].contains("everysec"));
    }
}
