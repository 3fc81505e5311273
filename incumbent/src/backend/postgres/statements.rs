//! The SQL. Each operation is one autocommit statement, so that it means the same behind a pooler; every answer says what its
//! commit was worth and in which history it stands.

use std::time::Duration;

/// The channel on which the table's triggers tell of changes; the payload is `schema/election`.
pub(super) const CHANNEL: &str = "incumbent";

/// All statements, for one schema.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) schema: String,
    /// No parameters; one row of what [`HERE`] says.
    pub(super) greet: String,
    /// Elections, notes.
    pub(super) read: String,
    /// Elections, notes, tokens (null: 0, below 0: raise), bodies.
    pub(super) create: String,
    /// Renewals: as [`take`](Statements::take). They leave out rows that another session has locked, and do not wait for
    /// transactions that prove their term by the function `prove`.
    pub(super) renew: String,
    /// Elections, notes, versions, tokens and bodies (null: any) as seen, new tokens (null: keep, below 0: raise), bodies (null: keep).
    /// Leaves out rows that another session has locked.
    pub(super) take: String,
    /// The same, and waits for locked rows.
    pub(super) take_waiting: String,
    /// An election; gives who could not be ended.
    pub(super) end_older: String,
    /// Writes a row and takes it back, so that the triggers are loaded too. Leaves nothing behind, whether it fails or not.
    pub(super) rehearse: String,
}

/// The columns that come with every answer, in this order.
///
/// `synchronous_commit` is set for this transaction alone: a setting of the session would be another client's behind a pooler.
const HERE: &str = "here AS MATERIALIZED (
    SELECT set_config('synchronous_commit',
                CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true) AS sync,
           set_config('lock_timeout', '{patience}', true) AS patience,
           pg_is_in_recovery() AS standby,
           (SELECT system_identifier FROM pg_control_system()) AS system,
           CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END AS timeline,
           current_database()::text AS database,
           current_setting('fsync') AS fsync
)";
const HERE_COLUMNS: &str = "here.sync, here.standby, here.system, here.timeline, here.database, here.fsync";
const MICROS: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8";

/// Makes the tables and functions, whatever is there already; one transaction, which two first users do not run at once.
pub(super) fn schema_sql(schema: &str) -> String {
    include_str!("schema.sql").replace("@schema@", &identifier(schema)).replace("@channel@", CHANNEL)
}

/// What lets `role` use them without owning them.
pub(super) fn grant_sql(schema: &str, role: &str) -> String {
    let (schema, role) = (identifier(schema), identifier(role));
    format!(
        "GRANT USAGE ON SCHEMA {schema} TO {role};\nGRANT SELECT, INSERT, UPDATE ON {schema}.record TO {role};\n"
    )
}

/// A name as SQL writes it.
fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl Statements {
    /// For this schema. A statement waits for a locked row no longer than `patience`.
    pub(super) fn new(schema: &str, patience: Duration) -> Statements {
        let table = format!("{}.record", identifier(schema));
        let here = HERE.replace("{patience}", &patience.as_millis().to_string());
        let take = |lock: &str| {
            format!(
                "WITH {here},
asked AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[], $5::bytea[], $6::int8[], $7::bytea[])
        WITH ORDINALITY AS a (election, note, version, token, seen, new_token, body, nr)
),
locked AS MATERIALIZED (
    SELECT a.nr, r.version, r.token, r.body FROM asked a JOIN {table} r ON r.election = a.election AND r.note = a.note, here
    ORDER BY r.election, r.note FOR {lock}
),
written AS (
    UPDATE {table} r SET
        version = greatest(r.version + 1, {MICROS}),
        token = CASE WHEN a.new_token IS NULL THEN r.token
                     WHEN a.new_token < 0 THEN greatest(r.token + 1, {MICROS})
                     ELSE a.new_token END,
        body = coalesce(a.body, r.body)
    FROM asked a JOIN locked l ON l.nr = a.nr
    WHERE r.election = a.election AND r.note = a.note AND l.version = a.version AND l.token = a.token
      AND (a.seen IS NULL OR l.body = a.seen)
    RETURNING a.nr, r.version, r.token
)
SELECT {HERE_COLUMNS}, a.nr, w.version, w.token, coalesce(r.version = a.version AND r.token = a.token AND (a.seen IS NULL OR r.body = a.seen), false) AS unchanged
FROM here CROSS JOIN asked a LEFT JOIN written w ON w.nr = a.nr
LEFT JOIN {table} r ON r.election = a.election AND r.note = a.note"
            )
        };
        Statements {
            schema: schema.to_owned(),
            greet: format!("WITH {here} SELECT {HERE_COLUMNS} FROM here"),
            read: format!(
                "WITH {here},
asked AS MATERIALIZED (SELECT * FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS a (election, note, nr))
SELECT {HERE_COLUMNS}, a.nr, r.version, r.token, r.body
FROM here CROSS JOIN asked a LEFT JOIN {table} r ON r.election = a.election AND r.note = a.note"
            ),
            create: format!(
                "WITH {here},
asked AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::int8[], $4::bytea[])
        WITH ORDINALITY AS a (election, note, token, body, nr)
),
written AS (
    INSERT INTO {table} AS r (election, note, version, token, body)
    SELECT a.election, a.note, {MICROS}, CASE WHEN a.token < 0 THEN {MICROS} ELSE coalesce(a.token, 0) END, a.body
    FROM asked a, here ORDER BY a.election, a.note
    ON CONFLICT DO NOTHING
    RETURNING r.election, r.note, r.version, r.token
)
SELECT {HERE_COLUMNS}, a.nr, w.version, w.token
FROM here CROSS JOIN asked a LEFT JOIN written w ON w.election = a.election AND w.note = a.note"
            ),
            renew: take("NO KEY UPDATE OF r SKIP LOCKED"),
            take: take("UPDATE OF r SKIP LOCKED"),
            take_waiting: take("UPDATE OF r"),
            end_older: format!("SELECT {}.end_older($1)", identifier(schema)),
            rehearse: format!(
                "DO $$ BEGIN
    PERFORM set_config('synchronous_commit', 'off', true); -- its empty commit waits for nobody
    BEGIN
        INSERT INTO {table} VALUES ('', 'rehearsal ' || pg_backend_pid(), 0, 0, '');
        UPDATE {table} SET version = 1 WHERE election = '' AND note = 'rehearsal ' || pg_backend_pid();
        RAISE EXCEPTION 'enough';
    EXCEPTION WHEN others THEN NULL;
    END;
END $$"
            ),
        }
    }
}
