//! `mysql://`: elections as rows of a table in MySQL or MariaDB.

mod bells;
mod failure;
mod link;
mod listen;
mod session;
mod statements;

use std::sync::Arc;
use std::time::Duration;

use incumbent_core::guarantees::{Exclusion, Expiry, Guarantees, Handover, Survives, TokenSource, Transfer};
use incumbent_core::{Result, Settings};

use self::link::Config;
use self::session::Session;
use super::record::RecordBackend;
use super::sql;
use super::sql::store::SqlStore;
use crate::thread::Factory;
use crate::url::{SERVER, StoreUrl, bad};

static SUMMARY: &str = "excludes all candidates of one MySQL or MariaDB database; a fail-over ends every term, and as replicas are asynchronous \
                        two may lead until the old lease is over";

pub(crate) fn guarantees() -> Guarantees {
    Guarantees {
        exclusion: Exclusion::AsyncReplicated,
        expiry: Expiry::Challenger,
        token: TokenSource::Hybrid,
        transfer: Transfer::Targeted,
        ttl_min: Duration::from_secs(1),
        renew_spacing: Duration::ZERO,
        expiry_slack: Duration::ZERO,
        takeover_ttls: 1,
        takeover_extra: Duration::ZERO,
        handover: Handover::Pushed,
        survives: Survives { crash: true, power_loss: true, failover: false },
        lists_candidates: false,
        summary: SUMMARY,
        not_applicable: &[],
    }
}

pub(crate) fn open(url: &StoreUrl, settings: &Settings) -> Result<Factory> {
    let own: Vec<&str> = SERVER.iter().copied().chain(["ssl-mode"]).collect();
    url.only(&own)?;
    if url.hosts.is_empty() {
        return Err(bad("mysql: needs a host; write mysql://USER@127.0.0.1/DATABASE"));
    }
    let Some(user) = url.user.clone().filter(|user| !user.is_empty()) else {
        return Err(bad("mysql: needs a user; write mysql://USER@HOST/DATABASE"));
    };
    if url.path.is_empty() || url.path.contains('/') {
        return Err(bad("mysql: the path names one database; write mysql://USER@HOST/DATABASE"));
    }
    let encrypted = ["REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"];
    let tls = sql::tls(url, "ssl-mode", "DISABLED", &encrypted)?;
    let (password, database) = (url.secret()?, url.path.clone());
    let config = Config { hosts: url.hosts.clone(), tls, password, user, database };
    let session = Session::new(config, settings.ttl)?;
    let ttl = settings.ttl;
    Ok(Box::new(move || Ok(Arc::new(RecordBackend::new(SqlStore::new(session, ttl, guarantees()))))))
}

/// What an administrator runs for the user of this URL.
pub(crate) fn schema(url: &StoreUrl) -> Result<String> {
    let user = url.user.as_deref().unwrap_or_default();
    Ok(format!(
        "{};\n{}",
        statements::schema(&session::random_name()?).join(";\n"),
        statements::grants(&url.path, user)
    ))
}
