//! A fence in a database: one row, judged in the transaction that writes what it protects.
//!
//! The library brings the statements and the judgement; the driver is yours. Show it two of its own calls ([`SqlTransaction`]), or
//! run the statements of a [`Dialect`] yourself and hand the row to [`judge`], which suits an async driver.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::str::FromStr;
use std::time::Duration;

use incumbent_core::{Admission, Authority, Error, ErrorKind, FencingToken, HighWater, Result};

use crate::clock;
use crate::leadership::{Leadership, Lost};

/// How long a request to cancel may take.
const CANCEL: Duration = Duration::from_secs(1);

/// Whose SQL is spoken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// PostgreSQL 14 and later.
    Postgres,
    /// SQLite 3.24 and later. Begin the transaction with `BEGIN IMMEDIATE`.
    Sqlite,
}

impl Dialect {
    /// All of them.
    pub const ALL: &[Dialect] = &[Dialect::Postgres, Dialect::Sqlite];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Postgres => "postgres",
            Dialect::Sqlite => "sqlite",
        }
    }

    /// A text as its SQL writes it.
    fn literal(self, text: &str) -> String {
        let quoted = text.replace('\'', "''");
        match self {
            Dialect::Postgres if text.contains('\\') => format!("E'{}'", quoted.replace('\\', "\\\\")),
            _ => format!("'{quoted}'"),
        }
    }

    /// Makes the table `incumbent_fence`, if it is not there, and the functions on it. No parameters.
    pub fn ddl(self) -> &'static str {
        match self {
            Dialect::Postgres => include_str!("postgres.sql").trim_ascii_end(),
            Dialect::Sqlite => {
                "CREATE TABLE IF NOT EXISTS incumbent_fence (
    name TEXT NOT NULL PRIMARY KEY,
    v INTEGER NOT NULL,
    authority TEXT NOT NULL,
    token BIGINT NOT NULL
)"
            }
        }
    }

    /// Locks the fence's row until the transaction ends and raises it if the token is higher. Parameters: name, authority, token.
    pub fn raise(self) -> &'static str {
        match self {
            // Where it would be refused, the row that is read next says why.
            Dialect::Postgres => {
                "SELECT incumbent_fence_guard($1, $2, $3)
WHERE NOT EXISTS (SELECT FROM incumbent_fence WHERE name = $1 AND (v <> 1 OR authority <> $2 OR token > $3))"
            }
            Dialect::Sqlite => {
                "INSERT INTO incumbent_fence (name, v, authority, token) VALUES (?1, 1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET token = excluded.token
WHERE incumbent_fence.v = 1
  AND incumbent_fence.authority = excluded.authority
  AND incumbent_fence.token < excluded.token"
            }
        }
    }

    /// The authority and the token that stand there; no row if a newer release wrote it. Parameter: name.
    pub fn read(self) -> &'static str {
        match self {
            Dialect::Postgres => "SELECT authority, token FROM incumbent_fence WHERE name = $1 AND v = 1",
            Dialect::Sqlite => "SELECT authority, token FROM incumbent_fence WHERE name = ?1 AND v = 1",
        }
    }

    /// Accepts an authority and a token whatever was there: an operator's act. Parameters: name, authority, token.
    pub fn adopt(self) -> &'static str {
        match self {
            Dialect::Postgres => {
                "INSERT INTO incumbent_fence (name, v, authority, token) VALUES ($1, 1, $2, $3)
ON CONFLICT (name) DO UPDATE SET authority = excluded.authority, token = excluded.token
WHERE incumbent_fence.v = 1"
            }
            Dialect::Sqlite => {
                "INSERT INTO incumbent_fence (name, v, authority, token) VALUES (?1, 1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET authority = excluded.authority, token = excluded.token
WHERE incumbent_fence.v = 1"
            }
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dialect {
    type Err = Error;
    fn from_str(name: &str) -> Result<Dialect> {
        Dialect::ALL.iter().copied().find(|dialect| dialect.name() == name).ok_or_else(|| {
            let known: Vec<&str> = Dialect::ALL.iter().map(|dialect| dialect.name()).collect();
            let message = format!("no SQL dialect is called {name:?}; known are {}", known.join(", "));
            Error::new(ErrorKind::InvalidConfig, message)
        })
    }
}

/// Any error of a database driver.
pub type DriverError = Box<dyn StdError + Send + Sync>;

/// An open transaction of your database driver, as far as a fence needs it.
pub trait SqlTransaction {
    /// Runs `sql`, which returns no rows, with these parameters.
    ///
    /// # Errors
    /// The driver's.
    fn execute(&mut self, sql: &str, params: (&str, &str, i64)) -> Result<(), DriverError>;

    /// Runs `sql` with this parameter and returns its row, if there is one.
    ///
    /// # Errors
    /// The driver's.
    fn query(&mut self, sql: &str, param: &str) -> Result<Option<(String, i64)>, DriverError>;
}

/// The fence of this name in a database that holds the table of [`Dialect::ddl`].
///
/// A writer calls [`admit`](SqlFence::admit) **first** in the transaction that writes: the row stays locked until the end, so
/// nobody can raise the fence between the check and the commit. A new leader does the same in a transaction without a write,
/// before it reads anything that it will build on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SqlFence {
    dialect: Dialect,
    name: String,
}

impl SqlFence {
    /// The fence `name` (an election's, say).
    pub fn new(dialect: Dialect, name: impl Into<String>) -> SqlFence {
        SqlFence { dialect, name: name.into() }
    }

    /// Admits what `transaction` is about to write, or refuses it: then roll back.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`]: an older token, or another authority. [`ErrorKind::Unavailable`] with the driver's error as its source:
    /// another transaction holds the row, or the database is in trouble. [`ErrorKind::Corrupt`]: a newer release wrote the row.
    pub fn admit(&self, transaction: &mut impl SqlTransaction, mark: &HighWater) -> Result<()> {
        let token = bigint(mark)?;
        transaction
            .execute(self.dialect.raise(), (&self.name, mark.authority.as_str(), token))
            .map_err(driver)?;
        judge(transaction.query(self.dialect.read(), &self.name).map_err(driver)?, mark)
    }

    /// The highest mark so far; `None` for a fence that never saw one.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] with the driver's error as its source.
    pub fn stored(&self, transaction: &mut impl SqlTransaction) -> Result<Option<HighWater>> {
        transaction.query(self.dialect.read(), &self.name).map_err(driver)?.map(high_water).transpose()
    }

    /// Makes `mark` the highest whatever was there: an operator's act, when the election has moved to another authority for good.
    ///
    /// # Errors
    /// As [`admit`](SqlFence::admit), but never [`ErrorKind::Fenced`].
    pub fn adopt(&self, transaction: &mut impl SqlTransaction, mark: &HighWater) -> Result<()> {
        let token = bigint(mark)?;
        transaction
            .execute(self.dialect.adopt(), (&self.name, mark.authority.as_str(), token))
            .map_err(driver)?;
        judge(transaction.query(self.dialect.read(), &self.name).map_err(driver)?, mark)
    }

    /// [`adopt`](SqlFence::adopt) as a statement to hand to the database's own shell.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]: the token does not fit into the table.
    pub fn adopt_text(&self, mark: &HighWater) -> Result<String> {
        let values = self.values(mark)?;
        let mut pieces = self.dialect.adopt().split(['?', '$']);
        let mut text = pieces.next().unwrap_or_default().to_owned();
        for (value, piece) in values.iter().zip(pieces) {
            // What follows the mark is the parameter's number; they stand in order.
            text += value;
            text += piece.trim_start_matches(|digit: char| digit.is_ascii_digit());
        }
        Ok(text)
    }

    /// What raises the fence to the token of this term, as a statement for PostgreSQL: once in a term, before anything is read.
    /// It waits for transactions of older terms, and ends those that are still under way after a second.
    ///
    /// # Errors
    /// As [`Leadership::mark`]; [`ErrorKind::Unsupported`] for another dialect.
    pub fn raise_text(&self, leadership: &Leadership) -> Result<String> {
        self.needs_postgres()?;
        let [name, authority, token] = self.values(&leadership.mark()?)?;
        Ok(format!("SELECT incumbent_fence_raise({name}, {authority}, {token})"))
    }

    /// What begins a guarded transaction on PostgreSQL, as text for one round trip (libpq's `PQexec`, tokio-postgres's
    /// `batch_execute`). Until it commits nobody raises the fence; transactions of one term run beside each other. The server ends
    /// each statement, and the transaction if it idles, when the lease is over.
    ///
    /// # Errors
    /// As [`raise_text`](SqlFence::raise_text). What the server refuses has SQLSTATE `FENCE`.
    pub fn begin_text(&self, leadership: &Leadership) -> Result<String> {
        self.needs_postgres()?;
        let [name, authority, token] = self.values(&leadership.mark()?)?;
        Ok(format!(
            "BEGIN; SELECT incumbent_fence_guard({name}, {authority}, {token}, {})",
            rest_ms(leadership)
        ))
    }

    fn needs_postgres(&self) -> Result<()> {
        if self.dialect == Dialect::Postgres {
            return Ok(());
        }
        let text = format!("the dialect {} has no such statement; use `admit`", self.dialect);
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    fn values(&self, mark: &HighWater) -> Result<[String; 3]> {
        let literal = |text: &str| self.dialect.literal(text);
        Ok([literal(&self.name), literal(mark.authority.as_str()), bigint(mark)?.to_string()])
    }
}

/// What begins a transaction on PostgreSQL that commits only as long as the term's own record there says that it leads, so that
/// nothing else needs to be fenced: for data in the very database that is the election's authority. `schema` is the one in the
/// backend's URL (`incumbent` if it names none). As [`SqlFence::begin_text`] otherwise.
///
/// # Errors
/// As [`Leadership::mark`].
pub fn begin_proven_text(leadership: &Leadership, schema: &str) -> Result<String> {
    let mark = leadership.mark()?;
    let schema = schema.replace('"', "\"\"");
    let election = Dialect::Postgres.literal(leadership.election().as_str());
    Ok(format!("BEGIN; SELECT \"{schema}\".prove({election}, {}, {})", bigint(&mark)?, rest_ms(leadership)))
}

/// How much is left of the lease, in whole milliseconds.
fn rest_ms(leadership: &Leadership) -> i32 {
    let rest = leadership.valid_until().since(clock::now());
    i32::try_from(rest.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// Runs SQL `work` as long as the term lasts. When the term ends first, `cancel` asks the server to stop (a cancel request): a
/// future that is dropped leaves the server at work. It gets a second for that; then `work` is dropped.
///
/// # Errors
/// [`Lost`] if the term ended first.
pub async fn guard<F: Future, C: Future>(
    leadership: &Leadership,
    work: F,
    cancel: impl FnOnce() -> C,
) -> Result<F::Output, Lost> {
    let mut work = pin!(work);
    match leadership.guard(work.as_mut()).await {
        Ok(done) => Ok(done),
        Err(lost) => {
            let _ = tokio::time::timeout(CANCEL, cancel()).await;
            Err(lost)
        }
    }
}

/// Judges `mark` by the row that [`Dialect::read`] gave after [`Dialect::raise`] in the same transaction.
///
/// # Errors
/// [`ErrorKind::Fenced`]: an older token, or another authority. [`ErrorKind::Corrupt`]: a newer release wrote the row.
/// [`ErrorKind::InvalidConfig`]: the fence was not raised first.
pub fn judge(row: Option<(String, i64)>, mark: &HighWater) -> Result<()> {
    let Some(row) = row else {
        return Err(Error::new(
            ErrorKind::Corrupt,
            "a newer release wrote this fence's row; update this program",
        ));
    };
    match HighWater::admit(Some(&high_water(row)?), &mark.authority, mark.token)? {
        Admission::Current => Ok(()),
        // The statement before raises it, so someone left that out: the row is not locked.
        Admission::Raise => Err(Error::new(
            ErrorKind::InvalidConfig,
            "the fence was read but not raised; run the statement `raise` first, in the same transaction",
        )),
    }
}

fn high_water((authority, token): (String, i64)) -> Result<HighWater> {
    let token = u64::try_from(token)
        .map_err(|_| Error::new(ErrorKind::Corrupt, format!("the fence's row holds the token {token}")))?;
    Ok(HighWater { authority: Authority::new(authority), token: FencingToken(token) })
}

fn bigint(mark: &HighWater) -> Result<i64> {
    i64::try_from(mark.token.0).map_err(|_| {
        Error::new(ErrorKind::Unsupported, format!("token {} does not fit into a BIGINT", mark.token))
    })
}

fn driver(error: DriverError) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the database did not run the fence's statement: {error}"))
        .with_source(error)
}
