//! `postgres://`: elections as rows of a table in PostgreSQL.

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

static SUMMARY: &str = "excludes all candidates of one PostgreSQL database; a fail-over ends every term, and where standbys are asynchronous \
                        two may lead until the old lease is over";

/// The schema, where the URL names none.
const SCHEMA: &str = "incumbent";

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
    let own: Vec<&str> = SERVER.iter().copied().chain(["schema", "sslmode"]).collect();
    url.only(&own)?;
    if url.hosts.is_empty() {
        return Err(bad("postgres: needs a host; write postgres://USER@127.0.0.1/DATABASE"));
    }
    let Some(user) = url.user.clone() else {
        return Err(bad("postgres: needs a user; write postgres://USER@HOST/DATABASE"));
    };
    let database = if url.path.is_empty() { user.clone() } else { url.path.clone() };
    if database.contains('/') {
        return Err(bad(
            "postgres: the path names one database; another schema than incumbent goes into schema=",
        ));
    }
    let tls = sql::tls(url, "sslmode", "disable", &["require", "verify-ca", "verify-full"])?;
    let config = Config { hosts: url.hosts.clone(), tls, password: url.secret()?, user, database };
    let schema = schema_of(url)?;
    let session = Session::new(config, &schema, settings.ttl);
    let ttl = settings.ttl;
    Ok(Box::new(move || Ok(Arc::new(RecordBackend::new(SqlStore::new(session, ttl, guarantees()))))))
}

/// What an administrator runs for the user of this URL.
pub(crate) fn schema(url: &StoreUrl) -> Result<String> {
    let schema = schema_of(url)?;
    let user = url.user.as_deref().unwrap_or_default();
    Ok(format!(
        "BEGIN;\n{}\n{}COMMIT;\n",
        statements::schema_sql(&schema),
        statements::grant_sql(&schema, user)
    ))
}

/// The schema that a URL names.
fn schema_of(url: &StoreUrl) -> Result<String> {
    let schema = url.parameter("schema").unwrap_or(SCHEMA);
    // The longest name that PostgreSQL does not cut off.
    if schema.is_empty() || schema.len() > 63 || schema.contains('\0') {
        return Err(bad("schema= is no name that PostgreSQL can keep: 1 to 63 bytes"));
    }
    Ok(schema.to_owned())
}
