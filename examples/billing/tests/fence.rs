//! The SQL fence and the ledger on a real SQLite.

use std::path::Path;

use billing::ledger::{Audit, Booking, Ledger};
use incumbent::fence::sql::{self, Dialect, DriverError, SqlFence, SqlTransaction};
use incumbent::{Authority, ErrorKind, FencingToken, HighWater};
use rusqlite::{Connection, Transaction, TransactionBehavior};

fn mark(authority: &str, token: u64) -> HighWater {
    HighWater { authority: Authority::new(authority), token: FencingToken(token) }
}

fn billing() -> SqlFence {
    SqlFence::new(Dialect::Sqlite, "billing")
}

fn begin(ledger: &Ledger) -> Booking<'_> {
    ledger.begin().ok().flatten().expect("nobody else writes")
}

#[track_caller]
fn admit(ledger: &Ledger, mark: &HighWater) -> incumbent::Result<()> {
    let mut booking = begin(ledger);
    billing().admit(&mut booking, mark)?;
    booking.commit().expect("nothing is in the way");
    Ok(())
}

fn ledger(folder: &tempfile::TempDir) -> Ledger {
    Ledger::create(&folder.path().join("ledger.db"), 10).expect("the folder is new")
}

#[test]
fn an_older_token_is_refused_and_its_charge_rolled_back() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = ledger(&folder);
    assert_eq!(billing().stored(&mut begin(&ledger)).unwrap(), None);
    for token in [1, 1, 2] {
        admit(&ledger, &mark("a", token)).unwrap();
    }
    let late = ledger.uncharged(0, 1).unwrap()[0];
    let attempt = || {
        let mut booking = begin(&ledger);
        billing().admit(&mut booking, &mark("a", 1))?;
        booking.charge(late, 1, "late").unwrap();
        booking.commit().unwrap();
        Ok(())
    };
    let refused: incumbent::Error = attempt().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
    assert_eq!(ledger.audit().unwrap(), Audit { charged: 0, twice: 0, missing: 10 });
    assert_eq!(billing().stored(&mut begin(&ledger)).unwrap(), Some(mark("a", 2)));
}

#[test]
fn fences_of_two_names_know_nothing_of_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = ledger(&folder);
    admit(&ledger, &mark("a", 9)).unwrap();
    let mut booking = begin(&ledger);
    SqlFence::new(Dialect::Sqlite, "reports").admit(&mut booking, &mark("b", 1)).unwrap();
    booking.commit().unwrap();
    assert_eq!(billing().stored(&mut begin(&ledger)).unwrap(), Some(mark("a", 9)));
}

#[test]
fn another_authority_needs_an_operator() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = ledger(&folder);
    admit(&ledger, &mark("old", 900)).unwrap();
    let mut booking = begin(&ledger);
    let refused = billing().admit(&mut booking, &mark("new", 901)).unwrap_err();
    booking.commit().unwrap();
    assert_eq!(
        billing().stored(&mut begin(&ledger)).unwrap(),
        Some(mark("old", 900)),
        "even where it is committed"
    );
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    assert!(refused.to_string().contains("incumbent fence --help"), "{refused}");
    let mut booking = begin(&ledger);
    billing().adopt(&mut booking, &mark("new", 3)).unwrap();
    booking.commit().unwrap();
    admit(&ledger, &mark("new", 3)).unwrap();
    assert_eq!(admit(&ledger, &mark("new", 2)).unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(admit(&ledger, &mark("old", 901)).unwrap_err().kind(), ErrorKind::Fenced);
}

/// What an operator pipes into the database's shell does the same, whatever the names contain.
#[test]
fn adopting_by_text_is_adopting() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = ledger(&folder);
    let fence = SqlFence::new(Dialect::Sqlite, "o'billing ?2 -- ");
    let connection = Connection::open(folder.path().join("ledger.db")).unwrap();
    for mark in [mark("'; DROP TABLE charge; --", 7), mark("new ?3", 2)] {
        connection.execute_batch(&fence.adopt_text(&mark).unwrap()).unwrap();
        assert_eq!(fence.stored(&mut begin(&ledger)).unwrap(), Some(mark));
    }
    ledger.audit().unwrap();
}

/// The check holds until the commit: nobody raises the fence in between.
#[test]
fn nobody_raises_the_fence_between_the_check_and_the_commit() {
    let folder = tempfile::tempdir().unwrap();
    let old = ledger(&folder);
    let new = Ledger::open(&folder.path().join("ledger.db")).unwrap();
    let first = old.uncharged(0, 1).unwrap()[0];

    let mut booking = begin(&old);
    billing().admit(&mut booking, &mark("a", 1)).unwrap();
    assert!(new.begin().unwrap().is_none(), "the successor waits");
    booking.charge(first, 1, "old").unwrap();
    assert!(new.begin().unwrap().is_none(), "the successor waits");
    booking.commit().unwrap();

    admit(&new, &mark("a", 2)).unwrap();
    assert_eq!(new.uncharged(0, 1).unwrap()[0].id, first.id + 1, "it sees what was charged before it began");
    assert_eq!(admit(&old, &mark("a", 1)).unwrap_err().kind(), ErrorKind::Fenced);
}

/// Also where the transaction was begun without IMMEDIATE: the statement that raises takes the lock itself, whether it changes the
/// row or not.
#[test]
fn the_first_statement_locks() {
    struct Plain<'a>(Transaction<'a>);
    impl SqlTransaction for Plain<'_> {
        fn execute(&mut self, sql: &str, params: (&str, &str, i64)) -> Result<(), DriverError> {
            self.0.execute(sql, params)?;
            Ok(())
        }
        fn query(&mut self, sql: &str, param: &str) -> Result<Option<(String, i64)>, DriverError> {
            Ok(Some(self.0.query_row(sql, [param], |row| Ok((row.get(0)?, row.get(1)?)))?))
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let other = ledger(&folder);
    admit(&other, &mark("a", 1)).unwrap();
    let mut connection = Connection::open(folder.path().join("ledger.db")).unwrap();
    for token in [1, 2] {
        let deferred = connection.transaction_with_behavior(TransactionBehavior::Deferred).unwrap();
        let mut plain = Plain(deferred);
        billing().admit(&mut plain, &mark("a", token)).unwrap();
        assert!(other.begin().unwrap().is_none(), "token {token} does not lock");
        plain.0.commit().unwrap();
    }
}

#[test]
fn a_row_of_a_newer_release_admits_nobody_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = ledger(&folder);
    let connection = Connection::open(folder.path().join("ledger.db")).unwrap();
    connection.execute("INSERT INTO incumbent_fence VALUES ('billing', 2, 'a', 5)", ()).unwrap();
    let error = admit(&ledger, &mark("a", 6)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let error = billing().adopt(&mut begin(&ledger), &mark("a", 6)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let row = "SELECT v, authority, token FROM incumbent_fence";
    let row: (i64, String, i64) =
        connection.query_row(row, (), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    assert_eq!(row, (2, "a".to_owned(), 5));
}

#[test]
fn what_cannot_be_judged_admits_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = ledger(&folder);
    let huge = admit(&ledger, &mark("a", u64::MAX)).unwrap_err();
    assert_eq!(huge.kind(), ErrorKind::Unsupported, "{huge}");
    let unraised = sql::judge(Some(("a".into(), 1)), &mark("a", 2)).unwrap_err();
    assert_eq!(unraised.kind(), ErrorKind::InvalidConfig, "{unraised}");
    let negative = sql::judge(Some(("a".into(), -1)), &mark("a", 2)).unwrap_err();
    assert_eq!(negative.kind(), ErrorKind::Corrupt, "{negative}");

    Connection::open(folder.path().join("ledger.db"))
        .unwrap()
        .execute("DROP TABLE incumbent_fence", ())
        .unwrap();
    let missing = admit(&ledger, &mark("a", 1)).unwrap_err();
    assert!(missing.to_string().contains("no such table"), "{missing}");
    assert!(std::error::Error::source(&missing).is_some_and(|source| source.is::<rusqlite::Error>()));
}

#[test]
fn dialects_have_names() {
    for dialect in Dialect::ALL {
        assert_eq!(dialect.to_string().parse::<Dialect>().unwrap(), *dialect);
    }
    let unknown = "oracle".parse::<Dialect>().unwrap_err();
    assert!(unknown.to_string().contains("known are mysql, postgres, sqlite"), "{unknown}");
}

/// The auditor sees what it is there to see.
#[test]
fn the_audit_counts_what_is_charged_twice_and_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = ledger(&folder);
    let all = ledger.uncharged(0, 100).unwrap();
    assert_eq!(all.len(), 10);
    let booking = begin(&ledger);
    for subscription in [all[0], all[1], all[2], all[1], all[4], all[4], all[4]] {
        booking.charge(subscription, 1, "a").unwrap();
    }
    booking.commit().unwrap();
    assert_eq!(ledger.audit().unwrap(), Audit { charged: 4, twice: 2, missing: 6 });
    let left: Vec<i64> =
        ledger.uncharged(3, 100).unwrap().iter().map(|subscription| subscription.id).collect();
    assert_eq!(left, [4, 6, 7, 8, 9, 10]);
    assert!(Ledger::create(Path::new("/no such folder/ledger.db"), 1).is_err());
}
