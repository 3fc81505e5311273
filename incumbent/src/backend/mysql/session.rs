//! Which server is talked to, in which history its answers stand, and the statements on its connections.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use incumbent_core::record::TokenRule;
use incumbent_core::{Authority, BootInstant, BoxFuture, Error, ErrorKind, Result, Stored, Swapped};
use mysql_async::Row;
use mysql_async::prelude::FromValue;
use tokio::time::timeout;

use super::bells::Bells;
use super::failure::{self, Failure};
use super::link::{Answer, Config, Link};
use super::{listen, statements};
use crate::backend::sql::hints::Hints;
use crate::backend::sql::lane::Runner;
use crate::backend::sql::store::Server;
use crate::backend::sql::{Ask, Told, hosts, note_name};

/// The most bytes of bodies that go into one packet; the server's max_allowed_packet is 16 MiB and more.
const PACKET: usize = 1 << 20;
const NO_SUCH_TABLE: u16 = 1146;

/// What connections have in common.
pub(super) struct Session {
    config: Config,
    /// A host that has not answered for this long gets company by the next one.
    patience: Duration,
    pub(super) bells: Bells,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The host that is talked to: one at a time, or answers of an old primary and a new one would mix.
    host: Option<usize>,
    identity: Option<Identity>,
    warned: bool,
}

/// Which database answers, and which server.
#[derive(Clone, PartialEq, Eq)]
struct Identity {
    /// What the database calls itself, on all its servers.
    name: String,
    database: String,
    server: String,
}

/// A name that nobody has yet.
pub(super) fn random_name() -> Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|cause| {
        Error::new(ErrorKind::Internal, "this system gives no random numbers").with_source(cause)
    })?;
    Ok(format!("{:032x}", u128::from_be_bytes(random)))
}

impl Session {
    pub(super) fn new(config: Config, ttl: Duration) -> Result<Session> {
        let patience = (ttl / 60).clamp(Duration::from_millis(50), Duration::from_millis(250));
        Ok(Session { config, patience, bells: Bells::new(random_name()?), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
                let silent = |index| format!("MySQL at {}", self.config.host(index));
                Err(hosts::summary(failures, self.config.hosts.len(), silent, "mysql"))
            }
        }
    }

    async fn try_dial(&self, index: usize) -> Result<Link> {
        let mut link = Link::dial(&self.config, index, &self.bells.own).await?;
        let here = Arc::clone(&link.statements);
        let mut answers = self.having_schema(&mut link, here.greet(), false).await?;
        let named = |answers: &[Answer]| column_of::<String>(answers.first()?.rows.first()?, 3);
        if named(&answers).is_none() {
            // Another is just making the tables, or was broken off.
            self.make_schema(&mut link).await?;
            answers = link.query(here.greet(), false).await?;
        }
        self.check(&link, answers.first(), false)?;
        Ok(link)
    }

    /// Refuses an answer that is worth nothing: a replica's, one whose commit does not last, or one of another database or server than
    /// the one in use.
    fn check(&self, link: &Link, answer: Option<&Answer>, wrote: bool) -> Result<()> {
        let refuse = |kind, text: &str| Err(failure::error(kind, link.host(), text).ambiguous(wrote));
        let garbage =
            || failure::error(ErrorKind::Unavailable, link.host(), "the answer lacks what was asked for");
        let row = answer.and_then(|answer| answer.rows.first()).ok_or_else(garbage)?;
        let text = |column| column_of::<String>(row, column);
        if !matches!(text(0).as_deref(), Some("0" | "OFF")) {
            return refuse(
                ErrorKind::ReadOnly,
                "read_only is on, as at a replica: name the primary too, or turn it off",
            );
        }
        let flush: i64 = column_of(row, 2).ok_or_else(garbage)?;
        if flush == 0 {
            return refuse(
                ErrorKind::Unavailable,
                "its commits prove nothing; set innodb_flush_log_at_trx_commit to 1",
            );
        }
        let Some(name) = text(3) else {
            return refuse(
                ErrorKind::Corrupt,
                "the table incumbent_store is empty; `incumbent doctor --print-schema` prints what an administrator has to run",
            );
        };
        let (server, database) = (text(1).ok_or_else(garbage)?, text(4).ok_or_else(garbage)?);
        let identity = Identity { name, database, server };
        let mut state = self.state();
        if flush != 1 && !std::mem::replace(&mut state.warned, true) {
            tracing::warn!(
                host = link.host(),
                "innodb_flush_log_at_trx_commit is {flush} at this MySQL: after a power failure it may have forgotten who leads"
            );
        }
        if wrote && state.host.is_some_and(|host| host != link.index) {
            return refuse(ErrorKind::Unavailable, "another host has been chosen meanwhile");
        }
        match &state.identity {
            Some(known) if known.name != identity.name || known.database != identity.database => {
                return refuse(
                    ErrorKind::StoreRegressed,
                    "it is another database than the one that was used before; if that is meant, start this process anew",
                );
            }
            Some(known) if known.server != identity.server => {
                tracing::warn!(host = link.host(), server = identity.server, "another MySQL server answers");
            }
            _ => {}
        }
        state.identity = Some(identity);
        Ok(())
    }

    /// Runs a packet, after making the tables if they are not there.
    async fn having_schema(&self, link: &mut Link, sql: &str, writes: bool) -> Result<Vec<Answer>, Failure> {
        match link.query(sql, writes).await {
            Err(failure) if failure.code == Some(NO_SUCH_TABLE) => {
                // A transaction may stand open.
                link.query("ROLLBACK", false).await?;
                self.make_schema(link).await?;
                link.query(sql, writes).await
            }
            answers => answers,
        }
    }

    async fn make_schema(&self, link: &mut Link) -> Result<(), Failure> {
        let made = link.query(&statements::schema(&random_name()?).join("; "), false).await;
        made.map(drop).map_err(|failure| match failure.error.kind() {
            ErrorKind::Denied => failure::error(
                ErrorKind::Denied,
                link.host(),
                "the tables incumbent_record and incumbent_store are not there, or empty, and this user may not make them: have an administrator \
                 run what `incumbent doctor --print-schema` prints",
            )
            .with_source(failure.error)
            .into(),
            _ => failure,
        })
    }

    /// Runs a packet for all of `asks`, which are of one kind, and understands its answers.
    async fn statement(
        &self,
        link: &mut Link,
        asks: &[&Ask],
        form: Form,
        sent_at: BootInstant,
    ) -> Result<Vec<Told>, Failure> {
        let statements = Arc::clone(&link.statements);
        let writes = form != Form::Read;
        let sql = match form {
            Form::Read => statements.read(asks),
            Form::Create => statements.create(asks),
            Form::Swap => statements.swap(asks, false),
            Form::SwapWaiting => statements.swap(asks, true),
        };
        let answers = self.having_schema(link, &sql, writes).await?;
        let (here, changing, commit) = match form {
            Form::Read => (0, 0..0, None),
            Form::Create => (2 + asks.len(), 2..2 + asks.len(), Some(3 + asks.len())),
            Form::Swap | Form::SwapWaiting => (4, 3..4, Some(6)),
        };
        self.check(link, answers.get(here), writes)?;
        let warned = |answer: &&Answer| answer.warnings > 0;
        let changed = answers.get(changing).unwrap_or_default();
        if let Some(noted) = changed.iter().chain(commit.and_then(|at| answers.get(at))).find(warned) {
            let text = format!("its commit proves nothing, since it came with {} warnings", noted.warnings);
            return Err(failure::error(ErrorKind::Unavailable, link.host(), text).ambiguous(true).into());
        }
        self.understand(asks, form, &answers, sent_at).ok_or_else(|| {
            let text = "the tables are not as `incumbent doctor --print-schema` makes them";
            failure::error(ErrorKind::Corrupt, link.host(), text).ambiguous(writes).into()
        })
    }

    fn understand(
        &self,
        asks: &[&Ask],
        form: Form,
        answers: &[Answer],
        sent_at: BootInstant,
    ) -> Option<Vec<Told>> {
        let done = |version, token| Told::Swapped(Swapped::Done { version, token, sent_at });
        match form {
            Form::Read => {
                let mut told = vec![Told::Found(None); asks.len()];
                for row in &answers.get(1)?.rows {
                    let (election, note): (String, String) = (column_of(row, 0)?, column_of(row, 1)?);
                    let is_it =
                        |ask: &&&Ask| ask.key().election.as_str() == election && note_name(ask.key()) == note;
                    let Some(nr) = asks.iter().position(|ask| is_it(&ask)) else { continue };
                    let stored = Stored {
                        version: column_of(row, 2)?,
                        token: column_of(row, 3)?,
                        body: column_of(row, 4)?,
                    };
                    if note.is_empty() {
                        self.bells.saw(&election, column_of::<String>(row, 5).as_deref());
                    }
                    told[nr] = Told::Found(Some(stored));
                }
                Some(told)
            }
            Form::Create => {
                let now: u64 = column_of(answers.get(4 + asks.len())?.rows.first()?, 0)?;
                let one = |(ask, answer): (&&Ask, &Answer)| {
                    let token = match ask {
                        Ask::Create { token: TokenRule::Raise, .. } => now,
                        Ask::Create { token: TokenRule::Set(token), .. } => token.0,
                        _ => 0,
                    };
                    if answer.affected == 1 { done(now, token) } else { Told::Swapped(Swapped::Conflict) }
                };
                Some(asks.iter().zip(answers.get(2..2 + asks.len())?).map(one).collect())
            }
            Form::Swap | Form::SwapWaiting => {
                answers.get(6)?;
                let mut told = vec![Told::Swapped(Swapped::Conflict); asks.len()];
                let mut written = 0;
                for row in &answers.get(5)?.rows {
                    let nr: usize = column_of(row, 0)?;
                    let (mine, as_seen): (bool, bool) = (column_of(row, 1)?, column_of(row, 2)?);
                    *told.get_mut(nr)? = match (mine, as_seen) {
                        (true, _) => {
                            written += 1;
                            done(column_of(row, 3)?, column_of(row, 4)?)
                        }
                        // Not written although it is as it was expected to be: another session has it locked.
                        (false, true) => Told::Busy,
                        (false, false) => Told::Swapped(Swapped::Conflict),
                    };
                }
                (answers.get(3)?.affected == written).then_some(told)
            }
        }
    }

    /// Before and after a write: our own bell.
    fn ring(&self, asks: &[&Ask], told: &[Told]) {
        let let_go = |(ask, told): (&&Ask, &Told)| {
            let is_release = matches!(
                ask,
                Ask::Swap { key, token: TokenRule::Keep, body: Some(_), .. } if key.note.is_none()
            );
            is_release && matches!(told, Told::Swapped(Swapped::Done { .. }))
        };
        if asks.iter().zip(told).any(let_go) {
            self.bells.ring();
        }
    }
}

/// A value of a row, if it is there and of this kind.
fn column_of<T: FromValue>(row: &Row, column: usize) -> Option<T> {
    row.get_opt::<Option<T>, _>(column)?.ok().flatten()
}

impl Runner for Session {
    type Link = Link;

    fn scheme(&self) -> &'static str {
        "mysql"
    }

    fn connect(self: Arc<Self>) -> BoxFuture<'static, Result<Link>> {
        Box::pin(async move {
            match timeout(hosts::SEARCH * 2, self.dial()).await {
                Ok(link) => link,
                Err(_) => Err(Error::new(ErrorKind::Unavailable, "no host answers").with_backend("mysql")),
            }
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
            if !link.is_alive().await {
                *link = self.dial().await?;
            }
            if asks.iter().any(|ask| matches!(ask, Ask::Swap { token: TokenRule::Raise, .. })) {
                self.bells.hang();
            }
            let mut told = vec![Told::Busy; asks.len()];
            for form in [Form::Read, Form::Create, Form::Swap] {
                let of_form = asks.iter().enumerate().filter(|(_, ask)| Form::of(ask) == form);
                for some in packets(of_form) {
                    let (places, some): (Vec<_>, Vec<_>) = some.into_iter().unzip();
                    let answers = self.statement(link, &some, form, sent_at).await?;
                    self.ring(&some, &answers);
                    for (place, one) in places.into_iter().zip(answers) {
                        told[place] = one;
                    }
                }
            }
            Ok(told)
        })
    }
}

impl Server for Session {
    /// What the database calls itself: its copies on other servers do, too.
    fn authority(&self) -> Authority {
        let state = self.state();
        let name = state.identity.as_ref().map_or("", |identity| &identity.name);
        Authority::new(format!("mysql:{name}"))
    }

    /// The server: another one may lack what this one has acknowledged.
    fn lineage(&self) -> Option<String> {
        self.state().identity.as_ref().map(|identity| identity.server.clone())
    }

    fn run_waiting<'a>(
        &'a self,
        link: &'a mut Link,
        ask: &'a Ask,
        sent_at: BootInstant,
    ) -> BoxFuture<'a, Result<Told>> {
        Box::pin(async move {
            let told = self.statement(link, &[ask], Form::SwapWaiting, sent_at).await?;
            self.ring(&[ask], &told);
            Ok(told.into_iter().next().unwrap_or(Told::Busy))
        })
    }

    fn listen(self: Arc<Self>, hints: Arc<Hints>) -> BoxFuture<'static, ()> {
        Box::pin(listen::run(self, hints))
    }

    fn advice(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async move {
            let sql = "SELECT @@global.innodb_flush_log_at_trx_commit; SHOW GLOBAL VARIABLES LIKE 'wsrep_on'";
            let answers = self.dial().await?.query(sql, false).await?;
            let shown = |answer: usize, column| {
                answers.get(answer).and_then(|answer| column_of::<String>(answer.rows.first()?, column))
            };
            let mut advice = Vec::new();
            if let Some(flush) = shown(0, 0).filter(|flush| flush != "1") {
                advice.push(format!(
                    "innodb_flush_log_at_trx_commit is {flush}: after a power failure this server may have forgotten who leads; set it to 1"
                ));
            }
            if shown(1, 1).as_deref() == Some("ON") {
                advice.push(
                    "this is a Galera node: send all candidates to one and the same; standbys are not woken, they look every ttl/8"
                        .to_owned(),
                );
            }
            Ok(advice)
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Read,
    Create,
    Swap,
    SwapWaiting,
}

impl Form {
    fn of(ask: &Ask) -> Form {
        match ask {
            Ask::Read(_) => Form::Read,
            Ask::Create { .. } => Form::Create,
            Ask::Swap { .. } => Form::Swap,
        }
    }
}

/// The requests, as many in a row as fit into a packet.
fn packets<'a>(asks: impl Iterator<Item = (usize, &'a Ask)>) -> Vec<Vec<(usize, &'a Ask)>> {
    let (mut all, mut room): (Vec<Vec<_>>, _) = (Vec::new(), 0);
    for (place, ask) in asks {
        let size = match ask {
            Ask::Read(_) => 0,
            Ask::Create { body, .. } => body.len(),
            Ask::Swap { body_was, body, .. } => [body_was, body].into_iter().flatten().map(Vec::len).sum(),
        };
        match all.last_mut().filter(|_| size <= room) {
            Some(packet) => {
                packet.push((place, ask));
                room -= size;
            }
            None => {
                all.push(vec![(place, ask)]);
                room = PACKET.saturating_sub(size);
            }
        }
    }
    all
}
