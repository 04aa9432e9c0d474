-- Every statement that the PostgreSQL driver runs, by name.
-- Transactions are READ COMMITTED. A statement that waits for a row looks at it again, so what may
-- be taken from its owner is locked by who relies on it: a run's row for what the run writes, and a
-- worker's row for what the worker claims. Locks are taken in this order: worker, queues in the order
-- of their names, pieces in the order of their digests, run, the run that started it, receipt,
-- checkpoint or message, sessions in the order of their names, what is in them. Nothing but the end
-- of a run waits for a run after it has locked another.
-- A statement of many rows gets each column as an array, and returns the place of each row in them.

-- name: server
-- What the driver has to know of a server: its settings, its database and its clock.
SELECT current_setting('server_version'), current_setting('synchronous_commit'),
       current_setting('fsync'), current_setting('server_encoding'),
       current_database(), extract(epoch FROM clock_timestamp())::double precision,
       pg_is_in_recovery();

-- name: process
-- The process of the server that runs this.
SELECT pg_backend_pid();

-- name: time
-- The server's clock.
SELECT extract(epoch FROM clock_timestamp())::double precision;

-- name: has_schema
-- Whether the schema is there, and the table of its version. The catalog is read itself: what a
-- session has looked up by name, it remembers, also when somebody else has made it since.
SELECT count(*) > 0, count(classes.oid) > 0
FROM pg_catalog.pg_namespace AS namespaces LEFT JOIN pg_catalog.pg_class AS classes
  ON classes.relnamespace = namespaces.oid AND classes.relname = 'migrations'
WHERE namespaces.nspname = %(schema)s;

-- name: lock_migrations
-- Wait for whoever else migrates this database, until the end of the transaction.
SELECT pg_advisory_xact_lock(8097870264746635621);

-- name: limit_migration
-- Bound what a migration waits for, and how long others wait for one that was frozen inside it.
SELECT set_config('lock_timeout', %(lock_ms)s::text, true),
       set_config('idle_in_transaction_session_timeout', %(idle_ms)s::text, true),
       set_config('statement_timeout', %(statement_ms)s::text, true);

-- name: who_migrates
-- The connections that hold the lock of migrations, and what each says that it is.
SELECT locks.pid, activity.application_name, host(activity.client_addr)
FROM pg_locks AS locks LEFT JOIN pg_stat_activity AS activity ON activity.pid = locks.pid
WHERE locks.locktype = 'advisory' AND locks.granted AND locks.objsubid = 1
AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND (locks.classid::bigint << 32) | locks.objid::bigint = 8097870264746635621;

-- name: create_schema
-- Make the schema.
CREATE SCHEMA IF NOT EXISTS perdure;

-- name: create_migrations
-- Make the table that knows the version of the schema.
CREATE TABLE IF NOT EXISTS perdure.migrations (
  version integer PRIMARY KEY,
  applied_at timestamptz NOT NULL DEFAULT now()
);

-- name: schema_version
-- The version of the schema, 0 for an empty one.
SELECT COALESCE(max(version), 0) FROM perdure.migrations;

-- name: note_migration
-- Note that a migration was made.
INSERT INTO perdure.migrations (version) VALUES (%(version)s);

-- name: notify
-- Tell every process that listens that something has changed.
SELECT pg_notify(%(channel)s, %(payload)s);

-- name: start_runs
-- Write runs whose ids are not taken; claimed by their holders where those still stand.
WITH input AS (
  SELECT * FROM unnest(
    %(run_id)s::text[], %(function)s::text[], %(version)s::bigint[], %(holder)s::text[],
    %(token)s::bytea[], %(created_at)s::double precision[], %(deadline_at)s::double precision[],
    %(parent)s::text[], %(queue)s::text[], %(queue_key)s::text[], %(priority)s::bigint[],
    %(input_sha256)s::bytea[],
    %(input_piece)s::bytea[], %(input_packing)s::bigint[], %(input)s::bytea[]
  ) WITH ORDINALITY AS input (run_id, function, version, holder, token, created_at, deadline_at,
                              parent, queue, queue_key, priority, input_sha256, input_piece,
                              input_packing, input, place)
), kept AS (
  INSERT INTO perdure.pieces (digest, parent, packing, data)
  SELECT * FROM unnest(%(piece_digest)s::bytea[], %(piece_parent)s::bytea[],
                       %(piece_packing)s::bigint[], %(piece_data)s::bytea[])
    AS new (digest, parent, packing, data)
  ORDER BY digest
  ON CONFLICT (digest) DO NOTHING
), standing AS MATERIALIZED (
  SELECT holder FROM perdure.workers WHERE holder = ANY(%(holder)s::text[]) AND gone = 0 FOR SHARE
), created AS (
  INSERT INTO perdure.runs (run_id, function, version, state, holder, generation, created_at,
                            started_at, deadline_at, parent, queue, queue_key, priority,
                            input_sha256, input_piece, input_packing, input)
  SELECT input.run_id, input.function, input.version,
         CASE WHEN standing.holder IS NULL THEN 'pending' ELSE 'running' END,
         standing.holder, CASE WHEN standing.holder IS NULL THEN 0 ELSE 1 END, input.created_at,
         CASE WHEN standing.holder IS NOT NULL THEN input.created_at END, input.deadline_at,
         input.parent, input.queue, input.queue_key, input.priority, input.input_sha256,
         input.input_piece, input.input_packing, input.input
  FROM input LEFT JOIN standing ON standing.holder = input.holder
  ON CONFLICT (run_id) DO NOTHING
  RETURNING run_number, run_id, holder
), noted AS (
  INSERT INTO perdure.attempts (run_number, generation, holder, token, claimed_at)
  SELECT created.run_number, 1, created.holder, input.token, input.created_at
  FROM created JOIN input ON input.run_id = created.run_id WHERE created.holder IS NOT NULL
)
SELECT input.place, created.holder FROM created JOIN input ON input.run_id = created.run_id;

-- name: started_before
-- Whether a run was written and claimed by the caller itself, whose connection was lost meanwhile.
SELECT runs.holder FROM perdure.runs AS runs
JOIN perdure.attempts AS attempts
  ON attempts.run_number = runs.run_number AND attempts.generation = 1
WHERE runs.run_id = %(run_id)s AND attempts.token = %(token)s
AND runs.generation = 1 AND runs.holder = attempts.holder;

-- name: read_run
-- One run as it stands.
SELECT * FROM perdure.runs_read WHERE run_id = %(run_id)s;

-- name: read_settled
-- Those of the runs that no worker will go on with by itself.
SELECT * FROM perdure.runs_read
WHERE run_id = ANY(%(run_ids)s::text[]) AND state IN ('needs_attention', 'completed', 'failed', 'cancelled');

-- name: read_run_input
-- The exact input of a run, unless it was erased.
SELECT input_piece, input_packing, input, erased_by, erased_why FROM perdure.runs WHERE run_id = %(run_id)s;

-- name: list_runs
-- The newest runs, newest first; no state means any.
SELECT * FROM perdure.runs_read
WHERE %(state)s::text IS NULL OR state = %(state)s::text
ORDER BY run_number DESC LIMIT %(limit)s;

-- name: count_runs
-- How many runs are in each state that has any.
SELECT state, count(*) FROM perdure.runs GROUP BY state;

-- name: any_waiting
-- Whether any run of no queue waits for a worker that serves what is served, and whether any waits
-- in one.
SELECT EXISTS (SELECT 1 FROM perdure.runs WHERE state = 'pending' AND queue IS NULL
               AND function || '@' || version = ANY(%(served)s::text[])
               AND (%(only)s::text[] IS NULL OR run_id = ANY(%(only)s::text[]))),
       EXISTS (SELECT 1 FROM perdure.runs WHERE state = 'pending' AND queue IS NOT NULL);

-- name: claim_runs
-- Take the oldest runs that wait in no queue, that this worker can serve and nobody else is taking.
WITH standing AS MATERIALIZED (
  SELECT holder FROM perdure.workers WHERE holder = %(holder)s AND gone = 0 FOR SHARE
), waiting AS MATERIALIZED (
  SELECT run_number FROM perdure.runs WHERE state = 'pending' AND queue IS NULL
  AND function || '@' || version = ANY(%(served)s::text[])
  AND (%(only)s::text[] IS NULL OR run_id = ANY(%(only)s::text[]))
  AND EXISTS (SELECT 1 FROM standing)
  ORDER BY run_number LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), claimed AS (
  UPDATE perdure.runs AS runs SET state = 'running', holder = %(holder)s,
                                  generation = runs.generation + 1,
                                  started_at = COALESCE(runs.started_at, %(now)s)
  FROM waiting WHERE runs.run_number = waiting.run_number
  RETURNING runs.run_number, runs.run_id, runs.generation, runs.function, runs.version,
            runs.started_at, runs.deadline_at, runs.parent, runs.input_sha256, runs.input_piece,
            runs.input_packing, runs.input
), noted AS (
  INSERT INTO perdure.attempts (run_number, generation, holder, token, claimed_at)
  SELECT run_number, generation, %(holder)s, %(token)s, %(now)s FROM claimed
)
SELECT run_id, generation, function, version, started_at, deadline_at, parent, input_sha256,
       input_piece, input_packing, input
FROM claimed ORDER BY run_number;

-- name: claimed_before
-- The runs of a claim that was made by the caller itself, whose connection was lost meanwhile.
SELECT runs.run_id, runs.generation, runs.function, runs.version, runs.started_at,
       runs.deadline_at, runs.parent, runs.input_sha256, runs.input_piece, runs.input_packing, runs.input
FROM perdure.attempts AS attempts JOIN perdure.runs AS runs
  ON runs.run_number = attempts.run_number AND runs.generation = attempts.generation
WHERE attempts.holder = %(holder)s AND attempts.token = %(token)s AND attempts.ended_at IS NULL
AND runs.holder = %(holder)s ORDER BY runs.run_number;

-- name: open_queues
-- The queues in which runs wait that may be let through, with their limits, how many runs of each
-- are executed, and how many began within its time. An instant that is further off is of a clock
-- that was set since.
SELECT name, concurrency, key_concurrency, rate_runs,
       (SELECT count(*) FROM perdure.runs AS runs
        WHERE runs.state IN ('running', 'cancelling') AND runs.queue = queues.name),
       CASE WHEN rate_runs IS NOT NULL
            THEN (SELECT count(*) FROM (
                    SELECT 1 FROM perdure.runs AS runs WHERE runs.queue = queues.name
                    AND runs.started_at > %(now)s - rate_seconds
                    AND runs.started_at <= %(now)s + rate_seconds LIMIT queues.rate_runs) AS begun)
            END
FROM perdure.queues AS queues WHERE NOT paused
AND (%(queues)s::text[] IS NULL OR name = ANY(%(queues)s::text[]))
-- Not EXISTS, and in the order of an index, so that not all that waits is read.
AND (SELECT runs.run_number FROM perdure.runs AS runs
     WHERE runs.state = 'pending' AND runs.queue = queues.name
     ORDER BY runs.started_at IS NULL LIMIT 1) IS NOT NULL
ORDER BY name;

-- name: lock_queues
-- Keep others from claiming runs of some queues, and the worker from being found gone, until the end
-- of the transaction; nothing for a worker that is gone.
WITH standing AS MATERIALIZED (
  SELECT holder FROM perdure.workers WHERE holder = %(holder)s AND gone = 0 FOR SHARE
)
SELECT name FROM perdure.queues
WHERE name = ANY(%(queues)s::text[]) AND EXISTS (SELECT 1 FROM standing)
ORDER BY name FOR UPDATE;

-- name: next_queued
-- The first runs that wait in a queue, of those that would begin, or of those that go on.
SELECT run_number, queue_key, priority, 0 FROM perdure.runs
WHERE state = 'pending' AND queue = %(queue)s AND (started_at IS NULL) = %(fresh)s
AND function || '@' || version = ANY(%(served)s::text[])
AND (%(only)s::text[] IS NULL OR run_id = ANY(%(only)s::text[]))
ORDER BY priority DESC, run_number LIMIT %(limit)s;

-- name: next_keyed
-- The same for a queue that bounds its keys, without what these have no place for. The keys are
-- looked up one after the other, so that those with much that waits cost no more than the others.
WITH RECURSIVE keys (queue_key) AS (
  (SELECT queue_key FROM perdure.runs
   WHERE state = 'pending' AND queue = %(queue)s AND queue_key IS NOT NULL
   ORDER BY queue_key LIMIT 1)
  UNION ALL
  SELECT later.queue_key FROM keys CROSS JOIN LATERAL (
    SELECT runs.queue_key FROM perdure.runs AS runs
    WHERE runs.state = 'pending' AND runs.queue = %(queue)s AND runs.queue_key > keys.queue_key
    ORDER BY runs.queue_key LIMIT 1) AS later
), open_keys AS (
  SELECT queue_key, held FROM keys CROSS JOIN LATERAL (
    SELECT count(*) AS held FROM perdure.runs AS runs
    WHERE runs.state IN ('running', 'cancelling') AND runs.queue = %(queue)s
    AND runs.queue_key = keys.queue_key) AS counted
  WHERE held < %(key_concurrency)s
), waiting AS (
  SELECT first.run_number, open_keys.queue_key, first.priority, open_keys.held
  FROM open_keys CROSS JOIN LATERAL (
    SELECT runs.run_number, runs.priority FROM perdure.runs AS runs
    WHERE runs.state = 'pending' AND runs.queue = %(queue)s
    AND runs.queue_key = open_keys.queue_key AND (runs.started_at IS NULL) = %(fresh)s
    AND runs.function || '@' || runs.version = ANY(%(served)s::text[])
    AND (%(only)s::text[] IS NULL OR runs.run_id = ANY(%(only)s::text[]))
    ORDER BY runs.priority DESC, runs.run_number LIMIT %(key_concurrency)s - open_keys.held
  ) AS first
  UNION ALL
  SELECT * FROM (
    SELECT run_number, queue_key, priority, 0 FROM perdure.runs
    WHERE state = 'pending' AND queue = %(queue)s AND queue_key IS NULL
    AND (started_at IS NULL) = %(fresh)s
    AND function || '@' || version = ANY(%(served)s::text[])
    AND (%(only)s::text[] IS NULL OR run_id = ANY(%(only)s::text[]))
    ORDER BY priority DESC, run_number LIMIT %(limit)s) AS without
)
SELECT run_number, queue_key, priority, held FROM waiting
ORDER BY priority DESC, run_number LIMIT %(limit)s;

-- name: claim_queued
-- Take those waiting runs for which their queues, which are locked, have places.
WITH waiting AS MATERIALIZED (
  SELECT run_number FROM perdure.runs
  WHERE state = 'pending' AND run_number = ANY(%(numbers)s::bigint[])
  ORDER BY run_number FOR UPDATE SKIP LOCKED
), claimed AS (
  UPDATE perdure.runs AS runs SET state = 'running', holder = %(holder)s,
                                  generation = runs.generation + 1,
                                  started_at = COALESCE(runs.started_at, %(now)s)
  FROM waiting WHERE runs.run_number = waiting.run_number
  RETURNING runs.run_number, runs.run_id, runs.generation, runs.function, runs.version,
            runs.started_at, runs.deadline_at, runs.parent, runs.input_sha256, runs.input_piece,
            runs.input_packing, runs.input
), noted AS (
  INSERT INTO perdure.attempts (run_number, generation, holder, token, claimed_at)
  SELECT run_number, generation, %(holder)s, %(token)s, %(now)s FROM claimed
)
SELECT run_id, generation, function, version, started_at, deadline_at, parent, input_sha256,
       input_piece, input_packing, input
FROM claimed ORDER BY array_position(%(numbers)s::bigint[], run_number);

-- name: unserved
-- Waiting runs that no served function can continue, oldest first.
SELECT * FROM perdure.runs_read WHERE state = 'pending'
AND function || '@' || version <> ALL(%(served)s::text[])
ORDER BY run_number LIMIT 100;

-- name: waiting_runs
-- The runs that wait for a worker behind the number :after, and the sessions that they answer in.
SELECT runs.run_id, function, version, session, run_number, generation
FROM perdure.runs LEFT JOIN perdure.turns ON turns.run_id = runs.run_id
WHERE state = 'pending' AND run_number > %(after)s
ORDER BY run_number LIMIT %(limit)s;

-- name: live_runs
-- Those of some runs that have not ended.
SELECT run_id FROM perdure.runs WHERE run_id = ANY(%(run_ids)s::text[])
AND state NOT IN ('completed', 'failed', 'cancelled');

-- name: lock_run
-- Keep others from changing a run until the end of the transaction.
SELECT 1 FROM perdure.runs WHERE run_id = %(run_id)s FOR UPDATE;

-- name: is_settled
-- Whether it is known what became of the effect that a run would wait for.
SELECT EXISTS (SELECT 1 FROM perdure.receipts
               WHERE operation_key = %(doubted)s::text AND state IN ('completed', 'failed'));

-- name: end_run
-- Write how a run ended and give up its ownership; cancelled, not parked, if that was asked for. A
-- run that would wait for a word on an effect waits for a worker if that is known.
WITH kept AS (
  INSERT INTO perdure.pieces (digest, parent, packing, data)
  SELECT * FROM unnest(%(piece_digest)s::bytea[], %(piece_parent)s::bytea[],
                       %(piece_packing)s::bigint[], %(piece_data)s::bytea[])
    AS new (digest, parent, packing, data)
  ORDER BY digest
  ON CONFLICT (digest) DO NOTHING
), ended AS (
  UPDATE perdure.runs SET
    state = CASE WHEN %(state)s = 'needs_attention' AND cancel_requested THEN 'cancelled'
                 WHEN %(known)s THEN 'pending' ELSE %(state)s END,
    output = %(output)s::bytea, output_piece = %(output_piece)s::bytea,
    output_packing = %(output_packing)s,
    problem = CASE WHEN NOT %(known)s THEN %(problem)s::bytea END,
    problem_code = CASE WHEN NOT %(known)s THEN %(problem_code)s::text END, holder = NULL,
    finished_at = CASE WHEN NOT %(known)s OR cancel_requested THEN %(now)s END
  WHERE run_id = %(run_id)s AND holder = %(holder)s AND generation = %(generation)s
  RETURNING run_number, state
), noted AS (
  UPDATE perdure.attempts AS attempts SET ended_at = %(now)s,
         ending = CASE WHEN ended.state = 'pending' THEN 'released' ELSE ended.state END,
         executed = %(executed)s, replayed = %(replayed)s
  FROM ended WHERE attempts.run_number = ended.run_number
  AND attempts.generation = %(generation)s
)
SELECT state FROM ended;

-- name: ended_before
-- How the caller itself ended a run, whose connection was lost meanwhile.
SELECT attempts.ending FROM perdure.attempts AS attempts JOIN perdure.runs AS runs
  ON runs.run_number = attempts.run_number
WHERE runs.run_id = %(run_id)s AND attempts.generation = %(generation)s
AND attempts.holder = %(holder)s AND attempts.ending NOT IN ('lost', 'released', 'locked');

-- name: release_run
-- Give a run back for any worker; a run whose cancellation was asked for is cancelled.
WITH released AS (
  UPDATE perdure.runs SET holder = NULL,
    state = CASE WHEN cancel_requested THEN 'cancelled' ELSE 'pending' END,
    finished_at = CASE WHEN cancel_requested THEN %(now)s::double precision END
  WHERE run_id = %(run_id)s AND holder = %(holder)s AND generation = %(generation)s
  RETURNING run_number
)
UPDATE perdure.attempts AS attempts SET ended_at = %(now)s, ending = %(ending)s
FROM released WHERE attempts.run_number = released.run_number
AND attempts.generation = %(generation)s;

-- name: park_run
-- Put away a run that only waits, unless what it waits for has come or its end was asked for. Its
-- row is locked before, in a statement of its own: this one sees every message that was committed
-- until then, and whoever sends another one waits until the run can be woken.
WITH heard AS (
  SELECT EXISTS (SELECT 1 FROM perdure.messages AS messages
                 WHERE messages.run_number = (SELECT run_number FROM perdure.runs
                                              WHERE run_id = %(run_id)s)
                 AND messages.name = ANY(%(awaits)s::text[])
                 AND messages.taken_at IS NULL) AS now
), parked AS (
  UPDATE perdure.runs AS runs SET holder = NULL,
    state = CASE WHEN cancel_requested THEN 'cancelled' WHEN heard.now THEN 'pending'
                 ELSE %(state)s::text END,
    wake_at = CASE WHEN NOT cancel_requested AND NOT heard.now
                   THEN least(%(until)s::double precision, deadline_at) END,
    finished_at = CASE WHEN cancel_requested THEN %(now)s::double precision END
  FROM heard
  WHERE run_id = %(run_id)s AND holder = %(holder)s AND generation = %(generation)s
  RETURNING run_number, runs.state
), noted AS (
  UPDATE perdure.attempts AS attempts SET ended_at = %(now)s,
         ending = CASE WHEN parked.state = 'pending' THEN 'released' ELSE parked.state END,
         executed = %(executed)s, replayed = %(replayed)s
  FROM parked WHERE attempts.run_number = parked.run_number
  AND attempts.generation = %(generation)s
)
SELECT state FROM parked;

-- name: parked_before
-- How the caller itself put a run away, whose connection was lost meanwhile.
SELECT CASE WHEN attempts.ending = 'released' THEN 'pending' ELSE attempts.ending END
FROM perdure.attempts AS attempts JOIN perdure.runs AS runs
  ON runs.run_number = attempts.run_number
WHERE runs.run_id = %(run_id)s AND attempts.generation = %(generation)s
AND attempts.holder = %(holder)s
AND attempts.ending IN ('sleeping', 'suspended', 'released', 'cancelled');

-- name: list_children
-- The runs that a run started, oldest first.
SELECT * FROM perdure.runs_read WHERE parent = %(run_id)s ORDER BY run_number LIMIT %(limit)s;

-- name: any_due
-- Whether any run waits whose time is over, and whether the rate of a queue lets one begin.
SELECT EXISTS (SELECT 1 FROM perdure.runs WHERE state IN ('sleeping', 'suspended')
               AND wake_at IS NOT NULL AND wake_at <= %(now)s),
       EXISTS (SELECT 1 FROM perdure.queues AS queues WHERE rate_runs IS NOT NULL AND NOT paused
               AND (SELECT runs.run_number FROM perdure.runs AS runs
                    WHERE runs.state = 'pending' AND runs.queue = queues.name
                    AND runs.started_at IS NULL
                    ORDER BY runs.priority DESC LIMIT 1) IS NOT NULL
               AND rate_runs > (SELECT count(*) FROM (
                 SELECT 1 FROM perdure.runs AS runs WHERE runs.queue = queues.name
                 AND runs.started_at > %(now)s - rate_seconds
                 AND runs.started_at <= %(now)s + rate_seconds LIMIT queues.rate_runs) AS begun));

-- name: wake_runs
-- Let runs whose time is over wait for a worker, those that are late first.
WITH due AS MATERIALIZED (
  SELECT run_number FROM perdure.runs WHERE state IN ('sleeping', 'suspended')
  AND wake_at IS NOT NULL AND wake_at <= %(now)s
  ORDER BY wake_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE perdure.runs AS runs SET state = 'pending', wake_at = NULL
FROM due WHERE runs.run_number = due.run_number
RETURNING 1;

-- name: cancel_run
-- Cancel a run and those below it: at once where nobody executes them, or by a flag. They are locked
-- from below, as by a run that ends and tells the one that started it.
WITH RECURSIVE below (run_number, run_id, depth) AS (
  SELECT run_number, run_id, 0 FROM perdure.runs
  WHERE run_id = %(run_id)s AND state NOT IN ('completed', 'failed', 'cancelled')
  UNION ALL
  SELECT runs.run_number, runs.run_id, below.depth + 1
  FROM perdure.runs AS runs JOIN below ON runs.parent = below.run_id
  -- Only a damaged run stands below itself: it must not be followed for ever.
  WHERE below.depth < 1000
), locked AS MATERIALIZED (
  SELECT runs.run_number FROM perdure.runs AS runs JOIN below USING (run_number)
  ORDER BY below.depth DESC, runs.run_number FOR UPDATE OF runs
)
UPDATE perdure.runs SET cancel_requested = true,
  state = CASE WHEN state IN ('running', 'cancelling') THEN 'cancelling' ELSE 'cancelled' END,
  finished_at = CASE WHEN state IN ('running', 'cancelling') THEN finished_at ELSE %(now)s END,
  wake_at = NULL
WHERE run_number IN (SELECT run_number FROM locked)
AND state NOT IN ('completed', 'failed', 'cancelled');

-- name: resume_run
-- Make a run that failed or needs attention wait for a worker again, unless it was erased; one that
-- was too late has no deadline any more.
UPDATE perdure.runs SET state = 'pending', problem = NULL, problem_code = NULL,
  finished_at = NULL, cancel_requested = false,
  deadline_at = CASE WHEN problem_code IS DISTINCT FROM 'DeadlineExceeded' THEN deadline_at END
WHERE run_id = %(run_id)s AND state IN ('needs_attention', 'failed') AND erased_at IS NULL;

-- name: insert_worker
-- Make a worker known, with its lease.
INSERT INTO perdure.workers (holder, name, host, machine, pid, lease_seconds, lease_until,
                             started_at)
VALUES (%(holder)s, %(name)s, %(host)s, %(machine)s, %(pid)s, %(lease_seconds)s,
        extract(epoch FROM clock_timestamp()) + %(lease_seconds)s, %(now)s)
ON CONFLICT (holder) DO NOTHING;

-- name: renew_worker
-- Extend a worker's lease over all of its runs, unless the lease was taken from it.
UPDATE perdure.workers
SET lease_until = extract(epoch FROM clock_timestamp()) + %(lease_seconds)s
WHERE holder = %(holder)s AND gone = 0
RETURNING extract(epoch FROM clock_timestamp())::double precision;

-- name: held_runs
-- The runs that a worker owns.
SELECT run_id, generation, cancel_requested FROM perdure.runs WHERE holder = %(holder)s;

-- name: read_cancels
-- The runs of a worker whose end was asked for.
SELECT run_id FROM perdure.runs WHERE holder = %(holder)s AND cancel_requested;

-- name: other_workers
-- The other workers that nobody has found gone, and whether their leases have ended.
SELECT holder, machine, lease_until < extract(epoch FROM clock_timestamp())
FROM perdure.workers WHERE gone = 0 AND holder <> %(holder)s;

-- name: impatient
-- Wait for locks of others only for a moment, until the end of the transaction.
SET LOCAL lock_timeout = '500ms';

-- name: end_worker
-- Mark a worker gone, 2 if its process has ended; one that lives only if its lease has ended.
UPDATE perdure.workers SET gone = CASE WHEN %(dead)s AND %(ending)s = 'lost' THEN 2 ELSE 1 END
WHERE holder = %(holder)s AND gone = 0
AND (%(dead)s OR lease_until < extract(epoch FROM clock_timestamp()));

-- name: end_attempts_of
-- Note that the claims of a gone worker ended.
UPDATE perdure.attempts AS attempts SET ended_at = %(now)s, ending = %(ending)s
FROM perdure.workers AS workers
WHERE attempts.holder = %(holder)s AND attempts.ended_at IS NULL
AND workers.holder = attempts.holder AND workers.gone > 0;

-- name: release_runs_of
-- Give back every run of a gone worker.
UPDATE perdure.runs SET holder = NULL,
  state = CASE WHEN cancel_requested THEN 'cancelled' ELSE 'pending' END,
  finished_at = CASE WHEN cancel_requested THEN %(now)s::double precision END
WHERE holder = %(holder)s;

-- name: list_workers
-- Every worker that is not gone, with how many runs it holds.
SELECT holder, name, pid, host, machine,
       lease_until >= extract(epoch FROM clock_timestamp()), started_at,
       (SELECT count(*) FROM perdure.runs AS runs WHERE runs.holder = workers.holder)
FROM perdure.workers AS workers WHERE gone = 0 ORDER BY worker_number;

-- name: list_attempts
-- The claims of a run, oldest first; only the newest ones, if it is said how many.
SELECT attempts.generation, attempts.holder, COALESCE(workers.name, ''),
       COALESCE(workers.pid, 0), attempts.claimed_at, attempts.ended_at, attempts.ending,
       attempts.executed, attempts.replayed
FROM perdure.attempts AS attempts JOIN perdure.runs AS runs USING (run_number)
LEFT JOIN perdure.workers AS workers ON workers.holder = attempts.holder
WHERE runs.run_id = %(run_id)s
AND (%(newest)s::bigint IS NULL OR attempts.generation > runs.generation - %(newest)s::bigint)
ORDER BY attempts.generation;

-- name: append_records
-- Write records under the fences of their runs, with the pieces that their inputs add, and end the
-- delays that some of them stand for. What is there already is not written again.
WITH input AS (
  SELECT * FROM unnest(
    %(run_id)s::text[], %(holder)s::text[], %(generation)s::bigint[], %(step_id)s::text[],
    %(sequence)s::bigint[], %(kind)s::text[], %(handler_id)s::text[], %(input_sha256)s::bytea[],
    %(input_bytes)s::bigint[], %(status)s::text[], %(attempt)s::bigint[], %(nested)s::boolean[],
    %(started_at)s::double precision[], %(finished_at)s::double precision[],
    %(input_piece)s::bytea[], %(input_packing)s::bigint[], %(input_tail)s::bytea[],
    %(payload_piece)s::bytea[], %(payload_packing)s::bigint[], %(payload_bytes)s::bigint[], %(payload)s::bytea[]
  ) WITH ORDINALITY AS input (run_id, holder, generation, step_id, sequence, kind, handler_id,
                              input_sha256, input_bytes, status, attempt, nested, started_at,
                              finished_at, input_piece, input_packing, input_tail,
                              payload_piece, payload_packing, payload_bytes, payload, place)
), owned AS MATERIALIZED (
  SELECT input.place, runs.run_number FROM input JOIN perdure.runs AS runs
    ON runs.run_id = input.run_id AND runs.holder = input.holder
    AND runs.generation = input.generation
  FOR SHARE OF runs
), kept AS (
  INSERT INTO perdure.pieces (digest, parent, packing, data)
  SELECT * FROM unnest(%(piece_digest)s::bytea[], %(piece_parent)s::bytea[],
                       %(piece_packing)s::bigint[], %(piece_data)s::bytea[])
    AS new (digest, parent, packing, data)
  ORDER BY digest
  ON CONFLICT (digest) DO NOTHING
), written AS (
  INSERT INTO perdure.records (run_number, step_id, sequence, kind, handler_id, input_sha256,
                               input_bytes, status, attempt, generation, nested, started_at,
                               finished_at, input_piece, input_packing, input_tail,
                               payload_piece, payload_packing, payload_bytes, payload)
  SELECT owned.run_number, input.step_id, input.sequence, input.kind, input.handler_id,
         input.input_sha256, input.input_bytes, input.status, input.attempt, input.generation,
         input.nested, input.started_at, input.finished_at, input.input_piece,
         input.input_packing, input.input_tail, input.payload_piece, input.payload_packing, input.payload_bytes,
         input.payload
  FROM input JOIN owned ON owned.place = input.place
  ON CONFLICT (run_number, step_id, sequence) DO NOTHING
  RETURNING run_number, step_id, sequence
), ended AS (
  DELETE FROM perdure.timers AS timers USING input, owned
  WHERE owned.place = input.place AND input.kind IN ('retry_delay', 'approval_resume')
  AND timers.run_number = owned.run_number AND timers.step_id = input.step_id
  AND timers.sequence = input.sequence
)
SELECT input.place, written.run_number IS NOT NULL
FROM owned JOIN input ON input.place = owned.place LEFT JOIN written
  ON written.run_number = owned.run_number AND written.step_id = input.step_id
  AND written.sequence = input.sequence;

-- name: settle_records
-- Move receipts and write the records that go with them, both or neither, under the runs' fences.
WITH input AS (
  SELECT * FROM unnest(
    %(run_id)s::text[], %(holder)s::text[], %(generation)s::bigint[], %(step_id)s::text[],
    %(sequence)s::bigint[], %(kind)s::text[], %(handler_id)s::text[], %(input_sha256)s::bytea[],
    %(input_bytes)s::bigint[], %(status)s::text[], %(attempt)s::bigint[], %(nested)s::boolean[],
    %(started_at)s::double precision[], %(finished_at)s::double precision[],
    %(input_piece)s::bytea[], %(input_packing)s::bigint[], %(input_tail)s::bytea[],
    %(payload_piece)s::bytea[], %(payload_packing)s::bigint[], %(payload_bytes)s::bigint[], %(payload)s::bytea[],
    %(operation_key)s::text[], %(effect_attempt)s::bigint[], %(effect_generation)s::bigint[],
    %(state)s::text[], %(sources)s::text[], %(answer)s::bytea[], %(problem)s::text[],
    %(stopped)s::boolean[], %(risk)s::boolean[], %(now)s::double precision[]
  ) WITH ORDINALITY AS input (run_id, holder, generation, step_id, sequence, kind, handler_id,
                              input_sha256, input_bytes, status, attempt, nested, started_at,
                              finished_at, input_piece, input_packing, input_tail,
                              payload_piece, payload_packing, payload_bytes, payload,
                              operation_key, effect_attempt,
                              effect_generation, state, sources, answer, problem, stopped, risk,
                              now, place)
), owned AS MATERIALIZED (
  SELECT input.place, runs.run_number FROM input JOIN perdure.runs AS runs
    ON runs.run_id = input.run_id AND runs.holder = input.holder
    AND runs.generation = input.generation
  FOR SHARE OF runs
), kept AS (
  INSERT INTO perdure.pieces (digest, parent, packing, data)
  SELECT * FROM unnest(%(piece_digest)s::bytea[], %(piece_parent)s::bytea[],
                       %(piece_packing)s::bigint[], %(piece_data)s::bytea[])
    AS new (digest, parent, packing, data)
  ORDER BY digest
  ON CONFLICT (digest) DO NOTHING
), moved AS (
  UPDATE perdure.receipts AS receipts SET
    state = input.state, version = receipts.version + 1, payload = input.answer,
    problem = input.problem, settled_at = input.now, lookup_holder = NULL,
    lookup_at = CASE WHEN input.state = 'ambiguous' THEN input.now END,
    resend_after = CASE WHEN input.stopped
                        THEN least(COALESCE(receipts.resend_after,
                                            input.now + receipts.settle_seconds),
                                   input.now + receipts.settle_seconds)
                        ELSE receipts.resend_after END,
    residual_duplicate_risk = receipts.residual_duplicate_risk OR input.risk
  FROM input JOIN owned ON owned.place = input.place
  WHERE receipts.operation_key = input.operation_key
  AND receipts.attempt = input.effect_attempt AND receipts.generation = input.effect_generation
  AND position('|' || receipts.state || '|' IN input.sources) > 0
  RETURNING input.place, receipts.*
), written AS (
  INSERT INTO perdure.records (run_number, step_id, sequence, kind, handler_id, input_sha256,
                               input_bytes, status, attempt, generation, nested, started_at,
                               finished_at, input_piece, input_packing, input_tail,
                               payload_piece, payload_packing, payload_bytes, payload)
  SELECT owned.run_number, input.step_id, input.sequence, input.kind, input.handler_id,
         input.input_sha256, input.input_bytes, input.status, input.attempt, input.generation,
         input.nested, input.started_at, input.finished_at, input.input_piece,
         input.input_packing, input.input_tail, input.payload_piece, input.payload_packing, input.payload_bytes,
         input.payload
  FROM input JOIN owned ON owned.place = input.place JOIN moved ON moved.place = input.place
)
SELECT owned.place, moved.operation_key, moved.run_id, moved.idempotency_key, moved.target,
       moved.ordinal, moved.support, moved.arguments_sha256, moved.state, moved.attempt,
       moved.holder, moved.generation, moved.version, moved.payload, moved.problem,
       moved.first_claimed_at, moved.claimed_at, moved.settled_at, moved.settle_seconds,
       moved.resend_after, moved.lookups, moved.lookup_at, moved.lookup_holder, moved.exhausted,
       moved.earlier_unknown, moved.residual_duplicate_risk, moved.decided_by, moved.decided_why,
       moved.handler_id
FROM owned LEFT JOIN moved ON moved.place = owned.place;

-- name: recorded_before
-- Whether the caller itself wrote a record, whose connection was lost meanwhile.
SELECT EXISTS (SELECT 1 FROM perdure.records AS records JOIN perdure.runs AS runs
                 ON runs.run_number = records.run_number
               WHERE runs.run_id = %(run_id)s AND records.step_id = %(step_id)s
               AND records.sequence = %(sequence)s AND records.generation = %(generation)s
               AND records.attempt = %(attempt)s AND records.started_at = %(started_at)s
               AND records.finished_at = %(finished_at)s);

-- name: known_pieces
-- Those of some pieces that are there.
SELECT digest FROM perdure.pieces WHERE digest = ANY(%(digests)s::bytea[]);

-- name: begin_timer
-- Note that a delay has begun, under the run's fence.
WITH owned AS MATERIALIZED (
  SELECT run_number FROM perdure.runs
  WHERE run_id = %(run_id)s AND holder = %(holder)s AND generation = %(generation)s FOR SHARE
), begun AS (
  INSERT INTO perdure.timers (run_number, step_id, sequence, kind, handler_id, input_sha256,
                              input, wake_at, awaits)
  SELECT run_number, %(step_id)s, %(sequence)s, %(kind)s, %(handler_id)s, %(input_sha256)s,
         %(input)s, %(wake_at)s::double precision, %(awaits)s::text FROM owned
  ON CONFLICT (run_number, step_id, sequence) DO NOTHING
)
SELECT 1 FROM owned;

-- name: read_records
-- All that a run recorded, in no order; a payload over the largest comes as null.
SELECT step_id, sequence, kind, handler_id, input_sha256, status, attempt, finished_at, nested,
       payload_packing, CASE WHEN payload_bytes <= %(largest)s THEN payload END
FROM perdure.records
WHERE run_number = (SELECT run_number FROM perdure.runs WHERE run_id = %(run_id)s);

-- name: read_timers
-- The delays that a run has under way.
SELECT step_id, sequence, kind, handler_id, input_sha256, input, wake_at, awaits
FROM perdure.timers
WHERE run_number = (SELECT run_number FROM perdure.runs WHERE run_id = %(run_id)s);

-- name: find_recipient
-- The run that a message is to reach, where it stands, and whether it was erased. Until the end of
-- the transaction nobody puts it away, ends it, or writes another message to it.
SELECT run_number, state, erased_by, erased_why FROM perdure.runs
WHERE run_id = %(run_id)s FOR UPDATE;

-- name: find_message
-- The message of a run that stands under an id.
SELECT message_number, message_id, name, edition, payload, sent_by, sent_at, taken_step,
       taken_sequence, taken_at
FROM perdure.messages
WHERE run_number = (SELECT run_number FROM perdure.runs WHERE run_id = %(run_id)s)
AND message_id = %(message_id)s;

-- name: insert_message
-- Put a message into the inbox of a run; one that is suspended until it comes is woken.
INSERT INTO perdure.messages (run_number, message_id, name, edition, payload, sent_by, sent_at)
VALUES (%(run_number)s, %(message_id)s, %(name)s, 1, %(payload)s, %(sent_by)s, %(sent_at)s);

-- name: edit_message
-- Replace what a message says that nobody has taken.
UPDATE perdure.messages SET edition = %(edition)s, payload = %(payload)s, sent_by = %(sent_by)s,
  sent_at = %(sent_at)s
WHERE message_number = %(message_number)s AND taken_at IS NULL;

-- name: withdraw_message
-- Take back a message that nobody has taken.
DELETE FROM perdure.messages
WHERE run_number = (SELECT run_number FROM perdure.runs WHERE run_id = %(run_id)s)
AND message_id = %(message_id)s AND taken_at IS NULL;

-- name: next_message
-- The oldest message of a name that no operation of the run has taken.
SELECT message_number, message_id, name, edition, payload, sent_by, sent_at, taken_step,
       taken_sequence, taken_at
FROM perdure.messages
WHERE run_number = (SELECT run_number FROM perdure.runs WHERE run_id = %(run_id)s)
AND name = %(awaits)s AND taken_at IS NULL ORDER BY message_number LIMIT 1;

-- name: list_messages
-- The messages of a run, in the order in which they came.
SELECT message_number, message_id, name, edition, payload, sent_by, sent_at, taken_step,
       taken_sequence, taken_at
FROM perdure.messages
WHERE run_number = (SELECT run_number FROM perdure.runs WHERE run_id = %(run_id)s)
ORDER BY message_number;

-- name: has_come
-- Whether a message of a name waits for a run, under the run's fence. The run's row is locked before,
-- by a statement of its own.
SELECT EXISTS (SELECT 1 FROM perdure.messages AS messages
               WHERE messages.run_number = runs.run_number AND messages.name = %(awaits)s
               AND messages.taken_at IS NULL)
FROM perdure.runs AS runs
WHERE run_id = %(run_id)s AND holder = %(holder)s AND generation = %(generation)s;

-- name: take_message
-- Note which operation takes a message, in the edition that it has read, under the run's fence.
WITH owned AS MATERIALIZED (
  SELECT run_number FROM perdure.runs
  WHERE run_id = %(run_id)s AND holder = %(holder)s AND generation = %(generation)s FOR SHARE
), taken AS (
  UPDATE perdure.messages AS messages
  SET taken_step = %(step_id)s, taken_sequence = %(sequence)s, taken_at = %(finished_at)s
  FROM owned WHERE messages.run_number = owned.run_number
  AND message_id = %(message_id)s AND edition = %(edition)s AND sent_at = %(sent_at)s
  AND taken_at IS NULL
  RETURNING 1
)
SELECT EXISTS (SELECT 1 FROM taken) FROM owned;

-- name: insert_approval
-- Write what a run asks for, under its fence.
INSERT INTO perdure.approvals (run_number, item_id, step_id, sequence, kind, name, asked_at,
                               arguments)
SELECT run_number, %(item_id)s, %(step_id)s, %(sequence)s, %(ask_kind)s, %(name)s, %(asked_at)s,
       %(arguments)s
FROM perdure.runs
WHERE run_id = %(run_id)s AND holder = %(holder)s AND generation = %(generation)s
ON CONFLICT (run_number, item_id) DO NOTHING;

-- name: read_approval
-- What a run asked for under an id, and whether it still waits for the answer.
SELECT runs.run_id, item_id, approvals.kind, approvals.name, arguments, asked_at, timers.wake_at,
       timers.run_number IS NOT NULL AND runs.state NOT IN ('completed', 'failed', 'cancelled'),
       answer, answered_by, answered_at, approvals.step_id, approvals.sequence
FROM perdure.approvals AS approvals JOIN perdure.runs AS runs USING (run_number)
LEFT JOIN perdure.timers AS timers ON timers.run_number = approvals.run_number
  AND timers.step_id = approvals.step_id AND timers.sequence = approvals.sequence
WHERE runs.run_id = %(run_id)s AND item_id = %(item_id)s;

-- name: open_approvals
-- What runs wait for an answer to, oldest first; no run id means any run.
SELECT runs.run_id, item_id, approvals.kind, approvals.name, arguments, asked_at, timers.wake_at,
       timers.run_number IS NOT NULL AND runs.state NOT IN ('completed', 'failed', 'cancelled'),
       answer, answered_by, answered_at, approvals.step_id, approvals.sequence
FROM perdure.approvals AS approvals JOIN perdure.runs AS runs USING (run_number)
LEFT JOIN perdure.timers AS timers ON timers.run_number = approvals.run_number
  AND timers.step_id = approvals.step_id AND timers.sequence = approvals.sequence
WHERE decision IS NULL AND timers.run_number IS NOT NULL
AND runs.state NOT IN ('completed', 'failed', 'cancelled')
AND (%(run_id)s::text IS NULL OR runs.run_id = %(run_id)s::text)
ORDER BY approval_number LIMIT %(limit)s;

-- name: list_approvals
-- What runs asked for, oldest first; no run id means any run.
SELECT runs.run_id, item_id, approvals.kind, approvals.name, arguments, asked_at, timers.wake_at,
       timers.run_number IS NOT NULL AND runs.state NOT IN ('completed', 'failed', 'cancelled'),
       answer, answered_by, answered_at, approvals.step_id, approvals.sequence
FROM perdure.approvals AS approvals JOIN perdure.runs AS runs USING (run_number)
LEFT JOIN perdure.timers AS timers ON timers.run_number = approvals.run_number
  AND timers.step_id = approvals.step_id AND timers.sequence = approvals.sequence
WHERE %(run_id)s::text IS NULL OR runs.run_id = %(run_id)s::text
ORDER BY approval_number LIMIT %(limit)s;

-- name: answer_approval
-- Write the answer to what a run asked for, unless there is one.
UPDATE perdure.approvals SET decision = %(decision)s, answer = %(answer)s,
  answered_by = %(answered_by)s, answered_at = %(answered_at)s
WHERE run_number = (SELECT run_number FROM perdure.runs WHERE run_id = %(run_id)s)
AND item_id = %(item_id)s AND decision IS NULL;

-- name: tell_answered
-- Tell a run that something that it asked for was answered.
INSERT INTO perdure.messages (run_number, message_id, name, edition, sent_by, sent_at)
SELECT run_number, %(awaits)s::text, %(awaits)s::text, 1, %(answered_by)s, %(answered_at)s
FROM perdure.runs WHERE run_id = %(run_id)s
ON CONFLICT (run_number, message_id) DO NOTHING;

-- name: find_checkpointed
-- The run that a checkpoint is to be of, which nobody may erase meanwhile, and whether it was.
SELECT run_number, erased_by, erased_why FROM perdure.runs WHERE run_id = %(run_id)s FOR SHARE;

-- name: find_checkpoint
-- One checkpoint of a run, to be compared with the one that is to be written.
SELECT checkpoint_id, kind, revision, cursor, state FROM perdure.checkpoints
WHERE run_number = %(run_number)s AND checkpoint_id = %(checkpoint_id)s FOR UPDATE;

-- name: insert_checkpoint
-- Write a new checkpoint of a run, unless it is there.
INSERT INTO perdure.checkpoints (run_number, checkpoint_id, kind, revision, cursor, state)
SELECT run_number, %(checkpoint_id)s, %(kind)s, %(revision)s, %(cursor)s, %(state)s
FROM perdure.runs WHERE run_id = %(run_id)s
ON CONFLICT (run_number, checkpoint_id) DO NOTHING;

-- name: advance_checkpoint
-- Write a checkpoint over an earlier one, which has a lower revision.
UPDATE perdure.checkpoints SET revision = %(revision)s, cursor = %(cursor)s, state = %(state)s
WHERE run_number = %(run_number)s AND checkpoint_id = %(checkpoint_id)s AND kind = %(kind)s
AND revision < %(revision)s AND cursor <= %(cursor)s;

-- name: remove_checkpoint
-- Delete a checkpoint.
DELETE FROM perdure.checkpoints
WHERE run_number = (SELECT run_number FROM perdure.runs WHERE run_id = %(run_id)s)
AND checkpoint_id = %(checkpoint_id)s;

-- name: read_checkpoint
-- One checkpoint of a run that was not erased.
SELECT checkpoint_id, kind, revision, cursor, state FROM perdure.checkpoints
WHERE run_number = (SELECT run_number FROM perdure.runs
                    WHERE run_id = %(run_id)s AND erased_at IS NULL)
AND checkpoint_id = %(checkpoint_id)s;

-- name: list_checkpoints
-- The checkpoints of a run that was not erased, in the order in which they were created.
SELECT checkpoint_id, kind, revision, cursor, state FROM perdure.checkpoints
WHERE run_number = (SELECT run_number FROM perdure.runs
                    WHERE run_id = %(run_id)s AND erased_at IS NULL)
ORDER BY checkpoint_number;

-- name: read_begun
-- The effects of a run that were begun, and may have been applied, without a record.
SELECT idempotency_key, ordinal, operation_key FROM perdure.receipts
WHERE run_id = %(run_id)s AND (state IN ('in_flight', 'ambiguous')
                               OR (state = 'completed' AND payload IS NOT NULL));

-- name: read_payload
-- The payload of one record.
SELECT payload_piece, payload_packing, payload FROM perdure.records
WHERE run_number = (SELECT run_number FROM perdure.runs WHERE run_id = %(run_id)s)
AND step_id = %(step_id)s AND sequence = %(sequence)s;

-- name: read_input
-- Where the input of one record stands.
SELECT input_piece, input_packing, input_tail, step_id, sequence, kind, handler_id, input_sha256,
       status, attempt, finished_at, nested
FROM perdure.records
WHERE run_number = (SELECT run_number FROM perdure.runs WHERE run_id = %(run_id)s)
AND step_id = %(step_id)s AND sequence = %(sequence)s;

-- name: read_chains
-- The pieces of several documents, by their last ones, each once and in any order.
WITH RECURSIVE chain (digest) AS (
  SELECT unnest(%(pieces)s::bytea[])
  UNION
  SELECT pieces.parent FROM perdure.pieces AS pieces JOIN chain ON pieces.digest = chain.digest
  WHERE pieces.parent IS NOT NULL
)
SELECT pieces.digest, parent, pieces.digest, packing, data
FROM perdure.pieces AS pieces JOIN chain ON pieces.digest = chain.digest;

-- name: read_pieces
-- The pieces of an input, from the root down to the last one.
WITH RECURSIVE chain (digest, parent, packing, data, depth) AS (
  SELECT digest, parent, packing, data, 0 FROM perdure.pieces WHERE digest = %(piece)s
  UNION ALL
  SELECT pieces.digest, pieces.parent, pieces.packing, pieces.data, chain.depth + 1
  FROM perdure.pieces AS pieces JOIN chain ON pieces.digest = chain.parent
  -- No document has as many: a damaged one must not be followed for ever.
  WHERE chain.depth < 100000
)
SELECT digest, packing, data FROM chain ORDER BY depth DESC;

-- name: list_operations
-- What a run recorded, in that order, with sizes.
SELECT step_id, sequence, kind, handler_id, input_sha256, status, input_bytes, payload_bytes,
       attempt, generation, started_at, finished_at, nested
FROM perdure.records
WHERE run_number = (SELECT run_number FROM perdure.runs WHERE run_id = %(run_id)s)
ORDER BY record_number;

-- name: read_receipt
-- One receipt as it stands.
SELECT * FROM perdure.receipts_read WHERE operation_key = %(operation_key)s;

-- name: read_token
-- The token of the claim that made a receipt's last attempt.
SELECT token FROM perdure.receipts WHERE operation_key = %(operation_key)s;

-- name: read_tombstone
-- What is left of an erased receipt.
SELECT state, erased_by, erased_why FROM perdure.tombstones
WHERE operation_key = %(operation_key)s;

-- name: owns
-- Whether an owner still is one: its worker is not gone and, in a run, the run is still its own.
SELECT EXISTS (SELECT 1 FROM perdure.workers WHERE holder = %(holder)s AND gone = 0)
AND (%(generation)s = 0
     OR EXISTS (SELECT 1 FROM perdure.runs WHERE run_id = %(run_id)s AND holder = %(holder)s
                AND generation = %(generation)s));

-- name: insert_receipts
-- Begin the first attempts of effects, unless one was begun before, its receipt was erased, or its
-- owner no longer is one.
WITH input AS (
  SELECT * FROM unnest(
    %(operation_key)s::text[], %(run_id)s::text[], %(idempotency_key)s::text[],
    %(target)s::text[], %(ordinal)s::bigint[], %(support)s::text[],
    %(arguments_sha256)s::bytea[], %(holder)s::text[], %(generation)s::bigint[],
    %(token)s::bytea[], %(now)s::double precision[], %(settle_seconds)s::double precision[],
    %(resend_after)s::double precision[], %(handler_id)s::text[]
  ) WITH ORDINALITY AS input (operation_key, run_id, idempotency_key, target, ordinal, support,
                              arguments_sha256, holder, generation, token, now, settle_seconds,
                              resend_after, handler_id, place)
), begun AS (
  INSERT INTO perdure.receipts (operation_key, run_id, idempotency_key, target, ordinal, support,
                                arguments_sha256, state, attempt, holder, generation, token,
                                version, first_claimed_at, claimed_at, settle_seconds,
                                resend_after, handler_id)
  SELECT input.operation_key, input.run_id, input.idempotency_key, input.target, input.ordinal,
         input.support, input.arguments_sha256, 'in_flight', 1, input.holder, input.generation,
         input.token, 1, input.now, input.now, input.settle_seconds, input.resend_after,
         input.handler_id
  FROM input
  WHERE NOT EXISTS (SELECT 1 FROM perdure.tombstones AS tombstones
                    WHERE tombstones.operation_key = input.operation_key)
  AND EXISTS (SELECT 1 FROM perdure.workers AS workers
              WHERE workers.holder = input.holder AND gone = 0)
  AND (input.generation = 0
       OR EXISTS (SELECT 1 FROM perdure.runs AS runs
                  WHERE runs.run_id = input.run_id AND runs.holder = input.holder
                  AND runs.generation = input.generation))
  ON CONFLICT (operation_key) DO NOTHING
  RETURNING operation_key
)
SELECT input.place FROM begun JOIN input ON input.operation_key = begun.operation_key;

-- name: begin_attempt
-- Begin another attempt, if the receipt is still the one that was seen.
UPDATE perdure.receipts SET
  state = 'in_flight', attempt = attempt + 1, holder = %(holder)s, generation = %(generation)s,
  token = %(token)s, version = version + 1, payload = NULL, support = %(support)s,
  claimed_at = %(now)s, settled_at = NULL, problem = NULL, settle_seconds = %(settle_seconds)s,
  resend_after = %(resend_after)s, lookups = 0, lookup_at = NULL, lookup_holder = NULL,
  exhausted = false,
  earlier_unknown = %(unknown)s OR %(risk)s OR residual_duplicate_risk,
  residual_duplicate_risk = residual_duplicate_risk OR %(risk)s
WHERE operation_key = %(operation_key)s AND state = %(state)s AND attempt = %(attempt)s
AND generation = %(seen_generation)s AND version = %(version)s
AND EXISTS (SELECT 1 FROM perdure.workers WHERE holder = %(holder)s AND gone = 0)
AND (%(generation)s = 0
     OR EXISTS (SELECT 1 FROM perdure.runs WHERE run_id = %(run_id)s AND holder = %(holder)s
                AND generation = %(generation)s));

-- name: settle_receipt
-- Move the receipt of one attempt; the sources are the states that the move may start from.
UPDATE perdure.receipts SET
  state = %(state)s, version = version + 1, payload = %(payload)s::bytea,
  problem = %(problem)s::text, settled_at = %(now)s, lookup_holder = NULL,
  lookup_at = CASE WHEN %(state)s = 'ambiguous' THEN %(now)s::double precision END,
  resend_after = CASE WHEN %(stopped)s
                      THEN least(COALESCE(resend_after, %(now)s + settle_seconds),
                                 %(now)s + settle_seconds)
                      ELSE resend_after END,
  residual_duplicate_risk = residual_duplicate_risk OR %(risk)s,
  decided_by = COALESCE(%(by)s::text, decided_by), decided_why = COALESCE(%(why)s::text, decided_why)
WHERE operation_key = %(operation_key)s AND attempt = %(attempt)s
AND generation = %(generation)s AND position('|' || state || '|' IN %(sources)s) > 0
AND (%(version)s::bigint IS NULL OR version = %(version)s::bigint)
RETURNING run_id;

-- name: insert_decision
-- Keep what a person decided about one attempt, on which version of its receipt.
INSERT INTO perdure.decisions (operation_key, version, attempt, decision, decided_by, decided_why,
                               decided_at)
VALUES (%(operation_key)s, %(version)s, %(attempt)s, %(decision)s, %(by)s, %(why)s, %(now)s);

-- name: decided_before
-- Whether the caller itself wrote a decision, whose connection was lost meanwhile.
SELECT EXISTS (SELECT 1 FROM perdure.decisions
               WHERE operation_key = %(operation_key)s AND version = %(version)s
               AND decision = %(decision)s AND decided_by = %(by)s AND decided_at = %(now)s);

-- name: free_run
-- Make a run wait for a worker again that waits for a person's word on an effect.
UPDATE perdure.runs SET state = 'pending', problem = NULL, problem_code = NULL,
  finished_at = NULL, cancel_requested = false
WHERE run_id = %(run_id)s AND state = 'needs_attention' AND problem_code = 'EffectAmbiguous';

-- name: list_decisions
-- What people decided about one effect, oldest first.
SELECT operation_key, attempt, version, decision, decided_by, decided_why, decided_at
FROM perdure.decisions WHERE operation_key = %(operation_key)s ORDER BY version;

-- name: mark_duplicate
-- Note that an attempt was applied after a later one had begun at a target that knows no keys.
UPDATE perdure.receipts SET residual_duplicate_risk = true, version = version + 1
WHERE operation_key = %(operation_key)s AND attempt > %(attempt)s AND NOT residual_duplicate_risk
AND support <> 'idempotent';

-- name: any_vanished
-- Whether anything is in flight although its owner is gone; no key means any.
SELECT EXISTS (
  SELECT 1 FROM perdure.receipts AS receipts
  WHERE state IN ('in_flight', 'ambiguous') AND state = 'in_flight'
  AND (%(operation_key)s::text IS NULL OR operation_key = %(operation_key)s::text)
  AND NOT (EXISTS (SELECT 1 FROM perdure.workers AS workers
                   WHERE workers.holder = receipts.holder AND gone = 0)
           AND (receipts.generation = 0
                OR EXISTS (SELECT 1 FROM perdure.runs AS runs
                           WHERE runs.run_id = receipts.run_id AND runs.holder = receipts.holder
                           AND runs.generation = receipts.generation))));

-- name: doubted_before
-- What the caller itself doubted, whose connection was lost meanwhile.
SELECT operation_key FROM perdure.receipts
WHERE state IN ('in_flight', 'ambiguous') AND state = 'ambiguous' AND settled_at = %(now)s
AND problem = 'its worker is gone'
AND (%(operation_key)s::text IS NULL OR operation_key = %(operation_key)s::text);

-- name: doubt_vanished
-- Doubt what is in flight although its owner is gone; no key means any.
-- Nothing more comes from a process that has ended.
UPDATE perdure.receipts AS receipts SET
  state = 'ambiguous', version = version + 1, problem = 'its worker is gone', settled_at = %(now)s,
  lookup_at = %(now)s, lookup_holder = NULL,
  resend_after = CASE WHEN EXISTS (SELECT 1 FROM perdure.workers AS workers
                                   WHERE workers.holder = receipts.holder AND gone = 2)
                      THEN least(COALESCE(resend_after, %(now)s + settle_seconds),
                                 %(now)s + settle_seconds)
                      ELSE resend_after END
WHERE state IN ('in_flight', 'ambiguous') AND state = 'in_flight'
AND (%(operation_key)s::text IS NULL OR operation_key = %(operation_key)s::text)
AND NOT (EXISTS (SELECT 1 FROM perdure.workers AS workers
                 WHERE workers.holder = receipts.holder AND gone = 0)
         AND (receipts.generation = 0
              OR EXISTS (SELECT 1 FROM perdure.runs AS runs
                         WHERE runs.run_id = receipts.run_id AND runs.holder = receipts.holder
                         AND runs.generation = receipts.generation)))
RETURNING operation_key;

-- name: claim_lookup
-- Take the right to ask about an ambiguous attempt for a while, unless it is too early or another
-- has it; the right of a worker that is gone is free.
UPDATE perdure.receipts AS receipts SET
  lookup_holder = %(holder)s, lookup_at = %(until)s, version = version + 1
WHERE operation_key = %(operation_key)s AND state = 'ambiguous' AND attempt = %(attempt)s
AND generation = %(generation)s AND NOT exhausted
AND (lookup_at <= %(now)s
     OR (lookup_holder IS NOT NULL
         AND NOT EXISTS (SELECT 1 FROM perdure.workers AS workers
                         WHERE workers.holder = receipts.lookup_holder AND gone = 0)))
RETURNING 1;

-- name: lookup_claimed_before
-- The right that the caller itself took, whose connection was lost meanwhile.
SELECT 1 FROM perdure.receipts
WHERE operation_key = %(operation_key)s AND state = 'ambiguous' AND attempt = %(attempt)s
AND generation = %(generation)s AND lookup_holder = %(holder)s AND lookup_at = %(until)s;

-- name: end_lookup
-- Give the right back after an answer that settled nothing.
UPDATE perdure.receipts SET
  lookup_holder = NULL, lookup_at = %(ask_again_at)s, version = version + 1,
  lookups = lookups + %(unanswered)s::int,
  exhausted = lookups + %(unanswered)s::int >= %(limit)s
WHERE operation_key = %(operation_key)s AND state = 'ambiguous' AND attempt = %(attempt)s
AND generation = %(generation)s AND version = %(version)s
RETURNING 1;

-- name: list_receipts
-- The newest receipts.
SELECT * FROM perdure.receipts_read ORDER BY receipt_number DESC LIMIT %(limit)s;

-- name: list_receipts_of
-- The newest receipts of one run.
SELECT * FROM perdure.receipts_read WHERE run_id = %(run_id)s
ORDER BY receipt_number DESC LIMIT %(limit)s;

-- name: list_ambiguous
-- The newest receipts of which nobody knows; no run means any.
SELECT * FROM perdure.receipts_read WHERE state IN ('in_flight', 'ambiguous')
AND state = 'ambiguous' AND (%(run_id)s::text IS NULL OR run_id = %(run_id)s::text)
ORDER BY receipt_number DESC LIMIT %(limit)s;

-- name: list_due
-- Ambiguous receipts whose targets can be asked now, by those handlers that know how.
SELECT * FROM perdure.receipts_read WHERE state IN ('in_flight', 'ambiguous')
AND state = 'ambiguous' AND lookup_at <= %(now)s AND NOT exhausted
AND support = 'outcome_queryable' AND handler_id = ANY(%(handler_ids)s::text[])
ORDER BY lookup_at LIMIT %(limit)s;

-- name: match_receipts
-- Receipts whose operation key begins with a prefix; no character of a key comes after '~'.
SELECT * FROM perdure.receipts_read
WHERE operation_key >= %(prefix)s AND operation_key < %(prefix)s || '~'
ORDER BY operation_key LIMIT %(limit)s;

-- name: newest_receipt
-- The number of the newest receipt, or 0.
SELECT COALESCE(max(receipt_number), 0) FROM perdure.receipts;

-- name: list_changeable
-- Receipts that may still change: the open ones, then the newest others. A completed one does if an
-- earlier attempt of it reports that it was applied too.
SELECT * FROM perdure.receipts_read WHERE state <> 'completed'
OR (attempt > 1 AND support <> 'idempotent' AND NOT residual_duplicate_risk)
ORDER BY (state IN ('in_flight', 'ambiguous')) DESC, receipt_number DESC LIMIT %(limit)s;

-- name: changed_receipts
-- Receipts after a number, and those known ones that have another version now.
SELECT * FROM perdure.receipts_read WHERE receipt_number IN (
  SELECT receipt_number FROM perdure.receipts WHERE receipt_number > %(after)s
  UNION
  SELECT receipt_number FROM unnest(%(keys)s::text[], %(versions)s::bigint[]) AS seen (key, version)
  JOIN perdure.receipts AS receipts ON operation_key = seen.key
  WHERE receipts.version <> seen.version)
ORDER BY receipt_number LIMIT %(limit)s;

-- name: append_audit
-- Keep one audit record.
INSERT INTO perdure.audit (at, operation_key, operation_target_ref, operation_support,
                           operation_state, operation_first_execution,
                           operation_replay_suppressed, operation_reconciliation_required,
                           operation_reconciliation_exhausted,
                           operation_residual_duplicate_risk)
VALUES (%(at)s, %(operation_key)s, %(operation_target_ref)s, %(operation_support)s,
        %(operation_state)s, %(operation_first_execution)s, %(operation_replay_suppressed)s,
        %(operation_reconciliation_required)s, %(operation_reconciliation_exhausted)s,
        %(operation_residual_duplicate_risk)s);

-- name: list_audit
-- The newest audit records of all effects.
SELECT at, operation_key, operation_target_ref, operation_support, operation_state,
       operation_first_execution, operation_replay_suppressed, operation_reconciliation_required,
       operation_reconciliation_exhausted, operation_residual_duplicate_risk
FROM perdure.audit ORDER BY audit_number DESC LIMIT %(limit)s;

-- name: read_audit
-- The newest audit records of one effect.
SELECT at, operation_key, operation_target_ref, operation_support, operation_state,
       operation_first_execution, operation_replay_suppressed, operation_reconciliation_required,
       operation_reconciliation_exhausted, operation_residual_duplicate_risk
FROM perdure.audit WHERE operation_key = %(operation_key)s
ORDER BY audit_number DESC LIMIT %(limit)s;

-- name: find_erasable
-- What erasing needs to know of a run, which nobody else may change meanwhile.
SELECT run_number, state FROM perdure.runs WHERE run_id = %(run_id)s FOR UPDATE;

-- name: open_keys_of
-- The keys of the receipts of a run of which something may still come.
SELECT operation_key FROM perdure.receipts
WHERE state IN ('in_flight', 'ambiguous') AND run_id = %(run_id)s ORDER BY receipt_number;

-- name: mark_erased
-- Put the tombstone of a run, which takes what the run was given and what it came to with it.
UPDATE perdure.runs SET erased_at = %(now)s, erased_by = %(by)s, erased_why = %(why)s,
  erasing = true, input = '', output = NULL, problem = NULL, queue_key = NULL
WHERE run_id = %(run_id)s AND state IN ('completed', 'failed', 'cancelled') AND erased_at IS NULL;

-- name: note_erasing
-- Note whether anything of an erased run is left.
UPDATE perdure.runs SET erasing = %(left)s
WHERE run_number = %(run_number)s AND erasing <> %(left)s;

-- name: note_erased_whole
-- Note that nothing of an erased run is left, in blobs neither.
UPDATE perdure.runs SET erasing = false WHERE run_id = %(run_id)s AND erasing;

-- name: erase_timers
-- Forget the delays that a run had under way.
DELETE FROM perdure.timers WHERE run_number = %(run_number)s;

-- name: erase_checkpoints
-- Delete some checkpoints of a run.
DELETE FROM perdure.checkpoints WHERE checkpoint_number IN (
  SELECT checkpoint_number FROM perdure.checkpoints WHERE run_number = %(run_number)s
  LIMIT %(limit)s);

-- name: erase_messages
-- Delete some messages to a run.
DELETE FROM perdure.messages WHERE message_number IN (
  SELECT message_number FROM perdure.messages WHERE run_number = %(run_number)s
  LIMIT %(limit)s);

-- name: erase_approvals
-- Delete some of what a run asked for.
DELETE FROM perdure.approvals WHERE approval_number IN (
  SELECT approval_number FROM perdure.approvals WHERE run_number = %(run_number)s
  LIMIT %(limit)s);

-- name: erase_records
-- Delete some records of a run; return the last pieces of their inputs and payloads.
DELETE FROM perdure.records WHERE record_number IN (
  SELECT record_number FROM perdure.records WHERE run_number = %(run_number)s
  ORDER BY step_id, sequence LIMIT %(limit)s)
RETURNING input_piece, payload_piece;

-- name: erase_documents
-- Forget the input and the output of an erased run; return their last pieces.
UPDATE perdure.runs AS runs SET input_piece = NULL, output_piece = NULL
FROM (SELECT run_number, input_piece, output_piece FROM perdure.runs) AS before
WHERE runs.run_number = %(run_number)s AND before.run_number = runs.run_number
RETURNING before.input_piece, before.output_piece;

-- name: erase_pieces
-- Delete those of some pieces that nobody needs; return what they hang below.
DELETE FROM perdure.pieces AS pieces WHERE digest IN (
  SELECT digest FROM perdure.pieces WHERE digest = ANY(%(digests)s::bytea[])
  ORDER BY digest FOR UPDATE SKIP LOCKED)
AND NOT EXISTS (SELECT 1 FROM perdure.pieces AS child WHERE child.parent = pieces.digest)
AND NOT EXISTS (SELECT 1 FROM perdure.records WHERE input_piece = pieces.digest)
AND NOT EXISTS (SELECT 1 FROM perdure.records WHERE payload_piece = pieces.digest)
AND NOT EXISTS (SELECT 1 FROM perdure.runs WHERE input_piece = pieces.digest)
AND NOT EXISTS (SELECT 1 FROM perdure.runs WHERE output_piece = pieces.digest)
RETURNING parent;

-- name: bury_receipts
-- Put tombstones in the place of some receipts of a run that are settled; return how many.
-- Their state is looked at again: another attempt may have begun since they were found.
WITH erased AS (
  DELETE FROM perdure.receipts WHERE state IN ('completed', 'failed') AND receipt_number IN (
    SELECT receipt_number FROM perdure.receipts
    WHERE run_id = %(run_id)s AND state IN ('completed', 'failed') LIMIT %(limit)s)
  RETURNING operation_key, state
)
INSERT INTO perdure.tombstones (operation_key, state, erased_at, erased_by, erased_why, run_sha256)
SELECT operation_key, state, %(now)s, %(by)s, %(why)s, %(run_sha256)s::bytea FROM erased
RETURNING operation_key;

-- name: list_buried
-- The tombstones of the receipts of a run.
SELECT operation_key, state, erased_at, erased_by, erased_why
FROM perdure.tombstones WHERE run_sha256 = %(run_sha256)s ORDER BY operation_key;

-- name: import_buried
-- Put the tombstone of a receipt that was erased where its run comes from, unless there is one.
INSERT INTO perdure.tombstones AS tombstones
  (operation_key, state, erased_at, erased_by, erased_why, run_sha256)
VALUES (%(operation_key)s, %(state)s, %(erased_at)s, %(erased_by)s, %(erased_why)s,
        %(run_sha256)s::bytea)
ON CONFLICT (operation_key) DO UPDATE SET run_sha256 = excluded.run_sha256;

-- name: sizes
-- How large the tables of this schema are, in bytes, and how many dead rows they hold.
SELECT relname, pg_total_relation_size(relid), n_dead_tup
FROM pg_stat_user_tables WHERE schemaname = %(schema)s ORDER BY relname;

-- name: vacuum_full
-- Write every table anew that holds what users gave.
VACUUM (FULL) perdure.runs, perdure.records, perdure.pieces, perdure.receipts, perdure.timers,
  perdure.checkpoints, perdure.messages, perdure.approvals, perdure.session_messages,
  perdure.session_appends;

-- name: expired_runs
-- Some runs that were over before an instant, the oldest first, unless something may still come of
-- one, or a person erased it.
SELECT run_number, run_id FROM perdure.runs AS runs
WHERE state IN ('completed', 'failed', 'cancelled') AND finished_at < %(before)s::double precision
AND (erased_at IS NULL OR erased_by = 'retention')
AND NOT EXISTS (SELECT 1 FROM perdure.runs AS above WHERE above.run_id = runs.parent
                AND above.state NOT IN ('completed', 'failed', 'cancelled'))
AND NOT EXISTS (SELECT 1 FROM perdure.receipts AS receipts WHERE receipts.run_id = runs.run_id
                AND receipts.state IN ('in_flight', 'ambiguous'))
ORDER BY run_number LIMIT %(limit)s FOR UPDATE SKIP LOCKED;

-- name: count_runs_expired
-- How many runs were over before an instant, as `expired_runs`.
SELECT count(*) FROM perdure.runs AS runs
WHERE state IN ('completed', 'failed', 'cancelled') AND finished_at < %(before)s::double precision
AND (erased_at IS NULL OR erased_by = 'retention')
AND NOT EXISTS (SELECT 1 FROM perdure.runs AS above WHERE above.run_id = runs.parent
                AND above.state NOT IN ('completed', 'failed', 'cancelled'))
AND NOT EXISTS (SELECT 1 FROM perdure.receipts AS receipts WHERE receipts.run_id = runs.run_id
                AND receipts.state IN ('in_flight', 'ambiguous'));

-- name: forget_attempts
-- Delete the claims of a run.
DELETE FROM perdure.attempts AS attempts WHERE run_number = %(run_number)s;

-- name: forget_run
-- Delete a run of which nothing else is left.
DELETE FROM perdure.runs AS runs WHERE run_number = %(run_number)s;

-- name: count_receipts_expired
-- How many receipts were settled before an instant and belong to no run that goes on.
SELECT count(*) FROM perdure.receipts AS receipts
WHERE state IN ('completed', 'failed') AND settled_at < %(before)s::double precision
AND NOT EXISTS (SELECT 1 FROM perdure.runs AS runs WHERE runs.run_id = receipts.run_id
                AND runs.state NOT IN ('completed', 'failed', 'cancelled'));

-- name: collect_receipts
-- Delete some receipts that were settled before an instant and belong to no run that goes on.
-- Their state is looked at again: another attempt may have begun since they were found.
DELETE FROM perdure.receipts AS receipts
WHERE state IN ('completed', 'failed') AND settled_at < %(before)s::double precision
AND receipt_number IN (
  SELECT receipt_number FROM perdure.receipts AS receipts
  WHERE state IN ('completed', 'failed') AND settled_at < %(before)s::double precision
  AND NOT EXISTS (SELECT 1 FROM perdure.runs AS runs WHERE runs.run_id = receipts.run_id
                  AND runs.state NOT IN ('completed', 'failed', 'cancelled'))
  ORDER BY receipt_number LIMIT %(limit)s);

-- name: count_tombstones_expired
-- How many receipts were erased before an instant.
SELECT count(*) FROM perdure.tombstones AS tombstones WHERE erased_at < %(before)s::double precision;

-- name: collect_tombstones
-- Delete some tombstones of receipts that were erased before an instant.
DELETE FROM perdure.tombstones AS tombstones WHERE operation_key IN (
  SELECT operation_key FROM perdure.tombstones AS tombstones WHERE erased_at < %(before)s::double precision LIMIT %(limit)s);

-- name: count_audit_expired
-- How many audit records are from before an instant.
SELECT count(*) FROM perdure.audit AS audit WHERE at < %(before)s::double precision;

-- name: collect_audit
-- Delete some audit records from before an instant.
DELETE FROM perdure.audit AS audit WHERE audit_number IN (
  SELECT audit_number FROM perdure.audit AS audit WHERE at < %(before)s::double precision ORDER BY audit_number LIMIT %(limit)s);

-- name: count_workers_expired
-- How many workers that are gone were started before an instant.
SELECT count(*) FROM perdure.workers AS workers WHERE gone > 0 AND started_at < %(before)s::double precision
AND NOT EXISTS (SELECT 1 FROM perdure.runs AS runs WHERE runs.holder = workers.holder);

-- name: collect_workers
-- Delete some workers that are gone and were started before an instant.
DELETE FROM perdure.workers AS workers WHERE worker_number IN (
  SELECT worker_number FROM perdure.workers AS workers WHERE gone > 0 AND started_at < %(before)s::double precision
  AND NOT EXISTS (SELECT 1 FROM perdure.runs AS runs WHERE runs.holder = workers.holder) LIMIT %(limit)s);

-- name: collect_pieces
-- Delete some pieces that nothing needs.
DELETE FROM perdure.pieces AS pieces WHERE digest IN (
  SELECT digest FROM perdure.pieces AS leaf
  WHERE NOT EXISTS (SELECT 1 FROM perdure.pieces AS child WHERE child.parent = leaf.digest)
  AND NOT EXISTS (SELECT 1 FROM perdure.records WHERE input_piece = leaf.digest)
  AND NOT EXISTS (SELECT 1 FROM perdure.records WHERE payload_piece = leaf.digest)
  AND NOT EXISTS (SELECT 1 FROM perdure.runs WHERE input_piece = leaf.digest)
  AND NOT EXISTS (SELECT 1 FROM perdure.runs WHERE output_piece = leaf.digest)
  LIMIT %(limit)s FOR UPDATE SKIP LOCKED);

-- name: list_keys
-- The keys that values are sealed with, and what proves each.
SELECT key_id, proof FROM perdure.keys ORDER BY key_id;

-- name: holds_any
-- Whether anything was ever written that users gave.
SELECT EXISTS (SELECT 1 FROM perdure.runs) OR EXISTS (SELECT 1 FROM perdure.receipts)
OR EXISTS (SELECT 1 FROM perdure.sessions);

-- name: note_key
-- Note a key before anything is sealed with it.
INSERT INTO perdure.keys (key_id, proof) VALUES (%(key_id)s, %(proof)s)
ON CONFLICT (key_id) DO NOTHING;

-- name: count_stale
-- How many rows of each class hold a value that does not begin as values do that are sealed now.
SELECT
  (SELECT count(*) FROM perdure.runs
   WHERE substr(input_sha256, 1, length(%(head)s::bytea)) <> %(head)s::bytea
   OR (erased_at IS NULL AND substr(input, 1, length(%(head)s::bytea)) <> %(head)s::bytea)
   OR substr(output, 1, length(%(head)s::bytea)) <> %(head)s::bytea
   OR substr(problem, 1, length(%(head)s::bytea)) <> %(head)s::bytea),
  (SELECT count(*) FROM perdure.records
   WHERE substr(input_sha256, 1, length(%(head)s::bytea)) <> %(head)s::bytea
   OR substr(input_tail, 1, length(%(head)s::bytea)) <> %(head)s::bytea
   OR substr(payload, 1, length(%(head)s::bytea)) <> %(head)s::bytea),
  (SELECT count(*) FROM perdure.timers
   WHERE substr(input_sha256, 1, length(%(head)s::bytea)) <> %(head)s::bytea
   OR substr(input, 1, length(%(head)s::bytea)) <> %(head)s::bytea),
  (SELECT count(*) FROM perdure.receipts
   WHERE substr(arguments_sha256, 1, length(%(head)s::bytea)) <> %(head)s::bytea
   OR substr(payload, 1, length(%(head)s::bytea)) <> %(head)s::bytea
   OR (NOT starts_with(problem, %(head_text)s::text) AND problem <> 'its worker is gone')
   OR NOT starts_with(decided_why, %(head_text)s::text)),
  (SELECT count(*) FROM perdure.decisions WHERE NOT starts_with(decided_why, %(head_text)s::text)),
  (SELECT count(*) FROM perdure.pieces
   WHERE substr(data, 1, length(%(head)s::bytea)) <> %(head)s::bytea),
  (SELECT count(*) FROM perdure.checkpoints
   WHERE substr(state, 1, length(%(head)s::bytea)) <> %(head)s::bytea),
  (SELECT count(*) FROM perdure.messages
   WHERE substr(payload, 1, length(%(head)s::bytea)) <> %(head)s::bytea),
  (SELECT count(*) FROM perdure.approvals
   WHERE substr(arguments, 1, length(%(head)s::bytea)) <> %(head)s::bytea
   OR substr(answer, 1, length(%(head)s::bytea)) <> %(head)s::bytea),
  (SELECT count(*) FROM perdure.session_messages
   WHERE substr(document, 1, length(%(head)s::bytea)) <> %(head)s::bytea),
  (SELECT count(*) FROM perdure.session_appends
   WHERE substr(document, 1, length(%(head)s::bytea)) <> %(head)s::bytea);

-- name: stale_runs
-- Some runs after a number with a value that is not sealed as values are now.
SELECT run_number, run_id, function, version, input_sha256,
       input_packing, input, asked.digest, asked.packing, asked.data,
       output_packing, output, told.digest, told.packing, told.data, problem, erased_at
FROM perdure.runs AS runs LEFT JOIN perdure.pieces AS asked ON asked.digest = input_piece
LEFT JOIN perdure.pieces AS told ON told.digest = output_piece
WHERE run_number > %(after)s
AND (substr(input_sha256, 1, length(%(head)s::bytea)) <> %(head)s::bytea
     OR (erased_at IS NULL AND substr(input, 1, length(%(head)s::bytea)) <> %(head)s::bytea)
     OR substr(output, 1, length(%(head)s::bytea)) <> %(head)s::bytea
     OR substr(problem, 1, length(%(head)s::bytea)) <> %(head)s::bytea)
ORDER BY run_number LIMIT %(limit)s FOR UPDATE OF runs;

-- name: reseal_runs
-- Write the values of a run anew.
UPDATE perdure.runs SET input_sha256 = %(input_sha256)s, input = %(input)s,
  output = %(output)s::bytea, problem = %(problem)s::bytea
WHERE run_number = %(number)s;

-- name: stale_records
-- Some records after a number with a value that is not sealed as values are now.
SELECT record_number, run_id, step_id, sequence, records.input_sha256, kind, handler_id, status,
       attempt, records.finished_at, nested,
       records.input_packing, input_tail, asked.digest, asked.packing, asked.data,
       payload_packing, payload, told.digest, told.packing, told.data
FROM perdure.records AS records JOIN perdure.runs AS runs USING (run_number)
LEFT JOIN perdure.pieces AS asked ON asked.digest = records.input_piece
LEFT JOIN perdure.pieces AS told ON told.digest = payload_piece
WHERE record_number > %(after)s
AND (substr(records.input_sha256, 1, length(%(head)s::bytea)) <> %(head)s::bytea
     OR substr(input_tail, 1, length(%(head)s::bytea)) <> %(head)s::bytea
     OR substr(payload, 1, length(%(head)s::bytea)) <> %(head)s::bytea)
ORDER BY record_number LIMIT %(limit)s FOR UPDATE OF records;

-- name: reseal_records
-- Write the values of a record anew.
UPDATE perdure.records SET input_sha256 = %(input_sha256)s, input_tail = %(input_tail)s,
  payload = %(payload)s
WHERE record_number = %(number)s;

-- name: stale_timers
-- Some delays after a place with a value that is not sealed as values are now.
SELECT run_number || '/' || step_id || '/' || sequence, run_number, run_id, step_id, sequence,
       timers.wake_at, awaits, timers.input_sha256, timers.input
FROM perdure.timers AS timers JOIN perdure.runs AS runs USING (run_number)
WHERE (run_number || '/' || step_id || '/' || sequence) COLLATE "C" > %(after)s::text
AND (substr(timers.input_sha256, 1, length(%(head)s::bytea)) <> %(head)s::bytea
     OR substr(timers.input, 1, length(%(head)s::bytea)) <> %(head)s::bytea)
ORDER BY (run_number || '/' || step_id || '/' || sequence) COLLATE "C"
LIMIT %(limit)s FOR UPDATE OF timers;

-- name: reseal_timers
-- Write the values of a delay anew.
UPDATE perdure.timers SET input_sha256 = %(input_sha256)s, input = %(input)s
WHERE run_number = %(run_number)s AND step_id = %(step_id)s AND sequence = %(sequence)s;

-- name: stale_receipts
-- Some receipts after a number with a value that is not sealed as values are now.
SELECT receipt_number, operation_key, arguments_sha256, payload, problem, decided_why
FROM perdure.receipts
WHERE receipt_number > %(after)s
AND (substr(arguments_sha256, 1, length(%(head)s::bytea)) <> %(head)s::bytea
     OR substr(payload, 1, length(%(head)s::bytea)) <> %(head)s::bytea
     OR (NOT starts_with(problem, %(head_text)s::text) AND problem <> 'its worker is gone')
     OR NOT starts_with(decided_why, %(head_text)s::text))
ORDER BY receipt_number LIMIT %(limit)s FOR UPDATE;

-- name: reseal_receipts
-- Write the values of a receipt anew.
UPDATE perdure.receipts SET arguments_sha256 = %(arguments_sha256)s, payload = %(payload)s::bytea,
  problem = %(problem)s::text, decided_why = %(why)s::text
WHERE receipt_number = %(number)s;

-- name: stale_decisions
-- Some decisions after a place whose reason is not sealed as texts are now.
SELECT operation_key || '/' || version, operation_key, version, decided_why FROM perdure.decisions
WHERE (operation_key || '/' || version) COLLATE "C" > %(after)s::text
AND NOT starts_with(decided_why, %(head_text)s::text)
ORDER BY (operation_key || '/' || version) COLLATE "C" LIMIT %(limit)s FOR UPDATE;

-- name: reseal_decisions
-- Write the reason of a decision anew.
UPDATE perdure.decisions SET decided_why = %(why)s
WHERE operation_key = %(operation_key)s AND version = %(version)s;

-- name: stale_pieces
-- Some pieces after a name that are not sealed as values are now.
SELECT digest, digest, packing, data FROM perdure.pieces
WHERE digest > %(after)s::bytea AND substr(data, 1, length(%(head)s::bytea)) <> %(head)s::bytea
ORDER BY digest LIMIT %(limit)s FOR UPDATE;

-- name: reseal_pieces
-- Write a piece anew, and its name, also where others refer to it.
UPDATE perdure.pieces SET digest = %(digest)s, data = %(data)s WHERE digest = %(number)s;

-- name: stale_checkpoints
-- Some checkpoints after a number whose state is not sealed as values are now.
SELECT checkpoint_number, run_id, checkpoint_id, kind, revision, cursor, checkpoints.state
FROM perdure.checkpoints AS checkpoints JOIN perdure.runs AS runs USING (run_number)
WHERE checkpoint_number > %(after)s
AND substr(checkpoints.state, 1, length(%(head)s::bytea)) <> %(head)s::bytea
ORDER BY checkpoint_number LIMIT %(limit)s FOR UPDATE OF checkpoints;

-- name: reseal_checkpoints
-- Write the state of a checkpoint anew.
UPDATE perdure.checkpoints SET state = %(state)s WHERE checkpoint_number = %(number)s;

-- name: stale_messages
-- Some messages after a number that do not say what they say as values are sealed now.
SELECT message_number, run_id, message_id, name, edition, payload
FROM perdure.messages AS messages JOIN perdure.runs AS runs USING (run_number)
WHERE message_number > %(after)s
AND substr(payload, 1, length(%(head)s::bytea)) <> %(head)s::bytea
ORDER BY message_number LIMIT %(limit)s FOR UPDATE OF messages;

-- name: reseal_messages
-- Write anew what a message says.
UPDATE perdure.messages SET payload = %(payload)s WHERE message_number = %(number)s;

-- name: stale_approvals
-- Some of what runs asked for after a number with a value that is not sealed as values are now.
SELECT approval_number, run_id, item_id, kind, name, answered_by, arguments, answer
FROM perdure.approvals AS approvals JOIN perdure.runs AS runs USING (run_number)
WHERE approval_number > %(after)s
AND (substr(arguments, 1, length(%(head)s::bytea)) <> %(head)s::bytea
     OR substr(answer, 1, length(%(head)s::bytea)) <> %(head)s::bytea)
ORDER BY approval_number LIMIT %(limit)s FOR UPDATE OF approvals;

-- name: reseal_approvals
-- Write anew what a run asked for, and the answer.
UPDATE perdure.approvals SET arguments = %(arguments)s, answer = %(answer)s::bytea
WHERE approval_number = %(number)s;

-- name: forget_keys
-- Forget keys, because nothing is sealed with them any more.
DELETE FROM perdure.keys WHERE key_id = ANY(%(key_ids)s::text[]);

-- name: import_run
-- Write a run that was exported, unless its id is taken.
INSERT INTO perdure.runs (run_id, function, version, state, generation, cancel_requested,
                          created_at, started_at, finished_at, wake_at, deadline_at, parent,
                          queue, queue_key, priority, input_sha256, input_piece, input_packing,
                          input, output_piece, output_packing, output, problem, problem_code)
VALUES (%(run_id)s, %(function)s, %(version)s, %(state)s, %(generation)s, %(cancel_requested)s,
        %(created_at)s, %(started_at)s, %(finished_at)s, %(wake_at)s, %(deadline_at)s,
        %(parent)s, %(queue)s, %(queue_key)s, %(priority)s, %(input_sha256)s, %(input_piece)s,
        %(input_packing)s, %(input)s, %(output_piece)s, %(output_packing)s, %(output)s,
        %(problem)s, %(problem_code)s)
ON CONFLICT (run_id) DO NOTHING RETURNING run_number;

-- name: import_worker
-- Make workers known that claimed an exported run, as ones that are gone.
INSERT INTO perdure.workers (
  holder, name, pid, started_at, host, machine, lease_seconds, lease_until, gone
)
SELECT new.holder, new.worker, new.pid, new.claimed_at, '', '', 0, 0, 1
FROM unnest(
  %(holder)s::text[], %(worker)s::text[], %(pid)s::bigint[], %(claimed_at)s::double precision[]
) AS new (
  holder, worker, pid, claimed_at
)
ON CONFLICT (holder) DO NOTHING;

-- name: import_piece
-- Write the pieces that the documents of an exported run add.
INSERT INTO perdure.pieces (
  digest, parent, packing, data
)
SELECT new.piece_digest, new.piece_parent, new.piece_packing, new.piece_data
FROM unnest(
  %(piece_digest)s::bytea[], %(piece_parent)s::bytea[], %(piece_packing)s::bigint[],
  %(piece_data)s::bytea[]
) AS new (
  piece_digest, piece_parent, piece_packing, piece_data
)
ORDER BY new.piece_digest ON CONFLICT (digest) DO NOTHING;

-- name: import_attempt
-- Write the claims of an exported run.
INSERT INTO perdure.attempts (
  run_number, generation, holder, claimed_at, ended_at, ending, executed, replayed, token
)
SELECT runs.run_number, new.generation, new.holder, new.claimed_at, new.ended_at, new.ending,
       new.executed, new.replayed, ''
FROM unnest(
  %(generation)s::bigint[], %(holder)s::text[], %(claimed_at)s::double precision[],
  %(ended_at)s::double precision[], %(ending)s::text[], %(executed)s::bigint[],
  %(replayed)s::bigint[]
) AS new (
  generation, holder, claimed_at, ended_at, ending, executed, replayed
)
JOIN perdure.runs AS runs ON runs.run_id = %(run_id)s;

-- name: import_record
-- Write the records of an exported run, in their order.
INSERT INTO perdure.records (
  run_number, generation, step_id, sequence, kind, handler_id, input_sha256, input_bytes,
  status, attempt, nested, started_at, finished_at, input_piece, input_packing, input_tail,
  payload_piece, payload_packing, payload_bytes, payload
)
SELECT runs.run_number, new.generation, new.step_id, new.sequence, new.kind, new.handler_id,
       new.input_sha256, new.input_bytes, new.status, new.attempt, new.nested, new.started_at,
       new.finished_at, new.input_piece, new.input_packing, new.input_tail, new.payload_piece,
       new.payload_packing, new.payload_bytes, new.payload
FROM unnest(
  %(generation)s::bigint[], %(step_id)s::text[], %(sequence)s::bigint[], %(kind)s::text[],
  %(handler_id)s::text[], %(input_sha256)s::bytea[], %(input_bytes)s::bigint[],
  %(status)s::text[], %(attempt)s::bigint[], %(nested)s::boolean[],
  %(started_at)s::double precision[], %(finished_at)s::double precision[],
  %(input_piece)s::bytea[], %(input_packing)s::bigint[], %(input_tail)s::bytea[],
  %(payload_piece)s::bytea[], %(payload_packing)s::bigint[], %(payload_bytes)s::bigint[],
  %(payload)s::bytea[]
) WITH ORDINALITY AS new (
  generation, step_id, sequence, kind, handler_id, input_sha256, input_bytes, status, attempt,
  nested, started_at, finished_at, input_piece, input_packing, input_tail, payload_piece,
  payload_packing, payload_bytes, payload, place
)
JOIN perdure.runs AS runs ON runs.run_id = %(run_id)s
ORDER BY new.place;

-- name: import_timer
-- Write the delays that an exported run had under way.
INSERT INTO perdure.timers (
  run_number, step_id, sequence, kind, handler_id, input_sha256, input, wake_at,
  awaits
)
SELECT runs.run_number, new.step_id, new.sequence, new.kind, new.handler_id, new.input_sha256,
       new.input, new.wake_at, new.awaits
FROM unnest(
  %(step_id)s::text[], %(sequence)s::bigint[], %(kind)s::text[], %(handler_id)s::text[],
  %(input_sha256)s::bytea[], %(input)s::bytea[], %(wake_at)s::double precision[],
  %(awaits)s::text[]
) AS new (
  step_id, sequence, kind, handler_id, input_sha256, input, wake_at, awaits
)
JOIN perdure.runs AS runs ON runs.run_id = %(run_id)s;

-- name: import_message
-- Write a message that an exported run had.
INSERT INTO perdure.messages (run_number, message_id, name, edition, payload, sent_by, sent_at,
                      taken_step, taken_sequence, taken_at)
SELECT run_number, %(message_id)s, %(name)s, %(edition)s, %(payload)s::bytea, %(sent_by)s, %(sent_at)s,
       %(taken_step)s::text, %(taken_sequence)s::bigint, %(taken_at)s::double precision
FROM perdure.runs WHERE run_id = %(run_id)s;

-- name: import_approval
-- Write what an exported run had asked for.
INSERT INTO perdure.approvals (run_number, item_id, step_id, sequence, kind, name, asked_at, arguments,
                       decision, answer, answered_by, answered_at)
SELECT run_number, %(item_id)s, %(step_id)s, %(sequence)s, %(ask_kind)s, %(name)s, %(asked_at)s, %(arguments)s,
       %(decision)s::text, %(answer)s::bytea, %(answered_by)s::text,
       %(answered_at)s::double precision
FROM perdure.runs WHERE run_id = %(run_id)s;

-- name: import_receipt
-- Write the receipts of an exported run whose keys have none, in their order; return those keys.
INSERT INTO perdure.receipts (
  operation_key, run_id, idempotency_key, target, ordinal, support, arguments_sha256, state,
  attempt, holder, generation, version, payload, problem, first_claimed_at, claimed_at,
  settled_at, settle_seconds, resend_after, lookups, lookup_at, lookup_holder, exhausted,
  earlier_unknown, residual_duplicate_risk, decided_by, decided_why, handler_id, token
)
SELECT new.operation_key, new.run_id, new.idempotency_key, new.target, new.ordinal,
       new.support, new.arguments_sha256, new.state, new.attempt, new.holder, new.generation,
       new.version, new.payload, new.problem, new.first_claimed_at, new.claimed_at,
       new.settled_at, new.settle_seconds, new.resend_after, new.lookups, new.lookup_at,
       new.lookup_holder, new.exhausted, new.earlier_unknown, new.residual_duplicate_risk,
       new.decided_by, new.decided_why, new.handler_id, ''
FROM unnest(
  %(operation_key)s::text[], %(run_id)s::text[], %(idempotency_key)s::text[],
  %(target)s::text[], %(ordinal)s::bigint[], %(support)s::text[],
  %(arguments_sha256)s::bytea[], %(state)s::text[], %(attempt)s::bigint[], %(holder)s::text[],
  %(generation)s::bigint[], %(version)s::bigint[], %(payload)s::bytea[], %(problem)s::text[],
  %(first_claimed_at)s::double precision[], %(claimed_at)s::double precision[],
  %(settled_at)s::double precision[], %(settle_seconds)s::double precision[],
  %(resend_after)s::double precision[], %(lookups)s::bigint[],
  %(lookup_at)s::double precision[], %(lookup_holder)s::text[], %(exhausted)s::boolean[],
  %(earlier_unknown)s::boolean[], %(residual_duplicate_risk)s::boolean[],
  %(decided_by)s::text[], %(decided_why)s::text[], %(handler_id)s::text[]
) WITH ORDINALITY AS new (
  operation_key, run_id, idempotency_key, target, ordinal, support, arguments_sha256, state,
  attempt, holder, generation, version, payload, problem, first_claimed_at, claimed_at,
  settled_at, settle_seconds, resend_after, lookups, lookup_at, lookup_holder, exhausted,
  earlier_unknown, residual_duplicate_risk, decided_by, decided_why, handler_id, place
)
ORDER BY new.place ON CONFLICT (operation_key) DO NOTHING RETURNING operation_key;

-- name: import_decision
-- Write what people decided about effects of an exported run.
INSERT INTO perdure.decisions (
  operation_key, version, attempt, decision, decided_by, decided_why, decided_at
)
SELECT new.operation_key, new.version, new.attempt, new.decision, new.decided_by,
       new.decided_why, new.decided_at
FROM unnest(
  %(operation_key)s::text[], %(version)s::bigint[], %(attempt)s::bigint[],
  %(decision)s::text[], %(decided_by)s::text[], %(decided_why)s::text[],
  %(decided_at)s::double precision[]
) AS new (
  operation_key, version, attempt, decision, decided_by, decided_why, decided_at
)
ON CONFLICT (operation_key, version) DO NOTHING;

-- name: note_blobs
-- Note blobs that are about to be put, before rows need them.
INSERT INTO perdure.blobs (name, since) SELECT unnest(%(names)s::bytea[]), %(since)s
ON CONFLICT (name) DO NOTHING;

-- name: any_condemned
-- Whether there are blobs that no row needs any more, or that none came to need before an instant.
SELECT EXISTS (SELECT 1 FROM perdure.blobs WHERE since < %(before)s);

-- name: condemn_blobs
-- Keep rows from needing those blobs that none came to need before an instant.
UPDATE perdure.blobs SET since = 0 WHERE since < %(before)s AND since > 0;

-- name: condemned_blobs
-- Some blobs that nothing can need any more.
SELECT name FROM perdure.blobs WHERE since = 0 ORDER BY name LIMIT %(limit)s;

-- name: forget_blobs
-- Forget blobs that were deleted.
DELETE FROM perdure.blobs WHERE name = ANY(%(names)s::bytea[]) AND since = 0;

-- name: leaves_blobs
-- Whether blobs of rows that were deleted are still there.
SELECT EXISTS (SELECT 1 FROM perdure.blobs WHERE since = 0);

-- name: holds_blobs
-- Whether values stand in a blob store, those too that no row needs.
SELECT EXISTS (SELECT 1 FROM perdure.blobs)
OR EXISTS (SELECT 1 FROM perdure.pieces WHERE packing >= 4)
OR EXISTS (SELECT 1 FROM perdure.runs
           WHERE (input_packing >= 4 AND input <> '')
           OR (output_packing >= 4 AND output IS NOT NULL))
OR EXISTS (SELECT 1 FROM perdure.records WHERE input_packing >= 4 OR payload_packing >= 4);

-- name: newest_blobs
-- The names of some blobs that rows need: the newest of the first class that has any, and so on.
SELECT name FROM (
  (SELECT substring(output FROM length(output) - 31) AS name FROM perdure.runs
   WHERE output_packing >= 4 AND length(output) >= 32 ORDER BY run_number DESC LIMIT %(limit)s)
  UNION ALL
  (SELECT substring(input FROM length(input) - 31) AS name FROM perdure.runs
   WHERE input_packing >= 4 AND length(input) >= 32 ORDER BY run_number DESC LIMIT %(limit)s)
  UNION ALL
  (SELECT substring(payload FROM length(payload) - 31) AS name FROM perdure.records
   WHERE payload_packing >= 4 AND length(payload) >= 32 ORDER BY record_number DESC LIMIT %(limit)s)
  UNION ALL
  (SELECT substring(input_tail FROM length(input_tail) - 31) AS name FROM perdure.records
   WHERE input_packing >= 4 AND length(input_tail) >= 32 ORDER BY record_number DESC LIMIT %(limit)s)
  UNION ALL
  (SELECT substring(data FROM length(data) - 31) AS name FROM perdure.pieces
   WHERE packing >= 4 AND length(data) >= 32 LIMIT %(limit)s)
) AS found LIMIT %(limit)s;

-- name: declare_schedule
-- Write a schedule, or what an App declares anew of one that is there.
INSERT INTO perdure.schedules AS schedules (name, function, rule, counted_to)
VALUES (%(name)s, %(function)s, %(rule)s, %(now)s)
ON CONFLICT (name) DO UPDATE SET function = excluded.function, rule = excluded.rule
WHERE schedules.function <> excluded.function OR schedules.rule <> excluded.rule;

-- name: list_schedules
-- Schedules and how they stand, by name.
SELECT name, function, rule, counted_to, paused FROM perdure.schedules ORDER BY name;

-- name: count_ticks
-- Note until when the ticks of a schedule are dealt with, if it stands as it was seen.
UPDATE perdure.schedules SET counted_to = %(counted_to)s
WHERE name = %(name)s AND counted_to = %(seen)s AND rule = %(rule)s AND NOT paused
RETURNING name;

-- name: pause_schedule
-- Keep a schedule from starting anything.
UPDATE perdure.schedules SET paused = true WHERE name = %(name)s RETURNING name;

-- name: resume_schedule
-- Let a schedule go on; one that was paused counts from now on.
UPDATE perdure.schedules
SET counted_to = CASE WHEN paused THEN greatest(counted_to, %(now)s) ELSE counted_to END,
    paused = false
WHERE name = %(name)s RETURNING name;

-- name: declare_queue
-- Write a queue, or what an App declares anew of one that is there.
INSERT INTO perdure.queues AS queues (name, concurrency, key_concurrency, rate_runs, rate_seconds)
VALUES (%(name)s, %(concurrency)s, %(key_concurrency)s, %(rate_runs)s, %(rate_seconds)s)
ON CONFLICT (name) DO UPDATE SET concurrency = excluded.concurrency,
  key_concurrency = excluded.key_concurrency, rate_runs = excluded.rate_runs,
  rate_seconds = excluded.rate_seconds
WHERE (queues.concurrency, queues.key_concurrency, queues.rate_runs, queues.rate_seconds)
IS DISTINCT FROM (excluded.concurrency, excluded.key_concurrency, excluded.rate_runs,
                  excluded.rate_seconds);

-- name: know_queue
-- Write a queue without limits for a run that comes from elsewhere, unless it is there.
INSERT INTO perdure.queues (name) VALUES (%(queue)s) ON CONFLICT (name) DO NOTHING;

-- name: list_queues
-- Queues and how they stand, by name.
SELECT name, concurrency, key_concurrency, rate_runs, rate_seconds, paused,
       (SELECT count(*) FROM perdure.runs AS runs
        WHERE runs.state = 'pending' AND runs.queue = queues.name),
       (SELECT count(*) FROM perdure.runs AS runs
        WHERE runs.state IN ('running', 'cancelling') AND runs.queue = queues.name)
FROM perdure.queues AS queues ORDER BY name;

-- name: pause_queue
-- Keep the runs of a queue from being claimed; return whether there is one.
UPDATE perdure.queues SET paused = true WHERE name = %(name)s RETURNING 1;

-- name: release_queue
-- Let the runs of a queue be claimed again; return whether there is one.
UPDATE perdure.queues SET paused = false WHERE name = %(name)s RETURNING 1;

-- name: note_turn
-- Write which run answers what was said in a session, and that the session is to hear of its end.
INSERT INTO perdure.turns (run_id, session, event_id) VALUES (%(run_id)s, %(session)s, %(event_id)s)
ON CONFLICT (run_id) DO UPDATE SET open = true;

-- name: read_turn
-- What a run answers.
SELECT run_id, session, event_id FROM perdure.turns WHERE run_id = %(run_id)s;

-- name: list_turns
-- The turns of a session, in the order of the ids of their runs.
SELECT run_id, session, event_id FROM perdure.turns WHERE session = %(session)s ORDER BY run_id;

-- name: ended_turns
-- Open turns whose run has ended, some of them.
SELECT turns.run_id, session, event_id, state, generation, problem_code
FROM perdure.turns AS turns JOIN perdure.runs AS runs ON runs.run_id = turns.run_id
WHERE open AND state IN ('completed', 'failed', 'cancelled') AND turns.run_id > %(after)s
ORDER BY turns.run_id LIMIT %(limit)s;

-- name: close_turn
-- Note that a session was told how a run ended, unless the run goes on since.
UPDATE perdure.turns SET open = false
WHERE run_id = %(run_id)s
AND EXISTS (SELECT 1 FROM perdure.runs WHERE run_id = %(run_id)s AND generation = %(generation)s
            AND state IN ('completed', 'failed', 'cancelled'));

-- name: held_fences
-- Those of some fences that still hold, and will until the end of the transaction.
SELECT runs.run_id, runs.holder, runs.generation
FROM unnest(%(run_id)s::text[], %(holder)s::text[], %(generation)s::bigint[])
  AS given (run_id, holder, generation)
JOIN perdure.runs AS runs ON runs.run_id = given.run_id AND runs.holder = given.holder
  AND runs.generation = given.generation
FOR SHARE OF runs;

-- name: create_sessions
-- Make sessions known that are about to be written to; in order, since others make them too.
INSERT INTO perdure.sessions (session, changed_at)
SELECT * FROM unnest(%(session)s::text[], %(changed_at)s::double precision[])
  AS new (session, changed_at)
ORDER BY session
ON CONFLICT (session) DO NOTHING;

-- name: lock_sessions
-- How far some sessions have come, which nobody else writes to until the end of the transaction.
SELECT session, session_number, head, floor FROM perdure.sessions
WHERE session = ANY(%(session)s::text[]) ORDER BY session FOR NO KEY UPDATE;

-- name: find_published
-- Those messages that sessions have had under some ids.
SELECT messages.session_number, messages.message_id, serial
FROM unnest(%(session_number)s::bigint[], %(message_id)s::text[]) AS given (session_number, message_id)
JOIN perdure.session_messages AS messages ON messages.session_number = given.session_number
  AND messages.message_id = given.message_id;

-- name: find_changed
-- Whose the messages are that are to be changed, and what they have taken in; those that are not kept
-- cannot be.
SELECT messages.session_number, messages.serial, version, run_id
FROM unnest(%(session_number)s::bigint[], %(serial)s::bigint[]) AS given (session_number, serial)
JOIN perdure.session_messages AS messages ON messages.session_number = given.session_number
  AND messages.serial = given.serial
WHERE NOT ephemeral;

-- name: open_streams
-- The messages of some runs with what was appended and not taken in.
SELECT DISTINCT messages.session_number, messages.serial
FROM unnest(%(session_number)s::bigint[], %(run_id)s::text[]) AS given (session_number, run_id)
JOIN perdure.session_appends AS appends ON appends.session_number = given.session_number
JOIN perdure.session_messages AS messages ON messages.session_number = appends.session_number
  AND messages.serial = appends.serial AND messages.run_id = given.run_id;

-- name: read_joined
-- Messages that are to take in what was done to them.
SELECT messages.session_number, messages.serial, version, name, client_id, document
FROM unnest(%(session_number)s::bigint[], %(serial)s::bigint[]) AS given (session_number, serial)
JOIN perdure.session_messages AS messages ON messages.session_number = given.session_number
  AND messages.serial = given.serial;

-- name: read_appended
-- What was appended to some messages and not taken in.
SELECT appends.session_number, appends.serial, version, client_id, document
FROM unnest(%(session_number)s::bigint[], %(serial)s::bigint[]) AS given (session_number, serial)
JOIN perdure.session_appends AS appends ON appends.session_number = given.session_number
  AND appends.serial = given.serial
ORDER BY version;

-- name: insert_session_messages
-- Write new messages.
INSERT INTO perdure.session_messages (session_number, serial, version, message_id, name, client_id,
                                      run_id, created_at, ephemeral, document)
SELECT session_number, serial, serial, message_id, name, client_id, run_id, created_at, ephemeral,
       document
FROM unnest(%(session_number)s::bigint[], %(serial)s::bigint[], %(message_id)s::text[],
            %(name)s::text[], %(client_id)s::text[], %(run_id)s::text[],
            %(created_at)s::double precision[], %(ephemeral)s::boolean[], %(document)s::bytea[])
  AS new (session_number, serial, message_id, name, client_id, run_id, created_at, ephemeral,
          document);

-- name: insert_session_appends
-- Write what is appended to messages.
INSERT INTO perdure.session_appends (session_number, serial, version, client_id, document)
SELECT * FROM unnest(%(session_number)s::bigint[], %(serial)s::bigint[], %(version)s::bigint[],
                     %(client_id)s::text[], %(document)s::bytea[])
  AS new (session_number, serial, version, client_id, document);

-- name: join_session_messages
-- Write messages with all that they take in.
UPDATE perdure.session_messages AS messages SET version = new.version, document = new.document
FROM unnest(%(session_number)s::bigint[], %(serial)s::bigint[], %(version)s::bigint[],
            %(document)s::bytea[]) AS new (session_number, serial, version, document)
WHERE messages.session_number = new.session_number AND messages.serial = new.serial;

-- name: drop_joined
-- Delete what messages have taken in.
DELETE FROM perdure.session_appends AS appends
USING unnest(%(session_number)s::bigint[], %(serial)s::bigint[]) AS given (session_number, serial)
WHERE appends.session_number = given.session_number AND appends.serial = given.serial;

-- name: advance_sessions
-- Note how far sessions have come, which are locked.
UPDATE perdure.sessions AS sessions SET head = new.head, changed_at = new.changed_at
FROM unnest(%(session_number)s::bigint[], %(head)s::bigint[], %(changed_at)s::double precision[])
  AS new (session_number, head, changed_at)
WHERE sessions.session_number = new.session_number;

-- name: drop_ephemeral
-- Delete some of what is not kept and was written before an instant.
DELETE FROM perdure.session_messages WHERE message_number IN (
  SELECT message_number FROM perdure.session_messages
  WHERE ephemeral AND created_at < %(before)s::double precision
  LIMIT %(limit)s FOR UPDATE SKIP LOCKED);

-- name: read_deliveries
-- How far a session has come, and what was done to its messages after a version, as far as a limit.
WITH wanted AS (SELECT session_number, head, floor FROM perdure.sessions WHERE session = %(session)s)
SELECT 0 AS kind, head AS version, floor AS serial, NULL::text AS name, NULL::text AS client_id,
       NULL::double precision AS created_at, false AS ephemeral, NULL::bytea AS document
FROM wanted
UNION ALL (
  SELECT 1, version, serial, name, client_id, created_at, ephemeral, document
  FROM perdure.session_messages WHERE session_number = (SELECT session_number FROM wanted)
  AND version > %(after)s ORDER BY version LIMIT %(limit)s)
UNION ALL (
  SELECT 2, version, serial, NULL, client_id, NULL, false, document
  FROM perdure.session_appends WHERE session_number = (SELECT session_number FROM wanted)
  AND version > %(after)s ORDER BY version LIMIT %(limit)s);

-- name: read_page
-- How far a session has come, its newest messages before a serial, and what was appended to those.
WITH wanted AS (SELECT session_number, head, floor FROM perdure.sessions WHERE session = %(session)s),
page AS (
  SELECT version, serial, name, client_id, created_at, document
  FROM perdure.session_messages WHERE session_number = (SELECT session_number FROM wanted)
  AND serial > (SELECT floor FROM wanted) AND serial < %(before)s AND NOT ephemeral
  ORDER BY serial DESC LIMIT %(limit)s)
SELECT 0 AS kind, head AS version, floor AS serial, NULL::text AS name, NULL::text AS client_id,
       NULL::double precision AS created_at, false AS ephemeral, NULL::bytea AS document
FROM wanted
UNION ALL SELECT 1, version, serial, name, client_id, created_at, false, document FROM page
UNION ALL SELECT 2, version, serial, NULL, client_id, NULL, false, document
FROM perdure.session_appends WHERE session_number = (SELECT session_number FROM wanted)
AND serial IN (SELECT serial FROM page);

-- name: session_heads
-- The last version of each of some sessions.
SELECT session, head FROM perdure.sessions WHERE session = ANY(%(sessions)s::text[]) AND head > 0;

-- name: list_sessions
-- The sessions that were written to last.
SELECT session, head, changed_at FROM perdure.sessions WHERE floor < head
ORDER BY changed_at DESC, session_number DESC LIMIT %(limit)s;

-- name: erase_session
-- Let nobody read what a session has; return its number where there was anything.
UPDATE perdure.sessions SET floor = head, erasing = true
WHERE session = %(session)s AND (floor < head OR erasing) RETURNING session_number;

-- name: count_sessions_expired
-- How many sessions were last written to before an instant, and have no run that goes on.
SELECT count(*) FROM perdure.sessions AS sessions
WHERE floor < head AND changed_at < %(before)s::double precision
AND NOT EXISTS (SELECT 1 FROM perdure.turns AS turns
                JOIN perdure.runs AS runs ON runs.run_id = turns.run_id
                WHERE turns.session = sessions.session
                AND state NOT IN ('completed', 'failed', 'cancelled'));

-- name: collect_sessions
-- Let nobody read some sessions that were last written to before an instant, and have no run that
-- goes on. Those that somebody writes to are left alone.
UPDATE perdure.sessions SET floor = head, erasing = true WHERE session_number IN (
  SELECT session_number FROM perdure.sessions AS sessions
  WHERE floor < head AND changed_at < %(before)s::double precision
  AND NOT EXISTS (SELECT 1 FROM perdure.turns AS turns
                  JOIN perdure.runs AS runs ON runs.run_id = turns.run_id
                  WHERE turns.session = sessions.session
                  AND state NOT IN ('completed', 'failed', 'cancelled'))
  LIMIT %(limit)s FOR UPDATE SKIP LOCKED);

-- name: erase_session_messages
-- Delete some messages that nobody may read, but for those that somebody else deletes.
DELETE FROM perdure.session_messages WHERE message_number IN (
  SELECT message_number FROM perdure.sessions AS sessions
  JOIN perdure.session_messages AS messages USING (session_number)
  WHERE erasing AND serial <= floor LIMIT %(limit)s FOR UPDATE OF messages SKIP LOCKED);

-- name: erase_session_appends
-- Delete some of what was appended to messages that nobody may read.
DELETE FROM perdure.session_appends WHERE append_number IN (
  SELECT append_number FROM perdure.sessions AS sessions
  JOIN perdure.session_appends AS appends USING (session_number)
  WHERE erasing AND serial <= floor LIMIT %(limit)s FOR UPDATE OF appends SKIP LOCKED);

-- name: end_erasing
-- Note of which sessions nothing is left that nobody may read. It waits for no session: whoever
-- writes to one may wait for what is deleted here.
UPDATE perdure.sessions SET erasing = false WHERE session_number IN (
  SELECT session_number FROM perdure.sessions AS sessions WHERE erasing
  AND NOT EXISTS (SELECT 1 FROM perdure.session_messages AS messages
                  WHERE messages.session_number = sessions.session_number AND serial <= floor)
  AND NOT EXISTS (SELECT 1 FROM perdure.session_appends AS appends
                  WHERE appends.session_number = sessions.session_number AND version <= floor)
  FOR UPDATE SKIP LOCKED);

-- name: is_erasing
-- Whether something is left of a session that nobody may read.
SELECT erasing FROM perdure.sessions WHERE session_number = %(session_number)s;

-- name: stale_session_messages
-- Some messages after a number with a document that is not sealed as values are now.
SELECT message_number, session, serial, version, name, client_id, document
FROM perdure.session_messages AS messages JOIN perdure.sessions AS sessions USING (session_number)
WHERE message_number > %(after)s
AND substr(document, 1, length(%(head)s::bytea)) <> %(head)s::bytea
ORDER BY message_number LIMIT %(limit)s FOR UPDATE OF messages;

-- name: reseal_session_messages
-- Write the document of a message anew.
UPDATE perdure.session_messages SET document = %(document)s WHERE message_number = %(number)s;

-- name: stale_session_appends
-- Some of what was appended after a number with a document that is not sealed as values are now.
SELECT append_number, session, serial, version, client_id, document
FROM perdure.session_appends AS appends JOIN perdure.sessions AS sessions USING (session_number)
WHERE append_number > %(after)s
AND substr(document, 1, length(%(head)s::bytea)) <> %(head)s::bytea
ORDER BY append_number LIMIT %(limit)s FOR UPDATE OF appends;

-- name: reseal_session_appends
-- Write the document of what was appended anew.
UPDATE perdure.session_appends SET document = %(document)s WHERE append_number = %(number)s;
