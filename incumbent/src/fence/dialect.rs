//! Whose SQL a fence speaks, and its statements.

use std::fmt;
use std::str::FromStr;

use incumbent_core::{Error, ErrorKind, Result};

/// Whose SQL is spoken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// MariaDB 10.6 and MySQL 8.0, and later.
    Mysql,
    /// PostgreSQL 14 and later.
    Postgres,
    /// SQLite 3.24 and later. Begin the transaction with `BEGIN IMMEDIATE`.
    Sqlite,
}

impl Dialect {
    /// All of them.
    pub const ALL: &[Dialect] = &[Dialect::Mysql, Dialect::Postgres, Dialect::Sqlite];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Mysql => "mysql",
            Dialect::Postgres => "postgres",
            Dialect::Sqlite => "sqlite",
        }
    }

    /// A text as its SQL writes it.
    pub(super) fn literal(self, text: &str) -> String {
        let quoted = text.replace('\'', "''");
        match self {
            // Whether a backslash stands for itself is the session's choice.
            Dialect::Mysql if text.contains('\\') => {
                let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
                format!("_utf8mb4 X'{hex}'")
            }
            Dialect::Postgres if text.contains('\\') => format!("E'{}'", quoted.replace('\\', "\\\\")),
            _ => format!("'{quoted}'"),
        }
    }

    /// Makes the table `incumbent_fence`, if it is not there, and the functions on it. No parameters. For MySQL it is several
    /// statements, to be sent as one text; its own shell wants them between `DELIMITER //` and `//`.
    pub fn ddl(self) -> &'static str {
        match self {
            Dialect::Mysql => include_str!("mysql.sql").trim_ascii_end(),
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
            Dialect::Mysql => "CALL incumbent_fence_admit(?, ?, ?)",
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
            Dialect::Mysql => {
                "SELECT authority, token FROM incumbent_fence WHERE name = ? AND v = 1 LOCK IN SHARE MODE"
            }
            Dialect::Postgres => "SELECT authority, token FROM incumbent_fence WHERE name = $1 AND v = 1",
            Dialect::Sqlite => "SELECT authority, token FROM incumbent_fence WHERE name = ?1 AND v = 1",
        }
    }

    /// Accepts an authority and a token whatever was there: an operator's act. Parameters: name, authority, token.
    pub fn adopt(self) -> &'static str {
        match self {
            Dialect::Mysql => {
                "INSERT INTO incumbent_fence (name, v, authority, token) VALUES (?, 1, ?, ?)
ON DUPLICATE KEY UPDATE
    authority = IF(v = 1, VALUES(authority), authority), token = IF(v = 1, VALUES(token), token)"
            }
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
