//! The ledger: a SQLite file with subscriptions and charges, and beside them the fence.

use std::path::Path;
use std::time::Duration;

use incumbent::fence::sql::{Dialect, DriverError, SqlTransaction};
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, params};

/// Nothing but the fence stands between a customer and a second charge: the table would take it.
const SCHEMA: &str = "
CREATE TABLE subscription (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL);
CREATE TABLE charge (
    subscription INTEGER NOT NULL,
    cents INTEGER NOT NULL,
    token INTEGER NOT NULL,
    replica TEXT NOT NULL
);
CREATE INDEX charge_by_subscription ON charge (subscription);
";

/// An open ledger.
#[derive(Debug)]
pub struct Ledger(Connection);

/// What one customer owes this month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Its number, from 1.
    pub id: i64,
    /// The amount.
    pub cents: i64,
}

/// What an auditor finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Subscriptions that were charged at least once.
    pub charged: i64,
    /// Subscriptions that were charged more than once.
    pub twice: i64,
    /// Subscriptions that were not charged.
    pub missing: i64,
}

impl Ledger {
    /// A new ledger in which nobody was charged yet.
    ///
    /// # Errors
    /// SQLite's.
    pub fn create(path: &Path, subscriptions: i64) -> rusqlite::Result<Ledger> {
        let ledger = Ledger::open(path)?;
        // Readers do not block the writer, and every commit is on the disk before it returns.
        ledger.0.execute_batch("PRAGMA journal_mode = WAL")?;
        let transaction = ledger.0.unchecked_transaction()?;
        transaction.execute_batch(SCHEMA)?;
        transaction.execute_batch(Dialect::Sqlite.ddl())?;
        let mut insert = transaction.prepare("INSERT INTO subscription (id, cents) VALUES (?1, ?2)")?;
        for id in 1..=subscriptions {
            insert.execute(params![id, 500 + id % 7 * 100])?;
        }
        drop(insert);
        transaction.commit()?;
        Ok(ledger)
    }

    /// The ledger that is there.
    ///
    /// # Errors
    /// SQLite's.
    pub fn open(path: &Path) -> rusqlite::Result<Ledger> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::from_millis(100))?;
        connection.execute_batch("PRAGMA synchronous = FULL")?;
        Ok(Ledger(connection))
    }

    /// The first `limit` subscriptions after number `after` that were not charged.
    ///
    /// # Errors
    /// SQLite's.
    pub fn uncharged(&self, after: i64, limit: usize) -> rusqlite::Result<Vec<Subscription>> {
        let mut query = self.0.prepare(
            "SELECT id, cents FROM subscription WHERE id > ?1
             AND NOT EXISTS (SELECT 1 FROM charge WHERE charge.subscription = subscription.id)
             ORDER BY id LIMIT ?2",
        )?;
        let rows = query.query_map(params![after, limit as i64], |row| {
            Ok(Subscription { id: row.get(0)?, cents: row.get(1)? })
        })?;
        rows.collect()
    }

    /// Begins a transaction that writes; `None` if another process is in one.
    ///
    /// # Errors
    /// SQLite's.
    pub fn begin(&self) -> rusqlite::Result<Option<Booking<'_>>> {
        match Transaction::new_unchecked(&self.0, TransactionBehavior::Immediate) {
            Ok(transaction) => Ok(Some(Booking(transaction))),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Counts.
    ///
    /// # Errors
    /// SQLite's.
    pub fn audit(&self) -> rusqlite::Result<Audit> {
        let audit = "SELECT count(*) FILTER (WHERE charges > 0), count(*) FILTER (WHERE charges > 1), count(*) FILTER (WHERE charges = 0)
            FROM (SELECT (SELECT count(*) FROM charge WHERE charge.subscription = subscription.id) AS charges FROM subscription)";
        self.0.query_row(audit, [], |row| {
            Ok(Audit { charged: row.get(0)?, twice: row.get(1)?, missing: row.get(2)? })
        })
    }
}

/// A transaction that writes. Dropping it rolls back.
#[derive(Debug)]
pub struct Booking<'a>(Transaction<'a>);

impl Booking<'_> {
    /// Charges one subscription.
    ///
    /// # Errors
    /// SQLite's.
    pub fn charge(&self, subscription: Subscription, token: u64, replica: &str) -> rusqlite::Result<()> {
        let insert = "INSERT INTO charge (subscription, cents, token, replica) VALUES (?1, ?2, ?3, ?4)";
        self.0.execute(insert, params![subscription.id, subscription.cents, token as i64, replica])?;
        Ok(())
    }

    /// Makes it final.
    ///
    /// # Errors
    /// SQLite's.
    pub fn commit(self) -> rusqlite::Result<()> {
        self.0.commit()
    }
}

/// All that the fence needs of SQLite.
impl SqlTransaction for Booking<'_> {
    fn execute(&mut self, sql: &str, params: (&str, &str, i64)) -> Result<(), DriverError> {
        self.0.execute(sql, params)?;
        Ok(())
    }

    fn query(&mut self, sql: &str, param: &str) -> Result<Option<(String, i64)>, DriverError> {
        Ok(self.0.query_row(sql, [param], |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
    }
}
