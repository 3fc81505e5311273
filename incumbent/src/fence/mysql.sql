CREATE TABLE IF NOT EXISTS incumbent_fence (
    name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    v INT NOT NULL,
    authority VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    token BIGINT NOT NULL
) ENGINE = InnoDB;

-- Refuses a token that is older than the one that stands there, or another authority's.
CREATE /*M! OR REPLACE */ PROCEDURE /*!80029 IF NOT EXISTS */ incumbent_fence_judge(
    fence VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    stored_v INT, stored_authority VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, stored_token BIGINT,
    by_authority VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, with_token BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE why VARCHAR(1000) CHARACTER SET utf8mb4;
    IF by_authority IS NULL OR with_token IS NULL THEN
        SET why = CONCAT('the fence ', fence, ' is shown no token');
    ELSEIF stored_v <> 1 THEN
        SET why = CONCAT('a newer release wrote the fence ', fence, '; update this program');
    ELSEIF stored_authority <> by_authority THEN
        SET why = CONCAT('the fence ', fence, ' knows tokens of another authority, ', stored_authority,
            '; if the election has moved for good, run what `incumbent fence sql --adopt` prints');
    ELSEIF with_token < stored_token THEN
        SET why = CONCAT('token ', with_token, ' is older than ', stored_token, ', which the fence ', fence, ' has seen: another leads');
    END IF;
    IF why IS NOT NULL THEN
        SET why = LEFT(why, 500);
        -- MySQL takes no longer one.
        /*!50700 SET why = LEFT(why, 128); */
        SIGNAL SQLSTATE 'FENCE' SET MESSAGE_TEXT = why;
    END IF;
END;

-- What a session has locked by name that came in while this token stood there (0: none). It is what others know it by, and costs no row.
CREATE /*M! OR REPLACE */ PROCEDURE /*!80029 IF NOT EXISTS */ incumbent_fence_mark(
    fence VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, stored_token BIGINT, OUT mark VARCHAR(64))
SQL SECURITY INVOKER
BEGIN
    SET mark = CONCAT('incumbent:', LEFT(MD5(CONCAT(DATABASE(), '/', fence)), 16), ':', stored_token, ':');
END;

-- Ends the sessions that came in while this token stood there and are in a transaction. Without the privilege PROCESS nobody sees who
-- is in one, and only sessions of the same user are seen at all; an idle one of an older leader is ended with them. Names those that
-- it may not end.
CREATE /*M! OR REPLACE */ PROCEDURE /*!80029 IF NOT EXISTS */ incumbent_fence_end_older(
    fence VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, stored_token BIGINT, OUT ended INT)
SQL SECURITY INVOKER
BEGIN
    DECLARE mark VARCHAR(64);
    DECLARE session_id BIGINT UNSIGNED;
    DECLARE session_user_name VARCHAR(400) CHARACTER SET utf8mb4;
    DECLARE seen INT DEFAULT 0;
    DECLARE at_end, denied BOOLEAN DEFAULT FALSE;
    DECLARE spared VARCHAR(1000) CHARACTER SET utf8mb4;
    DECLARE inside CURSOR FOR
        SELECT p.ID, CONCAT(p.USER, '@', p.HOST) FROM information_schema.PROCESSLIST p
        WHERE p.ID <> CONNECTION_ID() AND IS_USED_LOCK(CONCAT(mark, p.ID)) = p.ID
          AND (seen = 0 OR p.ID IN (SELECT t.trx_mysql_thread_id FROM information_schema.INNODB_TRX t));
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET at_end = TRUE;
    SET ended = 0;
    CALL incumbent_fence_mark(fence, stored_token, mark);
    BEGIN
        -- MySQL refuses to show them, MariaDB shows none.
        DECLARE CONTINUE HANDLER FOR 1227 SET seen = 0;
        SELECT COUNT(*) INTO seen FROM information_schema.INNODB_TRX;
    END;
    OPEN inside;
    one: LOOP
        FETCH inside INTO session_id, session_user_name;
        IF at_end THEN
            LEAVE one;
        END IF;
        SET denied = FALSE;
        BEGIN
            -- It has ended by itself; it is another user's.
            DECLARE CONTINUE HANDLER FOR 1094 BEGIN END;
            DECLARE CONTINUE HANDLER FOR 1095 SET denied = TRUE;
            KILL CONNECTION session_id;
        END;
        IF denied THEN
            SET spared = CONCAT_WS(', ', spared, CONCAT('connection ', session_id, ' of ', session_user_name));
        ELSE
            SET ended = ended + 1;
        END IF;
    END LOOP;
    CLOSE inside;
    IF spared IS NOT NULL THEN
        SET spared = LEFT(CONCAT('older sessions are inside the fence ', fence, ', and ', CURRENT_USER(),
            ' may not end them: ', spared, '; end them, or grant CONNECTION ADMIN'), 500);
        /*!50700 SET spared = LEFT(spared, 128); */
        SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205, MESSAGE_TEXT = spared;
    END IF;
END;

-- Makes a token the highest, in a transaction of its own. Waits a second for the transactions inside; those that are still there
-- are ended, as a leader may be frozen inside one. Whoever is inside holds a lower token than this one, or it would be refused.
CREATE /*M! OR REPLACE */ PROCEDURE /*!80029 IF NOT EXISTS */ incumbent_fence_raise(
    fence VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    by_authority VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, to_token BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE patience INT DEFAULT @@SESSION.innodb_lock_wait_timeout;
    DECLARE stored_v, ended INT;
    DECLARE stored_authority VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE stored_token BIGINT;
    DECLARE attempts, nobody INT DEFAULT 0;
    DECLARE blocked BOOLEAN;
    DECLARE why VARCHAR(1000) CHARACTER SET utf8mb4;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET stored_token = NULL;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        SET SESSION innodb_lock_wait_timeout = patience;
        RESIGNAL;
    END;
    /*M! IF @@in_transaction THEN
        SIGNAL SQLSTATE '25001' SET MESSAGE_TEXT = 'a fence is raised in a transaction of its own; commit or roll back first';
    END IF; */
    CALL incumbent_fence_judge(fence, 1, by_authority, to_token, by_authority, to_token);
    SET SESSION innodb_lock_wait_timeout = 1;
    raising: LOOP
        SET blocked = FALSE;
        BEGIN
            DECLARE EXIT HANDLER FOR 1205 SET blocked = TRUE;
            -- Each in a transaction of its own, so that no two of these wait for each other.
            SELECT f.v, f.authority, f.token INTO stored_v, stored_authority, stored_token
                FROM incumbent_fence f WHERE f.name = fence LOCK IN SHARE MODE;
            COMMIT;
            IF stored_token IS NULL THEN
                INSERT IGNORE INTO incumbent_fence VALUES (fence, 1, by_authority, to_token);
            ELSE
                CALL incumbent_fence_judge(fence, stored_v, stored_authority, stored_token, by_authority, to_token);
                IF stored_token = to_token THEN
                    LEAVE raising;
                END IF;
                -- Who asks to come in from now on waits behind this.
                UPDATE incumbent_fence f SET f.token = to_token
                    WHERE f.name = fence AND f.v = 1 AND f.authority = by_authority AND f.token < to_token;
            END IF;
            COMMIT;
        END;
        IF blocked THEN
            ROLLBACK;
            SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
            SELECT f.token INTO stored_token FROM incumbent_fence f WHERE f.name = fence;
            COMMIT;
            CALL incumbent_fence_end_older(fence, IFNULL(stored_token, 0), ended);
            SET attempts = attempts + 1;
            SET nobody = IF(ended = 0, nobody + 1, 0);
            -- Once, they may have ended just now.
            IF nobody > 1 OR attempts >= 10 THEN
                SET why = LEFT(CONCAT('sessions are inside the fence ', fence, ' that ', CURRENT_USER(),
                    ' cannot see or end; end them, or grant PROCESS and CONNECTION ADMIN'), 500);
                /*!50700 SET why = LEFT(why, 128); */
                SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205, MESSAGE_TEXT = why;
            END IF;
        END IF;
    END LOOP;
    SET SESSION innodb_lock_wait_timeout = patience;
END;

-- The guard of one transaction, first in it: nobody raises the fence until it ends. Transactions of one leader run beside each
-- other. A token that is higher than the one that stands there raises it, if nobody is inside. With the rest of the lease in
-- milliseconds, MariaDB ends each statement, and the session if its transaction idles, no later than that (but a second, if less is
-- left, for the idle one); MySQL ends reading statements only. That stays in force in this session until the next guard.
CREATE /*M! OR REPLACE */ PROCEDURE /*!80029 IF NOT EXISTS */ incumbent_fence_guard(
    fence VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    by_authority VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, with_token BIGINT, rest_ms BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE stored_v INT;
    DECLARE stored_authority VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE stored_token, before_it BIGINT;
    DECLARE mark VARCHAR(64);
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET stored_token = NULL;
    CALL incumbent_fence_judge(fence, 1, by_authority, with_token, by_authority, with_token);
    -- Reads that lock: another would fix what the transaction sees before it has waited.
    SELECT f.v, f.authority, f.token INTO stored_v, stored_authority, stored_token
        FROM incumbent_fence f WHERE f.name = fence LOCK IN SHARE MODE;
    SET before_it = IFNULL(stored_token, 0);
    IF stored_token IS NULL THEN
        INSERT IGNORE INTO incumbent_fence VALUES (fence, 1, by_authority, with_token);
        SELECT f.v, f.authority, f.token INTO stored_v, stored_authority, stored_token
            FROM incumbent_fence f WHERE f.name = fence LOCK IN SHARE MODE;
    END IF;
    CALL incumbent_fence_judge(fence, stored_v, stored_authority, stored_token, by_authority, with_token);
    CALL incumbent_fence_mark(fence, before_it, mark);
    SET mark = CONCAT(mark, CONNECTION_ID());
    IF NOT (IS_USED_LOCK(mark) <=> CONNECTION_ID()) THEN
        DO GET_LOCK(mark, 0);
    END IF;
    IF stored_token < with_token THEN
        UPDATE incumbent_fence f SET f.token = with_token WHERE f.name = fence;
    END IF;
    IF rest_ms IS NOT NULL THEN
        /*M! SET SESSION max_statement_time = GREATEST(rest_ms, 1) / 1000, SESSION idle_transaction_timeout = GREATEST(rest_ms DIV 1000, 1); */
        /*!50708 SET SESSION max_execution_time = GREATEST(rest_ms, 1); */
        DO 0;
    END IF;
END;

-- The guard for drivers that ask first and judge then: what it refuses is no error.
CREATE /*M! OR REPLACE */ PROCEDURE /*!80029 IF NOT EXISTS */ incumbent_fence_admit(
    fence VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    by_authority VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, with_token BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE CONTINUE HANDLER FOR SQLSTATE 'FENCE' BEGIN END;
    CALL incumbent_fence_guard(fence, by_authority, with_token, NULL);
END;

-- For programs that cannot be changed: each row that they write shows the token of the session's variables, which
-- `init-command=SET @incumbent_authority = …, @incumbent_token = …` in an option file, or the driver's own setting, gives to them.
--   CREATE TRIGGER fenced_insert BEFORE INSERT ON charge FOR EACH ROW CALL incumbent_fence_trigger('billing');
-- and the same for UPDATE and DELETE. MySQL has no trigger for TRUNCATE: do not grant DROP on the table.
CREATE /*M! OR REPLACE */ PROCEDURE /*!80029 IF NOT EXISTS */ incumbent_fence_trigger(
    fence VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)
SQL SECURITY INVOKER
BEGIN
    CALL incumbent_fence_guard(fence, NULLIF(CONVERT(@incumbent_authority USING utf8mb4), ''),
        NULLIF(CONVERT(@incumbent_token USING utf8mb4), ''), NULL);
END
