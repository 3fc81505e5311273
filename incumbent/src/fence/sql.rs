//! A fence in a database: one row, judged in the transaction that writes what it protects.
//!
//! The library brings the statements and the judgement; the driver is yours. Show it two of its own calls ([`SqlTransaction`]), or
//! run the statements of a [`Dialect`] yourself and hand the row to [`judge`], which suits an async driver.

use std::error::Error as StdError;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use incumbent_core::{Admission, Authority, Error, ErrorKind, FencingToken, HighWater, Result};

pub use super::dialect::Dialect;
use crate::clock;
use crate::leadership::{Leadership, Lost};

/// How long a request to cancel may take.
const CANCEL: Duration = Duration::from_secs(1);

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
        for (index, piece) in pieces.enumerate() {
            // What follows the mark is the parameter's number; without one they stand in order.
            let rest = piece.trim_start_matches(|digit: char| digit.is_ascii_digit());
            let number = piece[..piece.len() - rest.len()].parse().unwrap_or(index + 1);
            text += &values[number - 1];
            text += rest;
        }
        Ok(text)
    }

    /// What raises the fence to the token of this term, as a statement for PostgreSQL, MySQL and MariaDB: once in a term, before
    /// anything is read, and outside of a transaction. It waits for transactions of older terms, and ends those that are still under
    /// way after a second.
    ///
    /// # Errors
    /// As [`Leadership::mark`]; [`ErrorKind::Unsupported`] for another dialect.
    pub fn raise_text(&self, leadership: &Leadership) -> Result<String> {
        let call = self.caller()?;
        let [name, authority, token] = self.values(&leadership.mark()?)?;
        Ok(format!("{call} incumbent_fence_raise({name}, {authority}, {token})"))
    }

    /// What begins a guarded transaction on PostgreSQL, MySQL and MariaDB, as text for one round trip: two statements (libpq's
    /// `PQexec`, tokio-postgres's `batch_execute`, mysql_async's `query_drop`). Until it commits nobody raises the fence; transactions
    /// of one term run beside each other. The server ends each statement, and the transaction if it idles, when the lease is over;
    /// MySQL, other than MariaDB, only what reads.
    ///
    /// # Errors
    /// As [`raise_text`](SqlFence::raise_text). What the server refuses has SQLSTATE `FENCE`.
    pub fn begin_text(&self, leadership: &Leadership) -> Result<String> {
        let call = self.caller()?;
        let [name, authority, token] = self.values(&leadership.mark()?)?;
        let rest_ms = rest_ms(leadership);
        Ok(format!(
            "START TRANSACTION; {call} incumbent_fence_guard({name}, {authority}, {token}, {rest_ms})"
        ))
    }

    /// What calls a function of the fence by its name.
    fn caller(&self) -> Result<&'static str> {
        match self.dialect {
            Dialect::Postgres => Ok("SELECT"),
            Dialect::Mysql => Ok("CALL"),
            Dialect::Sqlite => Err(Error::new(
                ErrorKind::Unsupported,
                "the dialect sqlite has no such statement; use `admit`",
            )),
        }
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
