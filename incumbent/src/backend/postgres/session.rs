//! Which server is talked to, in which history its answers stand, and the statements on its connections.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use incumbent_core::record::{RecordKey, TokenRule};
use incumbent_core::{Authority, BootInstant, BoxFuture, Error, ErrorKind, Result, Stored, Swapped};
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::failure::{self, Effect, Failure};
use super::link::{Config, Link};
use super::listen;
use super::statements::{Statements, schema_sql};
use crate::backend::sql::hints::Hints;
use crate::backend::sql::lane::Runner;
use crate::backend::sql::store::Server;
use crate::backend::sql::{Ask, Told, hosts, note_name};

/// What connections have in common.
pub(super) struct Session {
    config: Config,
    statements: Statements,
    /// A host that has not answered for this long gets company by the next one.
    patience: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The host that is talked to: one at a time, or answers of an old primary and a new one would mix.
    host: Option<usize>,
    identity: Option<Identity>,
    warned: bool,
}

/// Which database answers, and in which history.
#[derive(Clone, PartialEq, Eq)]
struct Identity {
    system: i64,
    timeline: u32,
    database: String,
}

/// The columns that come first in every answer.
const HERE: usize = 6;

impl Session {
    pub(super) fn new(config: Config, schema: &str, ttl: Duration) -> Session {
        let patience = (ttl / 60).clamp(Duration::from_millis(50), Duration::from_millis(250));
        // Well within the time that an elector gives a call.
        let lock_patience = (ttl / 15).clamp(Duration::from_millis(50), Duration::from_secs(1));
        Session {
            config,
            statements: Statements::new(schema, lock_patience),
            patience,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn schema(&self) -> &str {
        &self.statements.schema
    }

    /// Connects to the server that may write, all hosts tried.
    ///
    /// # Errors
    /// What is wrong with the hosts: with the only one, or with all.
    pub(super) async fn dial(&self) -> Result<Link> {
        let all = 0..self.config.hosts.len();
        let first = self.state().host.unwrap_or(0);
        let order = all.clone().cycle().skip(first).take(all.len()).collect();
        match hosts::first_that_works(order, self.patience, |index| self.try_dial(index)).await {
            Ok(link) => {
                self.state().host = Some(link.index);
                Ok(link)
            }
            Err(failures) => {
                let silent = |index| format!("PostgreSQL at {}", self.config.host(index));
                Err(hosts::summary(failures, self.config.hosts.len(), silent, "postgres"))
            }
        }
    }

    async fn try_dial(&self, index: usize) -> Result<Link> {
        let link = Link::dial(&self.config, index).await?;
        let answer = link.query(&self.statements.greet, &[], Effect::None).await?;
        self.check(&link, answer.rows.first(), false)?;
        Ok(link)
    }

    /// Refuses an answer that is worth nothing: a standby's, an old primary's, one whose commit does not last, or one of another
    /// server than the one in use.
    fn check(&self, link: &Link, row: Option<&Row>, wrote: bool) -> Result<()> {
        let refuse = |kind, text: &str| Err(failure::error(kind, link.host(), text).ambiguous(wrote));
        let garbage =
            || failure::error(ErrorKind::Unavailable, link.host(), "the answer lacks what was asked for");
        let row = row.ok_or_else(garbage)?;
        let text = |column: usize| row.try_get::<_, Option<&str>>(column).ok().flatten().unwrap_or_default();
        if row.try_get(1).unwrap_or(true) {
            return refuse(ErrorKind::ReadOnly, "it is a standby, which only reads; name the primary too");
        }
        if matches!(text(0), "off" | "local" | "") {
            return refuse(
                ErrorKind::Unavailable,
                "synchronous_commit could not be set to on, so its commits prove nothing",
            );
        }
        let identity = Identity {
            system: row.try_get(2).map_err(|_| garbage())?,
            timeline: u32::from_str_radix(text(3), 16).map_err(|_| garbage())?,
            database: text(4).to_owned(),
        };
        let mut state = self.state();
        if text(5) == "off" && !std::mem::replace(&mut state.warned, true) {
            tracing::warn!(
                host = link.host(),
                "fsync is off at this PostgreSQL: after a crash it may have forgotten who leads"
            );
        }
        if wrote && state.host.is_some_and(|host| host != link.index) {
            return refuse(ErrorKind::Unavailable, "another host has been chosen meanwhile");
        }
        match &state.identity {
            Some(known) if known.system != identity.system || known.database != identity.database => {
                return refuse(
                    ErrorKind::StoreRegressed,
                    "it is another database than the one that was used before; if that is meant, start this process anew",
                );
            }
            Some(known) if known.timeline > identity.timeline => {
                return refuse(
                    ErrorKind::Unavailable,
                    "it was a primary before a failover; stop it, it may still be written to",
                );
            }
            Some(known) if known.timeline < identity.timeline => {
                tracing::warn!(
                    host = link.host(),
                    timeline = identity.timeline,
                    "PostgreSQL has failed over"
                );
            }
            _ => {}
        }
        state.identity = Some(identity);
        Ok(())
    }

    /// Runs a statement for all of `asks`, which are of one kind, and understands its rows.
    async fn statement(
        &self,
        link: &Link,
        asks: &[&Ask],
        form: Form,
        sent_at: BootInstant,
    ) -> Result<Vec<Told>, Failure> {
        let columns = Columns::of(asks)?;
        let (sql, parameters) = columns.for_statement(&self.statements, form);
        let effect = if form == Form::Read { Effect::None } else { Effect::Write };
        let answer = match link.query(sql, &parameters, effect).await {
            Err(failure) if failure.is(&[SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_SCHEMA]) => {
                self.make_schema(link).await?;
                link.query(sql, &parameters, effect).await?
            }
            answer => answer?,
        };
        self.check(link, answer.rows.first(), effect == Effect::Write)?;
        if effect == Effect::Write && !answer.notices.is_empty() {
            let text =
                format!("its commit proves nothing, since it came with a {}", answer.notices.join("; "));
            return Err(failure::error(ErrorKind::Unavailable, link.host(), text).ambiguous(true).into());
        }
        let mut told = vec![Told::Busy; asks.len()];
        for row in &answer.rows {
            let (nr, one) = self.understand(row, form, sent_at).map_err(|cause| {
                failure::error(
                    ErrorKind::Corrupt,
                    link.host(),
                    "the table record is not as `incumbent doctor --print-schema` makes it",
                )
                .ambiguous(effect == Effect::Write)
                .with_source(cause)
            })?;
            if let Some(place) = told.get_mut(nr) {
                *place = one;
            }
        }
        Ok(told)
    }

    fn understand(
        &self,
        row: &Row,
        form: Form,
        sent_at: BootInstant,
    ) -> Result<(usize, Told), tokio_postgres::Error> {
        let nr = row.try_get::<_, i64>(HERE)? as usize - 1;
        let version = row.try_get::<_, Option<i64>>(HERE + 1)?;
        let token = row.try_get::<_, Option<i64>>(HERE + 2)?;
        let told = match (version.zip(token), form) {
            (None, Form::Read) => Told::Found(None),
            (Some((version, token)), Form::Read) => Told::Found(Some(Stored {
                version: version as u64,
                token: token as u64,
                body: row.try_get(HERE + 3)?,
            })),
            (Some((version, token)), _) => {
                Told::Swapped(Swapped::Done { version: version as u64, token: token as u64, sent_at })
            }
            (None, Form::Create) => Told::Swapped(Swapped::Conflict),
            // Not written although it was as expected: locked, or written by another in that very moment.
            (None, _) if row.try_get(HERE + 3)? => Told::Busy,
            (None, _) => Told::Swapped(Swapped::Conflict),
        };
        Ok((nr, told))
    }

    async fn make_schema(&self, link: &Link) -> Result<()> {
        let schema = self.schema();
        let made = link.batch(&schema_sql(schema)).await;
        made.map_err(|failure| match failure.kind() {
            ErrorKind::Denied => failure::error(
                ErrorKind::Denied,
                link.host(),
                format_args!(
                    "the table {schema}.record is not there and this user may not make it: have an administrator run what \
                     `incumbent doctor --print-schema` prints"
                ),
            )
            .with_source(failure),
            _ => failure,
        })
    }

    async fn end_older(&self, link: &Link, key: &RecordKey) -> Result<()> {
        let election = key.election.as_str();
        let answer = link.query(&self.statements.end_older, &[(&election, Type::TEXT)], Effect::None).await?;
        let spared = answer.rows.first().and_then(|row| row.try_get::<_, Option<String>>(0).ok().flatten());
        match spared {
            None => Ok(()),
            Some(spared) => Err(failure::error(
                ErrorKind::Unavailable,
                link.host(),
                format_args!(
                    "transactions of an older term are under way, and this role may not end them: {spared}; end them, or grant it \
                     pg_signal_backend"
                ),
            )),
        }
    }
}

impl Runner for Session {
    type Link = Link;

    fn scheme(&self) -> &'static str {
        "postgres"
    }

    fn connect(self: Arc<Self>) -> BoxFuture<'static, Result<Link>> {
        Box::pin(async move {
            match timeout(hosts::SEARCH * 2, self.dial()).await {
                Ok(link) => link,
                Err(_) => Err(Error::new(ErrorKind::Unavailable, "no host answers").with_backend("postgres")),
            }
        })
    }

    /// What comes of it does not matter: the tables may not be there yet.
    fn warm_up<'a>(&'a self, link: &'a mut Link) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let work = async {
                if let Ok(columns) = Columns::of(&[]) {
                    let (sql, parameters) = columns.for_statement(&self.statements, Form::Take);
                    let _ = link.query(sql, &parameters, Effect::None).await;
                }
                let _ = link.query(&self.statements.end_older, &[(&"", Type::TEXT)], Effect::None).await;
                let _ = link.query(&self.statements.rehearse, &[], Effect::None).await;
            };
            let _ = timeout(hosts::SEARCH, work).await;
        })
    }

    fn is_stale(&self, link: &Link) -> bool {
        link.is_closed() || self.state().host.is_some_and(|host| host != link.index)
    }

    fn run<'a>(
        &'a self,
        link: &'a mut Link,
        asks: &'a [Ask],
        sent_at: BootInstant,
    ) -> BoxFuture<'a, Result<Vec<Told>>> {
        Box::pin(async move {
            let mut told = vec![Told::Busy; asks.len()];
            for form in [Form::Read, Form::Create, Form::Renew, Form::Take] {
                let (places, some): (Vec<_>, Vec<_>) =
                    asks.iter().enumerate().filter(|(_, ask)| Form::of(ask) == form).unzip();
                if some.is_empty() {
                    continue;
                }
                for (place, one) in places.into_iter().zip(self.statement(link, &some, form, sent_at).await?)
                {
                    told[place] = one;
                }
            }
            Ok(told)
        })
    }
}

impl Server for Session {
    /// The same after a failover.
    fn authority(&self) -> Authority {
        let state = self.state();
        let Some(Identity { system, database, .. }) = &state.identity else {
            return Authority::new("postgres:");
        };
        Authority::new(format!("postgres:{system}/{database}/{}", self.statements.schema))
    }

    /// The system identifier and the timeline: a promotion begins a new one.
    fn lineage(&self) -> Option<String> {
        let state = self.state();
        state.identity.as_ref().map(|identity| format!("{}/{}", identity.system, identity.timeline))
    }

    /// Whoever wants to acquire has waited until the lease in the record is over: transactions that still prove that term are ended.
    fn run_waiting<'a>(
        &'a self,
        link: &'a mut Link,
        ask: &'a Ask,
        sent_at: BootInstant,
    ) -> BoxFuture<'a, Result<Told>> {
        Box::pin(async move {
            let told = match self.statement(link, &[ask], Form::TakeWaiting, sent_at).await {
                Err(failure)
                    if failure.is(&[SqlState::LOCK_NOT_AVAILABLE]) && Form::of(ask) == Form::Take =>
                {
                    self.end_older(link, ask.key()).await?;
                    self.statement(link, &[ask], Form::TakeWaiting, sent_at).await?
                }
                told => told?,
            };
            Ok(told.into_iter().next().unwrap_or(Told::Busy))
        })
    }

    fn listen(self: Arc<Self>, hints: Arc<Hints>) -> BoxFuture<'static, ()> {
        Box::pin(listen::run(self, hints))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Read,
    Create,
    Renew,
    Take,
    TakeWaiting,
}

impl Form {
    fn of(ask: &Ask) -> Form {
        match ask {
            Ask::Read(_) => Form::Read,
            Ask::Create { .. } => Form::Create,
            // It leaves the token alone, so no transaction that proves the term by it needs to end first.
            Ask::Swap { token: TokenRule::Keep, .. } => Form::Renew,
            Ask::Swap { .. } => Form::Take,
        }
    }
}

/// The parameters of one statement, each an array.
#[derive(Default)]
struct Columns<'a> {
    elections: Vec<&'a str>,
    notes: Vec<&'a str>,
    versions: Vec<i64>,
    tokens_were: Vec<i64>,
    /// `None`: any.
    bodies_were: Vec<Option<&'a [u8]>>,
    /// `None` keeps it, -1 raises it.
    tokens: Vec<Option<i64>>,
    bodies: Vec<Option<&'a [u8]>>,
}

impl<'a> Columns<'a> {
    fn of(asks: &[&'a Ask]) -> Result<Columns<'a>> {
        let mut columns = Columns::default();
        for ask in asks {
            let RecordKey { election, .. } = ask.key();
            columns.elections.push(election.as_str());
            columns.notes.push(note_name(ask.key()));
            let mut write = |token: &TokenRule, body| -> Result<()> {
                columns.tokens.push(match token {
                    TokenRule::Keep => None,
                    TokenRule::Raise => Some(-1),
                    TokenRule::Set(token) => Some(bigint(token.0)?),
                });
                columns.bodies.push(body);
                Ok(())
            };
            match ask {
                Ask::Read(_) => {}
                Ask::Create { token, body, .. } => write(token, Some(body.as_slice()))?,
                Ask::Swap { version, token_was, body_was, token, body, .. } => {
                    write(token, body.as_deref())?;
                    columns.bodies_were.push(body_was.as_deref());
                    columns.versions.push(bigint(*version)?);
                    columns.tokens_were.push(bigint(*token_was)?);
                }
            }
        }
        Ok(columns)
    }

    fn for_statement<'s>(
        &'s self,
        statements: &'s Statements,
        form: Form,
    ) -> (&'s str, Vec<(&'s (dyn ToSql + Sync), Type)>) {
        let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> =
            vec![(&self.elections, Type::TEXT_ARRAY), (&self.notes, Type::TEXT_ARRAY)];
        let sql = match form {
            Form::Read => return (&statements.read, parameters),
            Form::Create => &statements.create,
            Form::Renew => &statements.renew,
            Form::Take => &statements.take,
            Form::TakeWaiting => &statements.take_waiting,
        };
        if form != Form::Create {
            parameters.push((&self.versions, Type::INT8_ARRAY));
            parameters.push((&self.tokens_were, Type::INT8_ARRAY));
            parameters.push((&self.bodies_were, Type::BYTEA_ARRAY));
        }
        parameters.push((&self.tokens, Type::INT8_ARRAY));
        parameters.push((&self.bodies, Type::BYTEA_ARRAY));
        (sql, parameters)
    }
}

fn bigint(number: u64) -> Result<i64> {
    i64::try_from(number).map_err(|_| {
        Error::new(ErrorKind::Unsupported, format!("{number} does not fit into a bigint"))
            .with_backend("postgres")
    })
}
