SELECT pg_advisory_xact_lock(7308332);
CREATE SCHEMA IF NOT EXISTS @schema@;
CREATE TABLE IF NOT EXISTS @schema@.record (
    election text NOT NULL,
    note text NOT NULL,
    version bigint NOT NULL,
    token bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (election, note)
) WITH (fillfactor = 50);

-- Tells of every change, also of one by hand. After a TRUNCATE everyone has to look.
CREATE OR REPLACE FUNCTION @schema@.tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('@channel@', TG_TABLE_SCHEMA || '/' ||
        CASE TG_OP WHEN 'TRUNCATE' THEN '' WHEN 'DELETE' THEN OLD.election ELSE NEW.election END);
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS tell ON @schema@.record;
CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON @schema@.record
    FOR EACH ROW EXECUTE FUNCTION @schema@.tell();
DROP TRIGGER IF EXISTS tell_all ON @schema@.record;
CREATE TRIGGER tell_all AFTER TRUNCATE ON @schema@.record
    FOR EACH STATEMENT EXECUTE FUNCTION @schema@.tell();

-- First in a transaction: it commits only what this term may still write. Renewals go on beside it; who wants to acquire the
-- election waits for its end, and ends it if that takes longer than a second.
CREATE OR REPLACE FUNCTION @schema@.prove(of_election text, with_token bigint, rest_ms integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    nonce text;
BEGIN
    -- Shows who is inside.
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('@schema@/' || of_election, 0));
    SELECT convert_from(r.body, 'UTF8')::jsonb #>> '{holder,nonce}' INTO nonce FROM @schema@.record r
        WHERE r.election = of_election AND r.note = '' AND r.token = with_token FOR KEY SHARE;
    IF nonce IS NULL THEN
        RAISE EXCEPTION 'token % does not hold the election % any more: another leads', with_token, of_election
            USING ERRCODE = 'FENCE';
    END IF;
    IF rest_ms IS NOT NULL THEN
        PERFORM set_config('statement_timeout', greatest(rest_ms, 1)::text, true);
        PERFORM set_config('idle_in_transaction_session_timeout', greatest(rest_ms, 1)::text, true);
    END IF;
END $$;

-- Ends the transactions that prove the term whose lease is over, and names those that this role may not end.
CREATE OR REPLACE FUNCTION @schema@.end_older(of_election text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    key constant bigint := hashtextextended('@schema@/' || of_election, 0);
    inside record;
    spared text;
BEGIN
    FOR inside IN
        SELECT l.pid, coalesce(a.usename, '?') AS role FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'advisory' AND l.granted AND l.pid <> pg_backend_pid() AND l.objsubid = 1
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND (l.classid::bigint << 32) | l.objid::bigint = key
    LOOP
        BEGIN
            PERFORM pg_terminate_backend(inside.pid);
        EXCEPTION WHEN insufficient_privilege THEN
            spared := concat_ws(', ', spared, format('process %s of role %s', inside.pid, inside.role));
        END;
    END LOOP;
    RETURN spared;
END $$;
