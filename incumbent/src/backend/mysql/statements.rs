//! The SQL. What is written goes to the server in one packet that begins and commits a transaction, so that no client that stands
//! still in the middle keeps a row locked; every packet asks which server answers and what its commits are worth.
//!
//! Names are of a few ASCII characters, numbers are numbers and bodies are written in hexadecimal: nothing needs to be quoted.

use std::fmt::Write;

use incumbent_core::record::TokenRule;

use crate::backend::sql::{Ask, note_name};

/// The server's clock in µs since 1970, whatever time zone the session has.
const MICROS: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// How the requests of a packet are read as a table. The columns follow [`asked`].
const ASKED: &str = "JSON_TABLE(@incumbent_asked, '$[*]' COLUMNS (
    nr INT PATH '$[0]',
    election VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin PATH '$[1]',
    note VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin PATH '$[2]',
    version BIGINT UNSIGNED PATH '$[3]',
    token BIGINT UNSIGNED PATH '$[4]',
    seen MEDIUMTEXT PATH '$[5]',
    rule BIGINT PATH '$[6]',
    body MEDIUMTEXT PATH '$[7]')) AS a";
/// The rows that are still as they were seen.
const AS_SEEN: &str =
    "r.version = a.version AND r.token = a.token AND (a.seen = '-' OR r.body = UNHEX(SUBSTR(a.seen, 2)))";
const SAME_KEY: &str = "r.election = a.election AND r.note = a.note";
/// Numbers that stand for a rule where a token is set otherwise.
const RAISE: i64 = -1;
const KEEP: i64 = -2;

/// The statements of one kind of server.
#[derive(Debug)]
pub(super) struct Statements {
    /// One row that says which server answers; nothing but it.
    here: String,
    /// The name of the lock that this process holds while it leads.
    bell: String,
}

/// Makes the tables, whatever is there already. `name` becomes the database's, unless it has one.
pub(super) fn schema(name: &str) -> Vec<String> {
    let ascii = "CHARACTER SET ascii COLLATE ascii_bin NOT NULL";
    vec![
        format!(
            "CREATE TABLE IF NOT EXISTS incumbent_record (
    election VARCHAR(128) {ascii},
    note VARCHAR(16) {ascii},
    version BIGINT UNSIGNED NOT NULL,
    token BIGINT UNSIGNED NOT NULL,
    body MEDIUMBLOB NOT NULL,
    bell CHAR(32) {ascii} DEFAULT '',
    PRIMARY KEY (election, note)
) ENGINE = InnoDB"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS incumbent_store (
    one TINYINT NOT NULL DEFAULT 1 PRIMARY KEY,
    name CHAR(32) {ascii}
) ENGINE = InnoDB"
        ),
        format!("INSERT IGNORE INTO incumbent_store (one, name) VALUES (1, '{name}')"),
    ]
}

/// What lets `user` use the tables without making them.
pub(super) fn grants(database: &str, user: &str) -> String {
    let (database, user) = (database.replace('`', "``"), user.replace('\\', "\\\\").replace('\'', "\\'"));
    format!(
        "GRANT SELECT, INSERT, UPDATE ON `{database}`.incumbent_record TO '{user}'@'%';\n\
         GRANT SELECT ON `{database}`.incumbent_store TO '{user}'@'%';\n"
    )
}

/// What a new connection is set to. A statement waits for a locked row, or for a table that is being altered, no longer than a second,
/// and the server keeps an idle connection for a day.
pub(super) const SET: &str = "SET SESSION autocommit = 1, innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, wait_timeout = 86400, \
                              group_concat_max_len = 1048576, sql_safe_updates = 0";

impl Statements {
    /// For a server of MariaDB or MySQL.
    pub(super) fn new(mariadb: bool, bell: &str) -> Statements {
        // What tells a server and its replicas apart.
        let server =
            if mariadb { "CONCAT(@@server_id, '@', @@hostname, ':', @@port)" } else { "@@server_uuid" };
        let here = format!(
            "SELECT @@global.read_only, {server}, @@global.innodb_flush_log_at_trx_commit, \
             (SELECT name FROM incumbent_store WHERE one = 1), DATABASE()"
        );
        Statements { here, bell: bell.to_owned() }
    }

    /// One row of what is asked of every answer.
    pub(super) fn greet(&self) -> &str {
        &self.here
    }

    /// That row, then the rows that there are: election, note, version, token, body, bell.
    pub(super) fn read(&self, asks: &[&Ask]) -> String {
        format!(
            "{}; SELECT election, note, version, token, body, bell FROM incumbent_record WHERE (election, note) IN ({})",
            self.here,
            keys(asks.iter().map(|ask| (ask.key().election.as_str(), note_name(ask.key()))))
        )
    }

    /// START, SET, one INSERT for each, that row, COMMIT, and the time.
    pub(super) fn create(&self, asks: &[&Ask]) -> String {
        let mut sql = format!("START TRANSACTION; SET @incumbent_now = {MICROS}");
        for ask in asks {
            let Ask::Create { key, token, body } = ask else { continue };
            let token = match token {
                TokenRule::Keep => "0".to_owned(),
                TokenRule::Raise => "@incumbent_now".to_owned(),
                TokenRule::Set(token) => token.0.to_string(),
            };
            let _ = write!(
                sql,
                "; INSERT INTO incumbent_record (election, note, version, token, body) \
                 VALUES ('{}', '{}', @incumbent_now, {token}, X'{}') ON DUPLICATE KEY UPDATE election = election",
                key.election,
                note_name(key),
                hex(body)
            );
        }
        let _ = write!(sql, "; {}; COMMIT; SELECT CAST(@incumbent_now AS UNSIGNED)", self.here);
        sql
    }

    /// START, SET, SELECT INTO, UPDATE, that row, one row for each (number, written or not, still as it was seen or not, version, token),
    /// COMMIT. Rows that another session has locked are left out, or waited for.
    pub(super) fn swap(&self, asks: &[&Ask], wait: bool) -> String {
        let lock = if wait { "FOR UPDATE" } else { "FOR UPDATE SKIP LOCKED" };
        format!(
            "START TRANSACTION; SET @incumbent_asked = '{asked}'; \
             SELECT {MICROS}, COALESCE(GROUP_CONCAT(a.nr), '') INTO @incumbent_now, @incumbent_mine \
             FROM {ASKED} STRAIGHT_JOIN incumbent_record r ON {SAME_KEY} WHERE {AS_SEEN} {lock}; \
             UPDATE {ASKED} STRAIGHT_JOIN incumbent_record r ON {SAME_KEY} SET \
             r.version = GREATEST(r.version + 1, @incumbent_now), \
             r.bell = CASE WHEN a.rule = {RAISE} THEN '{bell}' ELSE r.bell END, \
             r.token = CASE WHEN a.rule = {KEEP} THEN r.token WHEN a.rule = {RAISE} THEN GREATEST(r.token + 1, @incumbent_now) ELSE a.rule END, \
             r.body = CASE WHEN a.body = '-' THEN r.body ELSE UNHEX(SUBSTR(a.body, 2)) END \
             WHERE FIND_IN_SET(a.nr, @incumbent_mine) AND {AS_SEEN}; \
             {here}; \
             SELECT a.nr, FIND_IN_SET(a.nr, @incumbent_mine) > 0, COALESCE({AS_SEEN}, 0), r.version, r.token \
             FROM {ASKED} LEFT JOIN incumbent_record r ON {SAME_KEY}; \
             COMMIT",
            asked = asked(asks),
            bell = self.bell,
            here = self.here,
        )
    }
}

/// What changes of an election's records except by a renewal, for all of `elections`: election, note, and a number.
pub(super) fn digest(elections: &[String]) -> String {
    let both = elections.iter().flat_map(|election| ["", "handover"].map(|note| (election.as_str(), note)));
    format!(
        "SELECT election, note, CRC32(CONCAT(token, '/', IF(note = '', '', version), '/', body)) FROM incumbent_record \
         WHERE (election, note) IN ({})",
        keys(both)
    )
}

/// Waits for a lock until it is let go, and lets it go at once: the server does both, whatever becomes of the client. And it says
/// whether nobody held it.
pub(super) fn hear(bell: &str, seconds: u64) -> String {
    format!(
        "SELECT IS_FREE_LOCK('incumbent.{bell}'), GET_LOCK('incumbent.{bell}', {seconds}); \
         DO RELEASE_LOCK('incumbent.{bell}')"
    )
}

/// Takes a lock.
pub(super) fn hang(bell: &str, seconds: u64) -> String {
    format!("SELECT GET_LOCK('incumbent.{bell}', {seconds})")
}

/// Lets a lock go, so that all who wait for it are told, and takes it again behind them.
pub(super) fn ring(bell: &str, seconds: u64) -> String {
    format!("DO RELEASE_LOCK('incumbent.{bell}'); {}", hang(bell, seconds))
}

fn keys<'a>(keys: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    keys.map(|(election, note)| format!("('{election}','{note}')")).collect::<Vec<_>>().join(",")
}

/// The requests as JSON: each its number, election, note, version, token, body as seen, rule for the token, body. A body is an x with
/// its bytes, or `-`.
fn asked(asks: &[&Ask]) -> String {
    let mut all = Vec::new();
    for (nr, ask) in asks.iter().enumerate() {
        let Ask::Swap { key, version, token_was, body_was, token, body } = ask else { continue };
        let rule = match token {
            TokenRule::Keep => KEEP,
            TokenRule::Raise => RAISE,
            TokenRule::Set(token) => token.0 as i64,
        };
        let bytes =
            |body: &Option<Vec<u8>>| body.as_ref().map_or("-".to_owned(), |body| format!("x{}", hex(body)));
        all.push(format!(
            "[{nr},\"{}\",\"{}\",{version},{token_was},\"{}\",{rule},\"{}\"]",
            key.election,
            note_name(key),
            bytes(body_was),
            bytes(body)
        ));
    }
    format!("[{}]", all.join(","))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
