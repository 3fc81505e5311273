CREATE TABLE IF NOT EXISTS incumbent_fence (
    name text NOT NULL PRIMARY KEY,
    v integer NOT NULL,
    authority text NOT NULL,
    token bigint NOT NULL
);

-- Makes a token the highest. Waits for the transactions inside; those that are still there after a second are ended, as a leader may
-- be frozen inside one. Whoever is inside holds a lower token than this one, or it would be refused.
CREATE OR REPLACE FUNCTION incumbent_fence_raise(fence text, by_authority text, to_token bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    key constant bigint := hashtextextended('incumbent_fence/' || fence, 0);
    patience constant text := current_setting('lock_timeout');
    stored incumbent_fence;
    inside record;
    spared text;
BEGIN
    INSERT INTO incumbent_fence VALUES (fence, 1, by_authority, to_token) ON CONFLICT DO NOTHING;
    FOR attempt IN 1..10 LOOP
        SELECT * INTO STRICT stored FROM incumbent_fence f WHERE f.name = fence;
        PERFORM incumbent_fence_judge(stored, by_authority, to_token);
        IF stored.token = to_token THEN
            RETURN;
        END IF;
        spared := NULL;
        PERFORM set_config('lock_timeout', '1000', true);
        BEGIN
            -- Who asks to come in from now on waits behind this.
            PERFORM pg_advisory_xact_lock(key);
            SELECT * INTO STRICT stored FROM incumbent_fence f WHERE f.name = fence FOR UPDATE;
            PERFORM set_config('lock_timeout', patience, true);
            PERFORM incumbent_fence_judge(stored, by_authority, to_token);
            UPDATE incumbent_fence f SET token = to_token WHERE f.name = fence AND f.token < to_token;
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            FOR inside IN
                SELECT l.pid, coalesce(a.usename, '?') AS role, coalesce(a.application_name, '') AS application
                FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
                WHERE l.locktype = 'advisory' AND l.granted AND l.pid <> pg_backend_pid() AND l.objsubid = 1
                  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                  AND (l.classid::bigint << 32) | l.objid::bigint = key
            LOOP
                BEGIN
                    PERFORM pg_terminate_backend(inside.pid);
                EXCEPTION WHEN insufficient_privilege THEN
                    spared := concat_ws(', ', spared,
                        format('process %s of role %s (%s)', inside.pid, inside.role, inside.application));
                END;
            END LOOP;
        END;
        IF spared IS NOT NULL THEN
            RAISE EXCEPTION 'older sessions are inside the fence %, and this role may not end them: %', fence, spared
                USING ERRCODE = 'lock_not_available',
                HINT = format('end them, or run: GRANT pg_signal_backend TO %I', current_user);
        END IF;
    END LOOP;
    RAISE EXCEPTION 'older sessions stay inside the fence % although they were ended', fence
        USING ERRCODE = 'lock_not_available';
END $$;

-- Refuses a token that is older than the one that stands there, or another authority's.
CREATE OR REPLACE FUNCTION incumbent_fence_judge(stored incumbent_fence, by_authority text, with_token bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF stored.v <> 1 THEN
        RAISE EXCEPTION 'a newer release wrote the fence %; update this program', stored.name USING ERRCODE = 'FENCE';
    ELSIF stored.authority <> by_authority THEN
        RAISE EXCEPTION 'the fence % knows tokens of authority %, this one is of %; if the election has moved there for good, an operator runs what `incumbent fence sql --adopt` prints',
            stored.name, stored.authority, by_authority USING ERRCODE = 'FENCE';
    ELSIF with_token < stored.token THEN
        RAISE EXCEPTION 'token % is older than %, which the fence % has seen: another leads', with_token, stored.token, stored.name
            USING ERRCODE = 'FENCE';
    END IF;
END $$;

-- The guard of one transaction, first in it: nobody raises the fence until it ends. Transactions of one leader run beside each
-- other. A token that is higher than the one that stands there raises it. With the rest of the lease in milliseconds, the
-- server ends each statement, and the transaction if it idles, no later than that.
CREATE OR REPLACE FUNCTION incumbent_fence_guard(fence text, by_authority text, with_token bigint, rest_ms integer DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    stored incumbent_fence;
    done text; -- an assignment costs less than PERFORM, which runs a query
BEGIN
    IF by_authority IS NULL OR with_token IS NULL THEN
        RAISE EXCEPTION 'the fence % is shown no token', fence USING ERRCODE = 'FENCE';
    END IF;
    -- Nearly always it is the token that stands there, and nobody raises it: one statement. The lock comes after the judgement,
    -- since who waits for the lock of a raise, or raises, must not hold it.
    PERFORM FROM incumbent_fence f WHERE f.name = fence AND CASE
        WHEN f.v = 1 AND f.authority = by_authority AND f.token = with_token
        THEN pg_try_advisory_xact_lock_shared(hashtextextended('incumbent_fence/' || fence, 0))
    END FOR SHARE;
    IF NOT FOUND THEN
        SELECT * INTO stored FROM incumbent_fence f WHERE f.name = fence;
        IF NOT FOUND OR stored.token < with_token THEN
            PERFORM incumbent_fence_raise(fence, by_authority, with_token);
        ELSE
            -- Refused before it waits for anybody, and judged once more when nobody can raise it any more.
            PERFORM incumbent_fence_judge(stored, by_authority, with_token);
            PERFORM pg_advisory_xact_lock_shared(hashtextextended('incumbent_fence/' || fence, 0));
            SELECT * INTO stored FROM incumbent_fence f WHERE f.name = fence FOR SHARE;
            PERFORM incumbent_fence_judge(stored, by_authority, with_token);
        END IF;
    END IF;
    IF rest_ms IS NOT NULL THEN
        done := set_config('statement_timeout', greatest(rest_ms, 1)::text, true);
        done := set_config('idle_in_transaction_session_timeout', greatest(rest_ms, 1)::text, true);
    END IF;
END $$;

-- For programs that cannot be changed: each of their writes to the table shows the token of the session's settings, which
-- PGOPTIONS="-c incumbent.authority=$INCUMBENT_AUTHORITY -c incumbent.token=$INCUMBENT_TOKEN" gives to whatever uses libpq.
--   CREATE TRIGGER fenced BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON charge
--       FOR EACH STATEMENT EXECUTE FUNCTION incumbent_fence_trigger('billing');
CREATE OR REPLACE FUNCTION incumbent_fence_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM incumbent_fence_guard(TG_ARGV[0], nullif(current_setting('incumbent.authority', true), ''),
        nullif(current_setting('incumbent.token', true), '')::bigint);
    RETURN NULL;
END $$
