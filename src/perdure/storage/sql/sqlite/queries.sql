-- Every statement that the SQLite driver runs, by name.
-- One writing connection a process and BEGIN IMMEDIATE everywhere: there is no lock order to keep.
-- A fence (:run_id, :holder, :generation) stands in the WHERE clause of whatever a run writes.

-- name: insert_run
-- Write a run unless its id is taken; claimed by :holder when that is not null.
INSERT INTO runs (run_id, function, version, state, holder, generation, created_at, started_at,
                  deadline_at, parent, queue, queue_key, priority, input_sha256, input_piece,
                  input_packing, input)
VALUES (:run_id, :function, :version, :state, :holder, :generation, :created_at, :started_at,
        :deadline_at, :parent, :queue, :queue_key, :priority, :input_sha256, :input_piece,
        :input_packing, :input)
ON CONFLICT (run_id) DO NOTHING;

-- name: insert_attempt
-- Note a claim of a run.
INSERT INTO attempts (run_number, generation, holder, claimed_at)
VALUES (:run_number, :generation, :holder, :claimed_at);

-- name: read_run
-- One run as it stands.
SELECT run_id, function, version, state, input_sha256, holder, generation, cancel_requested,
       problem, created_at, started_at, finished_at, erased_at, erased_by, erased_why, erasing,
       wake_at, deadline_at, parent, queue, queue_key, priority, output_piece, output_packing,
       output
FROM runs WHERE run_id = :run_id;

-- name: read_settled
-- Those of the runs in :run_ids that no worker will go on with by itself.
SELECT run_id, function, version, state, input_sha256, holder, generation, cancel_requested,
       problem, created_at, started_at, finished_at, erased_at, erased_by, erased_why, erasing,
       wake_at, deadline_at, parent, queue, queue_key, priority, output_piece, output_packing,
       output
FROM runs WHERE run_id IN (SELECT value FROM json_each(:run_ids))
AND state IN ('needs_attention', 'completed', 'failed', 'cancelled');

-- name: read_run_input
-- The exact input of a run, unless it was erased.
SELECT input_piece, input_packing, input, erased_by, erased_why FROM runs WHERE run_id = :run_id;

-- name: list_runs
-- The newest runs, newest first; :state null means any.
SELECT run_id, function, version, state, input_sha256, holder, generation, cancel_requested,
       problem, created_at, started_at, finished_at, erased_at, erased_by, erased_why, erasing,
       wake_at, deadline_at, parent, queue, queue_key, priority, output_piece, output_packing,
       output
FROM runs WHERE :state IS NULL OR state = :state
ORDER BY run_number DESC LIMIT :limit;

-- name: count_runs
-- How many runs are in each state that has any.
SELECT state, count(*) FROM runs GROUP BY state;

-- name: any_waiting
-- Whether any run of no queue waits for a worker that serves :served, and whether any waits in one.
SELECT EXISTS (SELECT 1 FROM runs WHERE state = 'pending' AND queue IS NULL
               AND function || '@' || version IN (SELECT value FROM json_each(:served))
               AND (:only IS NULL OR run_id IN (SELECT value FROM json_each(:only)))),
       EXISTS (SELECT 1 FROM runs WHERE state = 'pending' AND queue IS NOT NULL);

-- name: claim_runs
-- Take the oldest runs that wait in no queue and that this worker can serve; :only null means any.
UPDATE runs SET state = 'running', holder = :holder, generation = generation + 1,
                started_at = COALESCE(started_at, :now)
WHERE run_number IN (
  SELECT run_number FROM runs WHERE state = 'pending' AND queue IS NULL
  AND function || '@' || version IN (SELECT value FROM json_each(:served))
  AND (:only IS NULL OR run_id IN (SELECT value FROM json_each(:only)))
  AND EXISTS (SELECT 1 FROM workers WHERE holder = :holder AND gone = 0)
  ORDER BY run_number LIMIT :limit)
RETURNING run_number, run_id, generation, function, version, started_at, deadline_at, parent,
          input_sha256, input_piece, input_packing, input;

-- name: open_queues
-- The queues in which runs wait that may be let through, or :asked alone, with their limits, how many
-- runs of each are executed, and how many began within its time. An instant that is further off is
-- of a clock that was set since.
SELECT name, concurrency, key_concurrency, rate_runs,
       (SELECT count(*) FROM runs
        WHERE state IN ('running', 'cancelling') AND queue = queues.name),
       CASE WHEN rate_runs IS NOT NULL
            THEN (SELECT count(*) FROM runs WHERE queue = queues.name
                  AND started_at > :now - rate_seconds AND started_at <= :now + rate_seconds)
            END
FROM queues WHERE NOT paused AND (:asked IS NULL OR name = :asked)
AND EXISTS (SELECT 1 FROM runs WHERE state = 'pending' AND queue = queues.name)
ORDER BY name;

-- name: next_queued
-- The first runs that wait in :queue, of those that would begin if :fresh, or of those that go on.
SELECT run_number, queue_key, priority, 0 FROM runs
WHERE state = 'pending' AND queue = :queue AND (started_at IS NULL) = :fresh
AND function || '@' || version IN (SELECT value FROM json_each(:served))
AND (:only IS NULL OR run_id IN (SELECT value FROM json_each(:only)))
ORDER BY priority DESC, run_number LIMIT :limit;

-- name: next_keyed
-- The same for a queue that bounds its keys, without what these have no place for. The keys are
-- looked up one after the other, so that those with much that waits cost no more than the others.
WITH RECURSIVE keys (queue_key) AS (
  SELECT min(queue_key) FROM runs WHERE state = 'pending' AND queue = :queue
  UNION ALL
  SELECT (SELECT min(queue_key) FROM runs
          WHERE state = 'pending' AND queue = :queue AND queue_key > keys.queue_key)
  FROM keys WHERE keys.queue_key IS NOT NULL
), open_keys (queue_key, held) AS MATERIALIZED (
  SELECT queue_key, (SELECT count(*) FROM runs WHERE state IN ('running', 'cancelling')
                     AND queue = :queue AND queue_key = keys.queue_key) AS held
  FROM keys WHERE held < :key_concurrency
), first_of_each AS (
  SELECT runs.run_number, runs.queue_key, runs.priority, held,
         row_number() OVER (PARTITION BY runs.queue_key
                            ORDER BY runs.priority DESC, runs.run_number) AS place
  FROM open_keys CROSS JOIN runs
  WHERE open_keys.queue_key IS NOT NULL AND runs.run_number IN (
    SELECT run_number FROM runs AS waiting
    WHERE state = 'pending' AND queue = :queue AND waiting.queue_key = open_keys.queue_key
    AND (started_at IS NULL) = :fresh
    AND function || '@' || version IN (SELECT value FROM json_each(:served))
    AND (:only IS NULL OR run_id IN (SELECT value FROM json_each(:only)))
    ORDER BY priority DESC, run_number LIMIT :key_concurrency)
)
SELECT run_number, queue_key, priority, held FROM (
  SELECT run_number, queue_key, priority, held FROM first_of_each
  WHERE place <= :key_concurrency - held
  UNION ALL
  SELECT * FROM (
    SELECT run_number, queue_key, priority, 0 FROM runs
    WHERE state = 'pending' AND queue = :queue AND queue_key IS NULL
    AND (started_at IS NULL) = :fresh
    AND function || '@' || version IN (SELECT value FROM json_each(:served))
    AND (:only IS NULL OR run_id IN (SELECT value FROM json_each(:only)))
    ORDER BY priority DESC, run_number LIMIT :limit))
ORDER BY priority DESC, run_number LIMIT :limit;

-- name: claim_queued
-- Take those waiting runs for which their queues have places.
UPDATE runs SET state = 'running', holder = :holder, generation = generation + 1,
                started_at = COALESCE(started_at, :now)
WHERE state = 'pending' AND run_number IN (SELECT value FROM json_each(:numbers))
RETURNING run_number, run_id, generation, function, version, started_at, deadline_at, parent,
          input_sha256, input_piece, input_packing, input;

-- name: unserved
-- Waiting runs that no function in :served can continue, oldest first.
SELECT run_id, function, version, state, input_sha256, holder, generation, cancel_requested,
       problem, created_at, started_at, finished_at, erased_at, erased_by, erased_why, erasing,
       wake_at, deadline_at, parent, queue, queue_key, priority, output_piece, output_packing,
       output
FROM runs WHERE run_number IN (
  SELECT run_number FROM runs WHERE state = 'pending' AND queue IS NULL
  UNION ALL
  SELECT run_number FROM runs WHERE state = 'pending' AND queue IS NOT NULL)
AND function || '@' || version NOT IN (SELECT value FROM json_each(:served))
ORDER BY run_number LIMIT 100;

-- name: waiting_runs
-- The runs that wait for a worker behind the number :after, and the sessions that they answer in.
SELECT runs.run_id, function, version, session, run_number, generation
FROM runs LEFT JOIN turns ON turns.run_id = runs.run_id
WHERE run_number IN (
  SELECT run_number FROM runs WHERE state = 'pending' AND queue IS NULL
  UNION ALL
  SELECT run_number FROM runs WHERE state = 'pending' AND queue IS NOT NULL)
AND run_number > :after
ORDER BY run_number LIMIT :limit;

-- name: live_runs
-- Those of the runs :run_ids that have not ended.
SELECT run_id FROM runs WHERE run_id IN (SELECT value FROM json_each(:run_ids))
AND state NOT IN ('completed', 'failed', 'cancelled');

-- name: end_run
-- Write how a run ended and give up its ownership; cancelled, not parked, if that was asked for.
-- A run that would wait for a word on the effect :doubted waits for a worker if that has come.
UPDATE runs SET state = CASE WHEN :state = 'needs_attention' AND cancel_requested THEN 'cancelled'
                             WHEN known THEN 'pending'
                             ELSE :state END,
                output = :output, output_piece = :output_piece, output_packing = :output_packing,
                problem = CASE WHEN NOT known THEN :problem END,
                problem_code = CASE WHEN NOT known THEN :problem_code END, holder = NULL,
                finished_at = CASE WHEN NOT known OR cancel_requested THEN :now END
FROM (SELECT EXISTS (SELECT 1 FROM receipts WHERE operation_key = :doubted
                     AND state IN ('completed', 'failed')) AS known)
WHERE run_id = :run_id AND holder = :holder AND generation = :generation
RETURNING run_number, state;

-- name: release_run
-- Give a run back for any worker; a run whose cancellation was asked for is cancelled.
UPDATE runs SET holder = NULL,
                state = CASE WHEN cancel_requested THEN 'cancelled' ELSE 'pending' END,
                finished_at = CASE WHEN cancel_requested THEN :now END
WHERE run_id = :run_id AND holder = :holder AND generation = :generation
RETURNING run_number, state;

-- name: park_run
-- Put away a run that only waits, unless what it waits for has come or its end was asked for.
UPDATE runs SET holder = NULL,
                state = CASE WHEN cancel_requested THEN 'cancelled'
                             WHEN heard THEN 'pending'
                             ELSE :state END,
                wake_at = CASE WHEN NOT cancel_requested AND NOT heard
                               THEN min(COALESCE(:until, deadline_at), COALESCE(deadline_at, :until))
                               END,
                finished_at = CASE WHEN cancel_requested THEN :now END
FROM (SELECT EXISTS (SELECT 1 FROM messages
                     WHERE run_number = (SELECT run_number FROM runs WHERE run_id = :run_id)
                     AND name IN (SELECT value FROM json_each(:awaits))
                     AND taken_at IS NULL) AS heard)
WHERE run_id = :run_id AND holder = :holder AND generation = :generation
RETURNING run_number, state;

-- name: list_children
-- The runs that a run started, oldest first.
SELECT run_id, function, version, state, input_sha256, holder, generation, cancel_requested,
       problem, created_at, started_at, finished_at, erased_at, erased_by, erased_why, erasing,
       wake_at, deadline_at, parent, queue, queue_key, priority, output_piece, output_packing,
       output
FROM runs WHERE parent = :run_id ORDER BY run_number LIMIT :limit;

-- name: any_due
-- Whether any run waits whose time is over, and whether the rate of a queue lets one begin.
SELECT EXISTS (SELECT 1 FROM runs WHERE state IN ('sleeping', 'suspended') AND wake_at IS NOT NULL
               AND wake_at <= :now),
       EXISTS (SELECT 1 FROM queues WHERE rate_runs IS NOT NULL AND NOT paused
               AND EXISTS (SELECT 1 FROM runs WHERE state = 'pending' AND queue = queues.name
                           AND (started_at IS NULL) = 1)
               AND rate_runs > (
                 SELECT count(*) FROM runs WHERE queue = queues.name
                 AND started_at > :now - rate_seconds AND started_at <= :now + rate_seconds));

-- name: wake_runs
-- Let runs whose time is over wait for a worker, those that are late first.
UPDATE runs SET state = 'pending', wake_at = NULL
WHERE run_number IN (
  SELECT run_number FROM runs WHERE state IN ('sleeping', 'suspended') AND wake_at IS NOT NULL
  AND wake_at <= :now ORDER BY wake_at LIMIT :limit);

-- name: end_attempt
-- Note how a claim of a run ended.
UPDATE attempts SET ended_at = :now, ending = :ending, executed = :executed, replayed = :replayed
WHERE run_number = :run_number AND generation = :generation;

-- name: cancel_run
-- Cancel a run and those below it: at once where nobody executes them, or by a flag.
WITH RECURSIVE below (run_id) AS (
  SELECT run_id FROM runs
  WHERE run_id = :run_id AND state NOT IN ('completed', 'failed', 'cancelled')
  UNION
  SELECT runs.run_id FROM runs JOIN below ON runs.parent = below.run_id
)
UPDATE runs SET cancel_requested = 1,
                state = CASE WHEN state IN ('running', 'cancelling') THEN 'cancelling'
                             ELSE 'cancelled' END,
                finished_at = CASE WHEN state IN ('running', 'cancelling') THEN finished_at
                                   ELSE :now END,
                wake_at = NULL
WHERE run_id IN (SELECT run_id FROM below) AND state NOT IN ('completed', 'failed', 'cancelled');

-- name: resume_run
-- Make a run that failed or needs attention wait for a worker again, unless it was erased; one that
-- was too late has no deadline any more.
UPDATE runs SET state = 'pending', problem = NULL, finished_at = NULL, cancel_requested = 0,
                deadline_at = CASE WHEN problem_code IS NOT 'DeadlineExceeded' THEN deadline_at END
WHERE run_id = :run_id AND state IN ('needs_attention', 'failed') AND erased_at IS NULL;

-- name: insert_worker
-- Make a worker known, with its lease.
INSERT INTO workers (holder, name, host, pid, lease_seconds, lease_until, started_at)
VALUES (:holder, :name, :host, :pid, :lease_seconds, :lease_until, :now);

-- name: worker_stands
-- Whether nobody has found a worker gone; only such a one may own runs.
SELECT EXISTS (SELECT 1 FROM workers WHERE holder = :holder AND gone = 0);

-- name: renew_worker
-- Extend a worker's lease over all of its runs, unless the lease was taken from it.
UPDATE workers SET lease_until = :lease_until, lease_seconds = :lease_seconds
WHERE holder = :holder AND gone = 0;

-- name: held_runs
-- The runs that a worker owns.
SELECT run_id, generation, cancel_requested FROM runs WHERE holder = :holder;

-- name: read_cancels
-- The runs of a worker whose end was asked for.
SELECT run_id FROM runs WHERE holder = :holder AND cancel_requested = 1;

-- name: living_workers
-- The other workers that nobody has found gone.
SELECT holder, lease_seconds, lease_until FROM workers WHERE gone = 0 AND holder <> :holder;

-- name: end_worker
-- Mark a worker gone, 2 if its process has ended; one that lives only if its lease has ended.
UPDATE workers SET gone = CASE WHEN :dead AND :ending = 'lost' THEN 2 ELSE 1 END
WHERE holder = :holder AND gone = 0
AND (:dead OR NOT :monotonic BETWEEN lease_until - lease_seconds - 1 AND lease_until);

-- name: end_attempts_of
-- Note that the claims of a gone worker ended.
UPDATE attempts SET ended_at = :now, ending = :ending
WHERE holder = :holder AND ended_at IS NULL
AND run_number IN (SELECT run_number FROM runs WHERE holder = :holder);

-- name: release_runs_of
-- Give back every run of a gone worker.
UPDATE runs SET holder = NULL,
                state = CASE WHEN cancel_requested THEN 'cancelled' ELSE 'pending' END,
                finished_at = CASE WHEN cancel_requested THEN :now END
WHERE holder = :holder;

-- name: list_workers
-- Every worker that is not gone, with how many runs it holds.
SELECT holder, name, pid, host, lease_seconds, lease_until, started_at,
       (SELECT count(*) FROM runs WHERE runs.holder = workers.holder)
FROM workers WHERE gone = 0 ORDER BY worker_number;

-- name: list_attempts
-- The claims of a run, oldest first; the :newest ones, unless that is null.
SELECT attempts.generation, attempts.holder, COALESCE(workers.name, ''),
       COALESCE(workers.pid, 0), attempts.claimed_at, attempts.ended_at, attempts.ending,
       attempts.executed, attempts.replayed
FROM attempts JOIN runs USING (run_number) LEFT JOIN workers ON workers.holder = attempts.holder
WHERE runs.run_id = :run_id
AND (:newest IS NULL OR attempts.generation > runs.generation - :newest)
ORDER BY attempts.generation;

-- name: append_record
-- Write a record under the run's fence.
INSERT INTO records (run_number, step_id, sequence, kind, handler_id, input_sha256, input_bytes,
                     status, attempt, generation, nested, started_at, finished_at, input_piece,
                     input_packing, input_tail, payload_piece, payload_packing, payload_bytes,
                     payload)
SELECT run_number, :step_id, :sequence, :kind, :handler_id, :input_sha256, :input_bytes,
       :status, :attempt, :generation, :nested, :started_at, :finished_at, :input_piece,
       :input_packing, :input_tail, :payload_piece, :payload_packing, :payload_bytes, :payload
FROM runs WHERE run_id = :run_id AND holder = :holder AND generation = :generation;

-- name: fence_holds
-- Whether a run still belongs to who says so.
SELECT EXISTS (SELECT 1 FROM runs
               WHERE run_id = :run_id AND holder = :holder AND generation = :generation);

-- name: begin_timer
-- Note that a delay has begun, under the run's fence.
INSERT INTO timers (run_number, step_id, sequence, kind, handler_id, input_sha256, input, wake_at,
                    awaits)
SELECT run_number, :step_id, :sequence, :kind, :handler_id, :input_sha256, :input, :wake_at, :awaits
FROM runs WHERE run_id = :run_id AND holder = :holder AND generation = :generation;

-- name: end_timer
-- Forget a delay whose record was just written.
DELETE FROM timers
WHERE run_number = (SELECT run_number FROM runs WHERE run_id = :run_id)
AND step_id = :step_id AND sequence = :sequence;

-- name: read_records
-- All that a run recorded, in no order; a payload over :largest bytes comes as null.
SELECT step_id, sequence, kind, handler_id, input_sha256, status, attempt, finished_at, nested,
       payload_packing, CASE WHEN payload_bytes <= :largest THEN payload END
FROM records WHERE run_number = (SELECT run_number FROM runs WHERE run_id = :run_id);

-- name: read_timers
-- The delays that a run has under way.
SELECT step_id, sequence, kind, handler_id, input_sha256, input, wake_at, awaits
FROM timers WHERE run_number = (SELECT run_number FROM runs WHERE run_id = :run_id);

-- name: find_recipient
-- The run that a message is to reach, where it stands, and whether it was erased.
SELECT run_number, state, erased_by, erased_why FROM runs WHERE run_id = :run_id;

-- name: find_message
-- The message of a run that stands under an id.
SELECT message_number, message_id, name, edition, payload, sent_by, sent_at, taken_step,
       taken_sequence, taken_at
FROM messages
WHERE run_number = (SELECT run_number FROM runs WHERE run_id = :run_id)
AND message_id = :message_id;

-- name: insert_message
-- Put a message into the inbox of a run; one that is suspended until it comes is woken.
INSERT INTO messages (run_number, message_id, name, edition, payload, sent_by, sent_at)
VALUES (:run_number, :message_id, :name, 1, :payload, :sent_by, :sent_at);

-- name: edit_message
-- Replace what a message says that nobody has taken.
UPDATE messages SET edition = :edition, payload = :payload, sent_by = :sent_by, sent_at = :sent_at
WHERE message_number = :message_number AND taken_at IS NULL;

-- name: withdraw_message
-- Take back a message that nobody has taken.
DELETE FROM messages
WHERE run_number = (SELECT run_number FROM runs WHERE run_id = :run_id)
AND message_id = :message_id AND taken_at IS NULL;

-- name: next_message
-- The oldest message of a name that no operation of the run has taken.
SELECT message_number, message_id, name, edition, payload, sent_by, sent_at, taken_step,
       taken_sequence, taken_at
FROM messages
WHERE run_number = (SELECT run_number FROM runs WHERE run_id = :run_id)
AND name = :awaits AND taken_at IS NULL ORDER BY message_number LIMIT 1;

-- name: list_messages
-- The messages of a run, in the order in which they came.
SELECT message_number, message_id, name, edition, payload, sent_by, sent_at, taken_step,
       taken_sequence, taken_at
FROM messages
WHERE run_number = (SELECT run_number FROM runs WHERE run_id = :run_id) ORDER BY message_number;

-- name: has_come
-- Whether a message of a name waits for a run, under the run's fence.
SELECT EXISTS (SELECT 1 FROM messages WHERE messages.run_number = runs.run_number
               AND name = :awaits AND taken_at IS NULL)
FROM runs WHERE run_id = :run_id AND holder = :holder AND generation = :generation;

-- name: take_message
-- Note which operation takes a message, in the edition that it has read, under the run's fence.
UPDATE messages SET taken_step = :step_id, taken_sequence = :sequence, taken_at = :finished_at
WHERE message_id = :message_id AND edition = :edition AND sent_at = :sent_at AND taken_at IS NULL
AND run_number = (SELECT run_number FROM runs WHERE run_id = :run_id AND holder = :holder
                  AND generation = :generation);

-- name: insert_approval
-- Write what a run asks for, under its fence.
INSERT INTO approvals (run_number, item_id, step_id, sequence, kind, name, asked_at, arguments)
SELECT run_number, :item_id, :step_id, :sequence, :ask_kind, :name, :asked_at, :arguments
FROM runs WHERE run_id = :run_id AND holder = :holder AND generation = :generation;

-- name: read_approval
-- What a run asked for under an id, and whether it still waits for the answer.
SELECT runs.run_id, item_id, approvals.kind, approvals.name, arguments, asked_at, timers.wake_at,
       timers.run_number IS NOT NULL AND runs.state NOT IN ('completed', 'failed', 'cancelled'),
       answer, answered_by, answered_at, approvals.step_id, approvals.sequence
FROM approvals JOIN runs USING (run_number)
LEFT JOIN timers ON timers.run_number = approvals.run_number
  AND timers.step_id = approvals.step_id AND timers.sequence = approvals.sequence
WHERE runs.run_id = :run_id AND item_id = :item_id;

-- name: open_approvals
-- What runs wait for an answer to, oldest first; :run_id null means any run.
SELECT runs.run_id, item_id, approvals.kind, approvals.name, arguments, asked_at, timers.wake_at,
       timers.run_number IS NOT NULL AND runs.state NOT IN ('completed', 'failed', 'cancelled'),
       answer, answered_by, answered_at, approvals.step_id, approvals.sequence
FROM approvals JOIN runs USING (run_number)
LEFT JOIN timers ON timers.run_number = approvals.run_number
  AND timers.step_id = approvals.step_id AND timers.sequence = approvals.sequence
WHERE decision IS NULL AND timers.run_number IS NOT NULL
AND runs.state NOT IN ('completed', 'failed', 'cancelled')
AND (:run_id IS NULL OR runs.run_id = :run_id)
ORDER BY approval_number LIMIT :limit;

-- name: list_approvals
-- What runs asked for, oldest first; :run_id null means any run.
SELECT runs.run_id, item_id, approvals.kind, approvals.name, arguments, asked_at, timers.wake_at,
       timers.run_number IS NOT NULL AND runs.state NOT IN ('completed', 'failed', 'cancelled'),
       answer, answered_by, answered_at, approvals.step_id, approvals.sequence
FROM approvals JOIN runs USING (run_number)
LEFT JOIN timers ON timers.run_number = approvals.run_number
  AND timers.step_id = approvals.step_id AND timers.sequence = approvals.sequence
WHERE :run_id IS NULL OR runs.run_id = :run_id
ORDER BY approval_number LIMIT :limit;

-- name: answer_approval
-- Write the answer to what a run asked for, unless there is one.
UPDATE approvals SET decision = :decision, answer = :answer, answered_by = :answered_by,
                     answered_at = :answered_at
WHERE run_number = (SELECT run_number FROM runs WHERE run_id = :run_id)
AND item_id = :item_id AND decision IS NULL;

-- name: tell_answered
-- Tell a run that something that it asked for was answered.
INSERT INTO messages (run_number, message_id, name, edition, sent_by, sent_at)
SELECT run_number, :awaits, :awaits, 1, :answered_by, :answered_at
FROM runs WHERE run_id = :run_id
ON CONFLICT (run_number, message_id) DO NOTHING;

-- name: find_checkpointed
-- The run that a checkpoint is to be of, and whether it was erased.
SELECT run_number, erased_by, erased_why FROM runs WHERE run_id = :run_id;

-- name: find_checkpoint
-- One checkpoint of a run, to be compared with the one that is to be written.
SELECT checkpoint_id, kind, revision, cursor, state FROM checkpoints
WHERE run_number = :run_number AND checkpoint_id = :checkpoint_id;

-- name: insert_checkpoint
-- Write a new checkpoint of a run.
INSERT INTO checkpoints (run_number, checkpoint_id, kind, revision, cursor, state)
SELECT run_number, :checkpoint_id, :kind, :revision, :cursor, :state
FROM runs WHERE run_id = :run_id;

-- name: advance_checkpoint
-- Write a checkpoint over an earlier one, which has a lower revision.
UPDATE checkpoints SET revision = :revision, cursor = :cursor, state = :state
WHERE run_number = :run_number AND checkpoint_id = :checkpoint_id AND kind = :kind
AND revision < :revision AND cursor <= :cursor;

-- name: remove_checkpoint
-- Delete a checkpoint.
DELETE FROM checkpoints
WHERE run_number = (SELECT run_number FROM runs WHERE run_id = :run_id)
AND checkpoint_id = :checkpoint_id;

-- name: read_checkpoint
-- One checkpoint of a run that was not erased.
SELECT checkpoint_id, kind, revision, cursor, state FROM checkpoints
WHERE run_number = (SELECT run_number FROM runs WHERE run_id = :run_id AND erased_at IS NULL)
AND checkpoint_id = :checkpoint_id;

-- name: list_checkpoints
-- The checkpoints of a run that was not erased, in the order in which they were created.
SELECT checkpoint_id, kind, revision, cursor, state FROM checkpoints
WHERE run_number = (SELECT run_number FROM runs WHERE run_id = :run_id AND erased_at IS NULL)
ORDER BY checkpoint_number;

-- name: read_begun
-- The effects of a run that were begun, and may have been applied, without a record.
SELECT idempotency_key, ordinal, operation_key FROM receipts
WHERE run_id = :run_id AND (state IN ('in_flight', 'ambiguous')
                            OR (state = 'completed' AND payload IS NOT NULL));

-- name: read_payload
-- The payload of one record.
SELECT payload_piece, payload_packing, payload FROM records
WHERE run_number = (SELECT run_number FROM runs WHERE run_id = :run_id)
AND step_id = :step_id AND sequence = :sequence;

-- name: read_input
-- Where the input of one record stands.
SELECT input_piece, input_packing, input_tail, step_id, sequence, kind, handler_id, input_sha256,
       status, attempt, finished_at, nested
FROM records
WHERE run_number = (SELECT run_number FROM runs WHERE run_id = :run_id)
AND step_id = :step_id AND sequence = :sequence;

-- name: list_operations
-- What a run recorded, in that order, with sizes.
SELECT step_id, sequence, kind, handler_id, input_sha256, status, input_bytes, payload_bytes,
       attempt, generation, started_at, finished_at, nested
FROM records WHERE run_number = (SELECT run_number FROM runs WHERE run_id = :run_id)
ORDER BY record_number;

-- name: find_piece
-- The piece that a beginning of an input ends with.
SELECT piece_number FROM pieces WHERE digest = :digest;

-- name: insert_piece
-- Add a piece below its parent.
INSERT INTO pieces (digest, parent, packing, data) VALUES (:digest, :parent, :packing, :data)
RETURNING piece_number;

-- name: read_chains
-- The pieces of several documents, by their last ones, each once and in any order.
WITH RECURSIVE chain (piece_number) AS (
  SELECT value FROM json_each(:pieces)
  UNION
  SELECT pieces.parent FROM pieces JOIN chain ON pieces.piece_number = chain.piece_number
  WHERE pieces.parent IS NOT NULL
)
SELECT pieces.piece_number, parent, digest, packing, data
FROM pieces JOIN chain ON pieces.piece_number = chain.piece_number;

-- name: read_pieces
-- The pieces of an input, from the last one up to the root.
WITH RECURSIVE chain (digest, parent, packing, data, depth) AS (
  SELECT digest, parent, packing, data, 0 FROM pieces WHERE piece_number = :piece
  UNION ALL
  SELECT pieces.digest, pieces.parent, pieces.packing, pieces.data, chain.depth + 1
  FROM pieces JOIN chain ON pieces.piece_number = chain.parent
  -- No document has as many: a damaged one must not be followed for ever.
  WHERE chain.depth < 100000
)
SELECT digest, packing, data FROM chain ORDER BY depth DESC;

-- name: read_receipt
-- One receipt as it stands.
SELECT operation_key, run_id, idempotency_key, target, ordinal, support, arguments_sha256, state,
       attempt, holder, generation, version, payload, problem, first_claimed_at, claimed_at,
       settled_at, settle_seconds, resend_after, lookups, lookup_at, lookup_holder, exhausted,
       earlier_unknown, residual_duplicate_risk, decided_by, decided_why, handler_id
FROM receipts WHERE operation_key = :operation_key;

-- name: owns
-- Whether an owner still is one: its worker is not gone and, in a run, the run is still its own.
SELECT EXISTS (SELECT 1 FROM workers WHERE holder = :holder AND gone = 0)
AND (:generation = 0 OR EXISTS (SELECT 1 FROM runs WHERE run_id = :run_id AND holder = :holder
                                AND generation = :generation));

-- name: insert_receipt
-- Begin the first attempt of an effect, unless it was begun before, its receipt was erased, or its
-- owner no longer is one.
INSERT INTO receipts (operation_key, run_id, idempotency_key, target, ordinal, support,
                      arguments_sha256, state, attempt, holder, generation, version,
                      first_claimed_at, claimed_at, settle_seconds, resend_after, handler_id)
SELECT :operation_key, :run_id, :idempotency_key, :target, :ordinal, :support,
       :arguments_sha256, 'in_flight', 1, :holder, :generation, 1, :now, :now, :settle_seconds,
       :resend_after, :handler_id
WHERE NOT EXISTS (SELECT 1 FROM tombstones WHERE operation_key = :operation_key)
AND EXISTS (SELECT 1 FROM workers WHERE holder = :holder AND gone = 0)
AND (:generation = 0 OR EXISTS (SELECT 1 FROM runs WHERE run_id = :run_id AND holder = :holder
                                AND generation = :generation))
ON CONFLICT (operation_key) DO NOTHING;

-- name: begin_attempt
-- Begin another attempt, if the receipt is still the one that was seen.
UPDATE receipts SET state = 'in_flight', attempt = attempt + 1, holder = :holder,
                    generation = :generation, version = version + 1, support = :support,
                    claimed_at = :now, settled_at = NULL, problem = NULL,
                    settle_seconds = :settle_seconds, resend_after = :resend_after, lookups = 0,
                    lookup_at = NULL, lookup_holder = NULL, exhausted = 0,
                    earlier_unknown = :unknown OR :risk OR residual_duplicate_risk,
                    residual_duplicate_risk = residual_duplicate_risk OR :risk
WHERE operation_key = :operation_key AND state = :state AND attempt = :attempt
AND generation = :seen_generation AND version = :version;

-- name: settle_receipt
-- Move the receipt of one attempt; :sources are the states that the move may start from, as a text.
UPDATE receipts SET state = :state, version = version + 1, payload = :payload,
                    problem = :problem, settled_at = :now, lookup_holder = NULL,
                    lookup_at = CASE WHEN :state = 'ambiguous' THEN :now END,
                    resend_after = CASE WHEN :stopped
                                        THEN min(COALESCE(resend_after, :now + settle_seconds),
                                                 :now + settle_seconds)
                                        ELSE resend_after END,
                    residual_duplicate_risk = residual_duplicate_risk OR :risk,
                    decided_by = COALESCE(:by, decided_by), decided_why = COALESCE(:why, decided_why)
WHERE operation_key = :operation_key AND attempt = :attempt AND generation = :generation
AND instr(:sources, '|' || state || '|') AND (:version IS NULL OR version = :version)
RETURNING operation_key, run_id, idempotency_key, target, ordinal, support, arguments_sha256, state,
          attempt, holder, generation, version, payload, problem, first_claimed_at, claimed_at,
          settled_at, settle_seconds, resend_after, lookups, lookup_at, lookup_holder, exhausted,
          earlier_unknown, residual_duplicate_risk, decided_by, decided_why, handler_id;

-- name: insert_decision
-- Keep what a person decided about one attempt, on which version of its receipt.
INSERT INTO decisions (operation_key, version, attempt, decision, decided_by, decided_why,
                       decided_at)
VALUES (:operation_key, :version, :attempt, :decision, :by, :why, :now);

-- name: free_run
-- Make a run wait for a worker again that waits for a person's word on an effect.
UPDATE runs SET state = 'pending', problem = NULL, finished_at = NULL, cancel_requested = 0
WHERE run_id = :run_id AND state = 'needs_attention'
AND problem_code = 'EffectAmbiguous';

-- name: list_decisions
-- What people decided about one effect, oldest first.
SELECT operation_key, attempt, version, decision, decided_by, decided_why, decided_at
FROM decisions WHERE operation_key = :operation_key ORDER BY version;

-- name: mark_duplicate
-- Note that an attempt was applied after a later one had begun at a target that knows no keys.
UPDATE receipts SET residual_duplicate_risk = 1, version = version + 1
WHERE operation_key = :operation_key AND attempt > :attempt AND residual_duplicate_risk = 0
AND support <> 'idempotent';

-- name: any_vanished
-- Whether anything is in flight although its owner is gone; :operation_key null means any.
SELECT EXISTS (SELECT 1 FROM receipts
               WHERE state IN ('in_flight', 'ambiguous') AND state = 'in_flight'
               AND (:operation_key IS NULL OR operation_key = :operation_key)
               AND NOT (EXISTS (SELECT 1 FROM workers
                                WHERE workers.holder = receipts.holder AND gone = 0)
                        AND (generation = 0
                             OR EXISTS (SELECT 1 FROM runs WHERE runs.run_id = receipts.run_id
                                        AND runs.holder = receipts.holder
                                        AND runs.generation = receipts.generation))));

-- name: doubt_vanished
-- Doubt what is in flight although its owner is gone; :operation_key null means any.
-- Nothing more comes from a process that has ended.
UPDATE receipts SET state = 'ambiguous', version = version + 1, problem = 'its worker is gone',
                    settled_at = :now, lookup_at = :now, lookup_holder = NULL,
                    resend_after = CASE WHEN EXISTS (SELECT 1 FROM workers
                                                     WHERE holder = receipts.holder AND gone = 2)
                                        THEN min(COALESCE(resend_after, :now + settle_seconds),
                                                 :now + settle_seconds)
                                        ELSE resend_after END
WHERE state IN ('in_flight', 'ambiguous') AND state = 'in_flight'
AND (:operation_key IS NULL OR operation_key = :operation_key)
AND NOT (EXISTS (SELECT 1 FROM workers WHERE workers.holder = receipts.holder AND gone = 0)
         AND (generation = 0
              OR EXISTS (SELECT 1 FROM runs WHERE runs.run_id = receipts.run_id
                         AND runs.holder = receipts.holder
                         AND runs.generation = receipts.generation)))
RETURNING operation_key;

-- name: claim_lookup
-- Take the right to ask about an ambiguous attempt until :until, unless it is too early or another
-- has it; the right of a worker that is gone is free.
UPDATE receipts SET lookup_holder = :holder, lookup_at = :until, version = version + 1
WHERE operation_key = :operation_key AND state = 'ambiguous' AND attempt = :attempt
AND generation = :generation AND exhausted = 0
AND (lookup_at <= :now
     OR (lookup_holder IS NOT NULL
         AND NOT EXISTS (SELECT 1 FROM workers
                         WHERE workers.holder = receipts.lookup_holder AND gone = 0)));

-- name: end_lookup
-- Give the right back after an answer that settled nothing.
UPDATE receipts SET lookup_holder = NULL, lookup_at = :ask_again_at, version = version + 1,
                    lookups = lookups + :unanswered,
                    exhausted = lookups + :unanswered >= :limit
WHERE operation_key = :operation_key AND state = 'ambiguous' AND attempt = :attempt
AND generation = :generation AND version = :version;

-- name: list_receipts
-- The newest receipts.
SELECT operation_key, run_id, idempotency_key, target, ordinal, support, arguments_sha256, state,
       attempt, holder, generation, version, payload, problem, first_claimed_at, claimed_at,
       settled_at, settle_seconds, resend_after, lookups, lookup_at, lookup_holder, exhausted,
       earlier_unknown, residual_duplicate_risk, decided_by, decided_why, handler_id
FROM receipts ORDER BY receipt_number DESC LIMIT :limit;

-- name: list_receipts_of
-- The newest receipts of one run.
SELECT operation_key, run_id, idempotency_key, target, ordinal, support, arguments_sha256, state,
       attempt, holder, generation, version, payload, problem, first_claimed_at, claimed_at,
       settled_at, settle_seconds, resend_after, lookups, lookup_at, lookup_holder, exhausted,
       earlier_unknown, residual_duplicate_risk, decided_by, decided_why, handler_id
FROM receipts WHERE run_id = :run_id ORDER BY receipt_number DESC LIMIT :limit;

-- name: list_ambiguous
-- The newest receipts of which nobody knows; :run_id null means any run.
SELECT operation_key, run_id, idempotency_key, target, ordinal, support, arguments_sha256, state,
       attempt, holder, generation, version, payload, problem, first_claimed_at, claimed_at,
       settled_at, settle_seconds, resend_after, lookups, lookup_at, lookup_holder, exhausted,
       earlier_unknown, residual_duplicate_risk, decided_by, decided_why, handler_id
FROM receipts WHERE state IN ('in_flight', 'ambiguous') AND state = 'ambiguous'
AND (:run_id IS NULL OR run_id = :run_id)
ORDER BY receipt_number DESC LIMIT :limit;

-- name: list_due
-- Ambiguous receipts whose targets can be asked now, by those handlers that know how.
SELECT operation_key, run_id, idempotency_key, target, ordinal, support, arguments_sha256, state,
       attempt, holder, generation, version, payload, problem, first_claimed_at, claimed_at,
       settled_at, settle_seconds, resend_after, lookups, lookup_at, lookup_holder, exhausted,
       earlier_unknown, residual_duplicate_risk, decided_by, decided_why, handler_id
FROM receipts WHERE state IN ('in_flight', 'ambiguous') AND state = 'ambiguous'
AND lookup_at <= :now AND exhausted = 0 AND support = 'outcome_queryable'
AND handler_id IN (SELECT value FROM json_each(:handler_ids))
ORDER BY lookup_at LIMIT :limit;

-- name: match_receipts
-- Receipts whose operation key begins with :prefix; no character of a key comes after '~'.
SELECT operation_key, run_id, idempotency_key, target, ordinal, support, arguments_sha256, state,
       attempt, holder, generation, version, payload, problem, first_claimed_at, claimed_at,
       settled_at, settle_seconds, resend_after, lookups, lookup_at, lookup_holder, exhausted,
       earlier_unknown, residual_duplicate_risk, decided_by, decided_why, handler_id
FROM receipts WHERE operation_key >= :prefix AND operation_key < :prefix || '~'
ORDER BY operation_key LIMIT :limit;

-- name: newest_receipt
-- The number of the newest receipt, or 0.
SELECT COALESCE(max(receipt_number), 0) FROM receipts;

-- name: list_changeable
-- Receipts that may still change, without their answers: the open ones, then the newest others. A
-- completed one does if an earlier attempt of it reports that it was applied too.
SELECT operation_key, run_id, idempotency_key, target, ordinal, support, arguments_sha256, state,
       attempt, holder, generation, version, NULL, problem, first_claimed_at, claimed_at,
       settled_at, settle_seconds, resend_after, lookups, lookup_at, lookup_holder, exhausted,
       earlier_unknown, residual_duplicate_risk, decided_by, decided_why, handler_id
FROM receipts WHERE state <> 'completed'
OR (attempt > 1 AND support <> 'idempotent' AND residual_duplicate_risk = 0)
ORDER BY state IN ('in_flight', 'ambiguous') DESC, receipt_number DESC LIMIT :limit;

-- name: changed_receipts
-- Receipts after :after, and those of which :known has another version, without their answers.
SELECT receipt_number, operation_key, run_id, idempotency_key, target, ordinal, support, arguments_sha256, state,
       attempt, holder, generation, version, NULL, problem, first_claimed_at, claimed_at,
       settled_at, settle_seconds, resend_after, lookups, lookup_at, lookup_holder, exhausted,
       earlier_unknown, residual_duplicate_risk, decided_by, decided_why, handler_id
FROM receipts WHERE receipt_number IN (
  SELECT receipt_number FROM receipts WHERE receipt_number > :after
  UNION
  SELECT receipt_number FROM json_each(:known) AS seen
  JOIN receipts ON operation_key = seen.key WHERE version <> seen.value)
ORDER BY receipt_number LIMIT :limit;

-- name: append_audit
-- Keep one audit record.
INSERT INTO audit (at, operation_key, operation_target_ref, operation_support, operation_state,
                   operation_first_execution, operation_replay_suppressed,
                   operation_reconciliation_required, operation_reconciliation_exhausted,
                   operation_residual_duplicate_risk)
VALUES (:at, :operation_key, :operation_target_ref, :operation_support, :operation_state,
        :operation_first_execution, :operation_replay_suppressed,
        :operation_reconciliation_required, :operation_reconciliation_exhausted,
        :operation_residual_duplicate_risk);

-- name: list_audit
-- The newest audit records of all effects.
SELECT at, operation_key, operation_target_ref, operation_support, operation_state,
       operation_first_execution, operation_replay_suppressed, operation_reconciliation_required,
       operation_reconciliation_exhausted, operation_residual_duplicate_risk
FROM audit ORDER BY audit_number DESC LIMIT :limit;

-- name: read_audit
-- The newest audit records of one effect.
SELECT at, operation_key, operation_target_ref, operation_support, operation_state,
       operation_first_execution, operation_replay_suppressed, operation_reconciliation_required,
       operation_reconciliation_exhausted, operation_residual_duplicate_risk
FROM audit WHERE operation_key = :operation_key ORDER BY audit_number DESC LIMIT :limit;

-- name: find_erasable
-- What erasing needs to know of a run.
SELECT run_number, state, input_piece, output_piece FROM runs WHERE run_id = :run_id;

-- name: open_keys_of
-- The keys of the receipts of a run of which something may still come.
SELECT operation_key FROM receipts INDEXED BY receipts_open
WHERE state IN ('in_flight', 'ambiguous') AND run_id = :run_id ORDER BY receipt_number;

-- name: mark_erased
-- Put the tombstone of a run, which takes what the run was given and what it came to with it.
UPDATE runs SET erased_at = :now, erased_by = :by, erased_why = :why, erasing = 1, input = x'',
                output = NULL, problem = NULL, queue_key = NULL
WHERE run_id = :run_id AND state IN ('completed', 'failed', 'cancelled') AND erased_at IS NULL;

-- name: note_erasing
-- Note whether anything of an erased run is left.
UPDATE runs SET erasing = :left WHERE run_number = :run_number AND erasing <> :left;

-- name: note_erased_whole
-- Note that nothing of an erased run is left, in blobs neither.
UPDATE runs SET erasing = 0 WHERE run_id = :run_id AND erasing = 1;

-- name: erase_timers
-- Forget the delays that a run had under way.
DELETE FROM timers WHERE run_number = :run_number;

-- name: checkpoints_to_erase
-- Some checkpoints of a run, with the bytes that go with each.
SELECT checkpoint_number, length(state) FROM checkpoints
WHERE run_number = :run_number LIMIT :limit;

-- name: erase_checkpoint
-- Delete one checkpoint of a run that is erased.
DELETE FROM checkpoints WHERE checkpoint_number = :checkpoint_number;

-- name: messages_to_erase
-- Some messages to a run, with the bytes that go with each.
SELECT message_number, COALESCE(length(payload), 0) FROM messages
WHERE run_number = :run_number LIMIT :limit;

-- name: erase_message
-- Delete one message to a run that is erased.
DELETE FROM messages WHERE message_number = :message_number;

-- name: approvals_to_erase
-- Some of what a run asked for, with the bytes that go with each.
SELECT approval_number, length(arguments) + COALESCE(length(answer), 0) FROM approvals
WHERE run_number = :run_number LIMIT :limit;

-- name: erase_approval
-- Delete one of the things that a run asked for that is erased.
DELETE FROM approvals WHERE approval_number = :approval_number;

-- name: records_to_erase
-- Some records of a run: where the input stands, and how many bytes go with the record.
SELECT record_number, input_piece, payload_piece, length(payload) + length(input_tail)
FROM records
WHERE run_number = :run_number ORDER BY step_id, sequence LIMIT :limit;

-- name: erase_record
-- Delete a record.
DELETE FROM records WHERE record_number = :record_number;

-- name: shorten_input
-- Note which piece of a record's input is the last that is left.
UPDATE records SET input_piece = :piece WHERE record_number = :record_number;

-- name: shorten_payload
-- Note which piece of a record's payload is the last that is left.
UPDATE records SET payload_piece = :piece WHERE record_number = :record_number;

-- name: shorten_run_input
-- Note which piece of a run's input is the last that is left.
UPDATE runs SET input_piece = :piece WHERE run_number = :run_number;

-- name: shorten_run_output
-- Note which piece of a run's output is the last that is left.
UPDATE runs SET output_piece = :piece WHERE run_number = :run_number;

-- name: erase_piece
-- Delete a piece that nothing needs; return what it hangs below and its bytes.
DELETE FROM pieces WHERE piece_number = :piece
AND NOT EXISTS (SELECT 1 FROM pieces AS child WHERE child.parent = :piece)
AND NOT EXISTS (SELECT 1 FROM records WHERE input_piece = :piece)
AND NOT EXISTS (SELECT 1 FROM records WHERE payload_piece = :piece)
AND NOT EXISTS (SELECT 1 FROM runs WHERE input_piece = :piece)
AND NOT EXISTS (SELECT 1 FROM runs WHERE output_piece = :piece)
RETURNING parent, length(data);

-- name: receipts_to_erase
-- Some receipts of a run that are settled, with the bytes that go with each.
SELECT receipt_number, COALESCE(length(payload), 0) FROM receipts
WHERE run_id = :run_id AND state IN ('completed', 'failed') LIMIT :limit;

-- name: bury_receipt
-- Put the tombstone of a receipt.
INSERT INTO tombstones (operation_key, state, erased_at, erased_by, erased_why, run_sha256)
SELECT operation_key, state, :now, :by, :why, :run_sha256
FROM receipts WHERE receipt_number = :receipt_number;

-- name: list_buried
-- The tombstones of the receipts of a run.
SELECT operation_key, state, erased_at, erased_by, erased_why
FROM tombstones WHERE run_sha256 = :run_sha256 ORDER BY operation_key;

-- name: import_buried
-- Put the tombstone of a receipt that was erased where its run comes from, unless there is one.
INSERT INTO tombstones (operation_key, state, erased_at, erased_by, erased_why, run_sha256)
VALUES (:operation_key, :state, :erased_at, :erased_by, :erased_why, :run_sha256)
ON CONFLICT (operation_key) DO UPDATE SET run_sha256 = excluded.run_sha256;

-- name: erase_receipt
-- Delete a receipt; what people decided about it goes by a trigger.
DELETE FROM receipts WHERE receipt_number = :receipt_number;

-- name: read_tombstone
-- What is left of an erased receipt.
SELECT state, erased_by, erased_why FROM tombstones
WHERE operation_key = :operation_key;

-- name: expired_runs
-- Some runs that were over before :before, the oldest first, unless something may still come of
-- one, or a person erased it.
SELECT run_number, run_id, input_piece, output_piece FROM runs
WHERE state IN ('completed', 'failed', 'cancelled') AND finished_at < :before
AND (erased_at IS NULL OR erased_by = 'retention')
AND NOT EXISTS (SELECT 1 FROM runs AS above WHERE above.run_id = runs.parent
                AND above.state NOT IN ('completed', 'failed', 'cancelled'))
AND NOT EXISTS (SELECT 1 FROM receipts WHERE receipts.run_id = runs.run_id
                AND receipts.state IN ('in_flight', 'ambiguous'))
ORDER BY run_number LIMIT :limit;

-- name: count_runs_expired
-- How many runs were over before :before, as `expired_runs`.
SELECT count(*) FROM runs
WHERE state IN ('completed', 'failed', 'cancelled') AND finished_at < :before
AND (erased_at IS NULL OR erased_by = 'retention')
AND NOT EXISTS (SELECT 1 FROM runs AS above WHERE above.run_id = runs.parent
                AND above.state NOT IN ('completed', 'failed', 'cancelled'))
AND NOT EXISTS (SELECT 1 FROM receipts WHERE receipts.run_id = runs.run_id
                AND receipts.state IN ('in_flight', 'ambiguous'));

-- name: forget_attempts
-- Delete the claims of a run.
DELETE FROM attempts WHERE run_number = :run_number;

-- name: forget_run
-- Delete a run of which nothing else is left.
DELETE FROM runs WHERE run_number = :run_number;

-- name: count_receipts_expired
-- How many receipts were settled before :before and belong to no run that goes on.
SELECT count(*) FROM receipts
WHERE state IN ('completed', 'failed') AND settled_at < :before
AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.run_id = receipts.run_id
                AND runs.state NOT IN ('completed', 'failed', 'cancelled'));

-- name: collect_receipts
-- Delete some receipts that were settled before :before and belong to no run that goes on.
DELETE FROM receipts WHERE receipt_number IN (
  SELECT receipt_number FROM receipts
  WHERE state IN ('completed', 'failed') AND settled_at < :before
  AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.run_id = receipts.run_id
                  AND runs.state NOT IN ('completed', 'failed', 'cancelled'))
  ORDER BY receipt_number LIMIT :limit);

-- name: count_tombstones_expired
-- How many receipts were erased before :before.
SELECT count(*) FROM tombstones WHERE erased_at < :before;

-- name: collect_tombstones
-- Delete some tombstones of receipts that were erased before :before.
DELETE FROM tombstones WHERE operation_key IN (
  SELECT operation_key FROM tombstones WHERE erased_at < :before LIMIT :limit);

-- name: count_audit_expired
-- How many audit records are from before :before.
SELECT count(*) FROM audit WHERE at < :before;

-- name: collect_audit
-- Delete some audit records from before :before.
DELETE FROM audit WHERE audit_number IN (
  SELECT audit_number FROM audit WHERE at < :before ORDER BY audit_number LIMIT :limit);

-- name: count_workers_expired
-- How many workers that are gone were started before :before.
SELECT count(*) FROM workers WHERE gone > 0 AND started_at < :before
AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.holder = workers.holder);

-- name: collect_workers
-- Delete some workers that are gone and were started before :before.
DELETE FROM workers WHERE worker_number IN (
  SELECT worker_number FROM workers WHERE gone > 0 AND started_at < :before
  AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.holder = workers.holder) LIMIT :limit);

-- name: list_keys
-- The keys that values are sealed with, and what proves each.
SELECT key_id, proof FROM keys ORDER BY key_id;

-- name: holds_any
-- Whether anything was ever written that users gave.
SELECT EXISTS (SELECT 1 FROM runs) OR EXISTS (SELECT 1 FROM receipts)
OR EXISTS (SELECT 1 FROM sessions);

-- name: note_key
-- Note a key before anything is sealed with it.
INSERT INTO keys (key_id, proof) VALUES (:key_id, :proof) ON CONFLICT (key_id) DO NOTHING;

-- name: count_stale
-- How many rows of each class hold a value that does not begin with :head, or :head_text.
SELECT
  (SELECT count(*) FROM runs
   WHERE substr(input_sha256, 1, length(:head)) <> :head
   OR (erased_at IS NULL AND substr(input, 1, length(:head)) <> :head)
   OR substr(output, 1, length(:head)) <> :head OR substr(problem, 1, length(:head)) <> :head),
  (SELECT count(*) FROM records
   WHERE substr(input_sha256, 1, length(:head)) <> :head
   OR substr(input_tail, 1, length(:head)) <> :head OR substr(payload, 1, length(:head)) <> :head),
  (SELECT count(*) FROM timers
   WHERE substr(input_sha256, 1, length(:head)) <> :head OR substr(input, 1, length(:head)) <> :head),
  (SELECT count(*) FROM receipts
   WHERE substr(arguments_sha256, 1, length(:head)) <> :head
   OR substr(payload, 1, length(:head)) <> :head
   OR (substr(problem, 1, length(:head_text)) <> :head_text AND problem <> 'its worker is gone')
   OR substr(decided_why, 1, length(:head_text)) <> :head_text),
  (SELECT count(*) FROM decisions WHERE substr(decided_why, 1, length(:head_text)) <> :head_text),
  (SELECT count(*) FROM pieces WHERE substr(data, 1, length(:head)) <> :head),
  (SELECT count(*) FROM checkpoints WHERE substr(state, 1, length(:head)) <> :head),
  (SELECT count(*) FROM messages WHERE substr(payload, 1, length(:head)) <> :head),
  (SELECT count(*) FROM approvals
   WHERE substr(arguments, 1, length(:head)) <> :head OR substr(answer, 1, length(:head)) <> :head),
  (SELECT count(*) FROM session_messages WHERE substr(document, 1, length(:head)) <> :head),
  (SELECT count(*) FROM session_appends WHERE substr(document, 1, length(:head)) <> :head);

-- name: stale_runs
-- Some runs after :after with a value that does not begin with :head.
SELECT run_number, run_id, function, version, input_sha256,
       input_packing, input, asked.digest, asked.packing, asked.data,
       output_packing, output, told.digest, told.packing, told.data, problem, erased_at
FROM runs LEFT JOIN pieces AS asked ON asked.piece_number = input_piece
LEFT JOIN pieces AS told ON told.piece_number = output_piece
WHERE run_number > :after
AND (substr(input_sha256, 1, length(:head)) <> :head
     OR (erased_at IS NULL AND substr(input, 1, length(:head)) <> :head)
     OR substr(output, 1, length(:head)) <> :head OR substr(problem, 1, length(:head)) <> :head)
ORDER BY run_number LIMIT :limit;

-- name: reseal_runs
-- Write the values of a run anew.
UPDATE runs SET input_sha256 = :input_sha256, input = :input, output = :output, problem = :problem
WHERE run_number = :number;

-- name: stale_records
-- Some records after :after with a value that does not begin with :head.
SELECT record_number, run_id, step_id, sequence, records.input_sha256, kind, handler_id, status,
       attempt, records.finished_at, nested,
       records.input_packing, input_tail, asked.digest, asked.packing, asked.data,
       payload_packing, payload, told.digest, told.packing, told.data
FROM records JOIN runs USING (run_number)
LEFT JOIN pieces AS asked ON asked.piece_number = records.input_piece
LEFT JOIN pieces AS told ON told.piece_number = payload_piece
WHERE record_number > :after
AND (substr(records.input_sha256, 1, length(:head)) <> :head
     OR substr(input_tail, 1, length(:head)) <> :head
     OR substr(payload, 1, length(:head)) <> :head)
ORDER BY record_number LIMIT :limit;

-- name: reseal_records
-- Write the values of a record anew.
UPDATE records SET input_sha256 = :input_sha256, input_tail = :input_tail, payload = :payload
WHERE record_number = :number;

-- name: stale_timers
-- Some delays after :after with a value that does not begin with :head.
SELECT run_number || '/' || step_id || '/' || sequence AS place, run_number, run_id, step_id,
       sequence, timers.wake_at, awaits, timers.input_sha256, timers.input
FROM timers JOIN runs USING (run_number)
WHERE place > :after
AND (substr(timers.input_sha256, 1, length(:head)) <> :head
     OR substr(timers.input, 1, length(:head)) <> :head)
ORDER BY place LIMIT :limit;

-- name: reseal_timers
-- Write the values of a delay anew.
UPDATE timers SET input_sha256 = :input_sha256, input = :input
WHERE run_number = :run_number AND step_id = :step_id AND sequence = :sequence;

-- name: stale_receipts
-- Some receipts after :after with a value that does not begin with :head, or :head_text.
SELECT receipt_number, operation_key, arguments_sha256, payload, problem, decided_why FROM receipts
WHERE receipt_number > :after
AND (substr(arguments_sha256, 1, length(:head)) <> :head
     OR substr(payload, 1, length(:head)) <> :head
     OR (substr(problem, 1, length(:head_text)) <> :head_text AND problem <> 'its worker is gone')
     OR substr(decided_why, 1, length(:head_text)) <> :head_text)
ORDER BY receipt_number LIMIT :limit;

-- name: reseal_receipts
-- Write the values of a receipt anew.
UPDATE receipts SET arguments_sha256 = :arguments_sha256, payload = :payload, problem = :problem,
                    decided_why = :why
WHERE receipt_number = :number;

-- name: stale_decisions
-- Some decisions after :after whose reason does not begin with :head_text.
SELECT operation_key || '/' || version AS place, operation_key, version, decided_why FROM decisions
WHERE place > :after AND substr(decided_why, 1, length(:head_text)) <> :head_text
ORDER BY place LIMIT :limit;

-- name: reseal_decisions
-- Write the reason of a decision anew.
UPDATE decisions SET decided_why = :why
WHERE operation_key = :operation_key AND version = :version;

-- name: stale_pieces
-- Some pieces after :after that do not begin with :head.
SELECT piece_number, digest, packing, data FROM pieces
WHERE piece_number > :after AND substr(data, 1, length(:head)) <> :head
ORDER BY piece_number LIMIT :limit;

-- name: reseal_pieces
-- Write a piece anew, and its name.
UPDATE pieces SET digest = :digest, data = :data WHERE piece_number = :number;

-- name: stale_checkpoints
-- Some checkpoints after :after whose state does not begin with :head.
SELECT checkpoint_number, run_id, checkpoint_id, kind, revision, cursor, checkpoints.state
FROM checkpoints JOIN runs USING (run_number)
WHERE checkpoint_number > :after AND substr(checkpoints.state, 1, length(:head)) <> :head
ORDER BY checkpoint_number LIMIT :limit;

-- name: reseal_checkpoints
-- Write the state of a checkpoint anew.
UPDATE checkpoints SET state = :state WHERE checkpoint_number = :number;

-- name: stale_messages
-- Some messages after :after whose payload does not begin with :head.
SELECT message_number, run_id, message_id, name, edition, payload
FROM messages JOIN runs USING (run_number)
WHERE message_number > :after AND substr(payload, 1, length(:head)) <> :head
ORDER BY message_number LIMIT :limit;

-- name: reseal_messages
-- Write anew what a message says.
UPDATE messages SET payload = :payload WHERE message_number = :number;

-- name: stale_approvals
-- Some of what runs asked for after :after with a value that does not begin with :head.
SELECT approval_number, run_id, item_id, kind, name, answered_by, arguments, answer
FROM approvals JOIN runs USING (run_number)
WHERE approval_number > :after
AND (substr(arguments, 1, length(:head)) <> :head OR substr(answer, 1, length(:head)) <> :head)
ORDER BY approval_number LIMIT :limit;

-- name: reseal_approvals
-- Write anew what a run asked for, and the answer.
UPDATE approvals SET arguments = :arguments, answer = :answer WHERE approval_number = :number;

-- name: forget_keys
-- Forget the keys in :key_ids, because nothing is sealed with them any more.
DELETE FROM keys WHERE key_id IN (SELECT value FROM json_each(:key_ids));

-- name: import_run
-- Write a run that was exported.
INSERT INTO runs (run_id, function, version, state, generation, cancel_requested, created_at,
                  started_at, finished_at, wake_at, deadline_at, parent, queue, queue_key,
                  priority, input_sha256, input_piece, input_packing, input, output_piece,
                  output_packing, output, problem, problem_code)
VALUES (:run_id, :function, :version, :state, :generation, :cancel_requested, :created_at,
        :started_at, :finished_at, :wake_at, :deadline_at, :parent, :queue, :queue_key,
        :priority, :input_sha256, :input_piece,
        :input_packing, :input,
        :output_piece, :output_packing, :output, :problem, :problem_code);

-- name: import_worker
-- Make a worker known that claimed an exported run, as one that is gone.
INSERT INTO workers (holder, name, host, pid, lease_seconds, lease_until, gone, started_at)
VALUES (:holder, :worker, '', :pid, 0, 0, 1, :claimed_at)
ON CONFLICT (holder) DO NOTHING;

-- name: import_attempt
-- Write a claim of an exported run.
INSERT INTO attempts (run_number, generation, holder, claimed_at, ended_at, ending, executed,
                      replayed)
SELECT run_number, :generation, :holder, :claimed_at, :ended_at, :ending, :executed, :replayed
FROM runs WHERE run_id = :run_id;

-- name: import_record
-- Write a record of an exported run.
INSERT INTO records (run_number, step_id, sequence, kind, handler_id, input_sha256, input_bytes,
                     status, attempt, generation, nested, started_at, finished_at, input_piece,
                     input_packing, input_tail, payload_piece, payload_packing, payload_bytes,
                     payload)
SELECT run_number, :step_id, :sequence, :kind, :handler_id, :input_sha256, :input_bytes,
       :status, :attempt, :generation, :nested, :started_at, :finished_at, :input_piece,
       :input_packing, :input_tail, :payload_piece, :payload_packing, :payload_bytes, :payload
FROM runs WHERE run_id = :run_id;

-- name: import_timer
-- Write a delay that an exported run had under way.
INSERT INTO timers (run_number, step_id, sequence, kind, handler_id, input_sha256, input, wake_at,
                    awaits)
SELECT run_number, :step_id, :sequence, :kind, :handler_id, :input_sha256, :input, :wake_at, :awaits
FROM runs WHERE run_id = :run_id;

-- name: import_message
-- Write a message that an exported run had.
INSERT INTO messages (run_number, message_id, name, edition, payload, sent_by, sent_at,
                      taken_step, taken_sequence, taken_at)
SELECT run_number, :message_id, :name, :edition, :payload, :sent_by, :sent_at,
       :taken_step, :taken_sequence, :taken_at
FROM runs WHERE run_id = :run_id;

-- name: import_approval
-- Write what an exported run had asked for.
INSERT INTO approvals (run_number, item_id, step_id, sequence, kind, name, asked_at, arguments,
                       decision, answer, answered_by, answered_at)
SELECT run_number, :item_id, :step_id, :sequence, :ask_kind, :name, :asked_at, :arguments,
       :decision, :answer, :answered_by,
       :answered_at
FROM runs WHERE run_id = :run_id;

-- name: import_receipt
-- Write a receipt of an exported run, unless there is one of its key.
INSERT INTO receipts (operation_key, run_id, idempotency_key, target, ordinal, support,
                      arguments_sha256, state, attempt, holder, generation, version, payload,
                      problem, first_claimed_at, claimed_at, settled_at, settle_seconds,
                      resend_after, lookups, lookup_at, lookup_holder, exhausted, earlier_unknown,
                      residual_duplicate_risk, decided_by, decided_why, handler_id)
VALUES (:operation_key, :run_id, :idempotency_key, :target, :ordinal, :support,
        :arguments_sha256, :state, :attempt, :holder, :generation, :version, :payload,
        :problem, :first_claimed_at, :claimed_at, :settled_at, :settle_seconds,
        :resend_after, :lookups, :lookup_at, :lookup_holder, :exhausted, :earlier_unknown,
        :residual_duplicate_risk, :decided_by, :decided_why, :handler_id)
ON CONFLICT (operation_key) DO NOTHING;

-- name: import_decision
-- Write what a person decided about an effect of an exported run.
INSERT INTO decisions (operation_key, version, attempt, decision, decided_by, decided_why,
                       decided_at)
VALUES (:operation_key, :version, :attempt, :decision, :decided_by, :decided_why, :decided_at)
ON CONFLICT (operation_key, version) DO NOTHING;

-- name: note_blobs
-- Note a blob that is about to be put, before a row needs it.
INSERT INTO blobs (name, since) VALUES (:name, :since);

-- name: any_condemned
-- Whether there are blobs that no row needs any more, or that none came to need before :before.
SELECT EXISTS (SELECT 1 FROM blobs WHERE since < :before);

-- name: condemn_blobs
-- Keep rows from needing those blobs that none came to need before :before.
UPDATE blobs SET since = 0 WHERE since < :before AND since > 0;

-- name: condemned_blobs
-- Some blobs that nothing can need any more.
SELECT name FROM blobs WHERE since = 0 ORDER BY name LIMIT :limit;

-- name: forget_blobs
-- Forget a blob that was deleted.
DELETE FROM blobs WHERE name = :name AND since = 0;

-- name: leaves_blobs
-- Whether blobs of rows that were deleted are still there.
SELECT EXISTS (SELECT 1 FROM blobs WHERE since = 0);

-- name: holds_blobs
-- Whether values stand in a blob store, those too that no row needs.
SELECT EXISTS (SELECT 1 FROM blobs)
OR EXISTS (SELECT 1 FROM pieces WHERE packing >= 4)
OR EXISTS (SELECT 1 FROM runs
           WHERE (input_packing >= 4 AND input <> x'')
           OR (output_packing >= 4 AND output IS NOT NULL))
OR EXISTS (SELECT 1 FROM records WHERE input_packing >= 4 OR payload_packing >= 4);

-- name: newest_blobs
-- The names of some blobs that rows need: the newest of the first class that has any, and so on.
SELECT name FROM (
  SELECT * FROM (
    SELECT substr(output, -32) AS name FROM runs WHERE output_packing >= 4 AND length(output) >= 32
    ORDER BY run_number DESC LIMIT :limit)
  UNION ALL
  SELECT * FROM (
    SELECT substr(input, -32) AS name FROM runs WHERE input_packing >= 4 AND length(input) >= 32
    ORDER BY run_number DESC LIMIT :limit)
  UNION ALL
  SELECT * FROM (
    SELECT substr(payload, -32) AS name FROM records WHERE payload_packing >= 4 AND length(payload) >= 32
    ORDER BY record_number DESC LIMIT :limit)
  UNION ALL
  SELECT * FROM (
    SELECT substr(input_tail, -32) AS name FROM records WHERE input_packing >= 4 AND length(input_tail) >= 32
    ORDER BY record_number DESC LIMIT :limit)
  UNION ALL
  SELECT * FROM (
    SELECT substr(data, -32) AS name FROM pieces WHERE packing >= 4 AND length(data) >= 32
    ORDER BY piece_number DESC LIMIT :limit)
) LIMIT :limit;

-- name: declare_schedule
-- Write a schedule, or what an App declares anew of one that is there.
INSERT INTO schedules (name, function, rule, counted_to)
VALUES (:name, :function, :rule, :now)
ON CONFLICT (name) DO UPDATE SET function = excluded.function, rule = excluded.rule
WHERE function <> excluded.function OR rule <> excluded.rule;

-- name: list_schedules
-- Schedules and how they stand, by name.
SELECT name, function, rule, counted_to, paused FROM schedules ORDER BY name;

-- name: count_ticks
-- Note until when the ticks of a schedule are dealt with, if it stands as it was seen.
UPDATE schedules SET counted_to = :counted_to
WHERE name = :name AND counted_to = :seen AND rule = :rule AND NOT paused;

-- name: pause_schedule
-- Keep a schedule from starting anything.
UPDATE schedules SET paused = 1 WHERE name = :name;

-- name: resume_schedule
-- Let a schedule go on; one that was paused counts from now on.
UPDATE schedules
SET counted_to = CASE WHEN paused THEN max(counted_to, :now) ELSE counted_to END, paused = 0
WHERE name = :name;

-- name: declare_queue
-- Write a queue, or what an App declares anew of one that is there.
INSERT INTO queues (name, concurrency, key_concurrency, rate_runs, rate_seconds)
VALUES (:name, :concurrency, :key_concurrency, :rate_runs, :rate_seconds)
ON CONFLICT (name) DO UPDATE SET concurrency = excluded.concurrency,
  key_concurrency = excluded.key_concurrency, rate_runs = excluded.rate_runs,
  rate_seconds = excluded.rate_seconds
WHERE concurrency IS NOT excluded.concurrency OR key_concurrency IS NOT excluded.key_concurrency
OR rate_runs IS NOT excluded.rate_runs OR rate_seconds IS NOT excluded.rate_seconds;

-- name: know_queue
-- Write a queue without limits for a run that comes from elsewhere, unless it is there.
INSERT INTO queues (name) VALUES (:queue) ON CONFLICT (name) DO NOTHING;

-- name: list_queues
-- Queues and how they stand, by name.
SELECT name, concurrency, key_concurrency, rate_runs, rate_seconds, paused,
       (SELECT count(*) FROM runs WHERE state = 'pending' AND queue = queues.name),
       (SELECT count(*) FROM runs
        WHERE state IN ('running', 'cancelling') AND queue = queues.name)
FROM queues ORDER BY name;

-- name: pause_queue
-- Keep the runs of a queue from being claimed.
UPDATE queues SET paused = 1 WHERE name = :name;

-- name: release_queue
-- Let the runs of a queue be claimed again.
UPDATE queues SET paused = 0 WHERE name = :name;

-- name: note_turn
-- Write which run answers what was said in a session, and that the session is to hear of its end.
INSERT INTO turns (run_id, session, event_id) VALUES (:run_id, :session, :event_id)
ON CONFLICT (run_id) DO UPDATE SET open = 1;

-- name: read_turn
-- What a run answers.
SELECT run_id, session, event_id FROM turns WHERE run_id = :run_id;

-- name: list_turns
-- The turns of a session, in the order of the ids of their runs.
SELECT run_id, session, event_id FROM turns WHERE session = :session ORDER BY run_id;

-- name: ended_turns
-- Open turns whose run has ended, some of them.
SELECT turns.run_id, session, event_id, state, generation, problem_code
FROM turns JOIN runs ON runs.run_id = turns.run_id
WHERE open AND state IN ('completed', 'failed', 'cancelled') AND turns.run_id > :after
ORDER BY turns.run_id LIMIT :limit;

-- name: close_turn
-- Note that a session was told how a run ended, unless the run goes on since.
UPDATE turns SET open = 0
WHERE run_id = :run_id
AND EXISTS (SELECT 1 FROM runs WHERE run_id = :run_id AND generation = :generation
            AND state IN ('completed', 'failed', 'cancelled'));

-- name: held_fences
-- Those of some fences that still hold.
SELECT run_id, holder, generation FROM runs
WHERE run_id = :run_id AND holder = :holder AND generation = :generation;

-- name: create_sessions
-- Make a session known that is about to be written to.
INSERT INTO sessions (session, changed_at) VALUES (:session, :changed_at)
ON CONFLICT (session) DO NOTHING;

-- name: lock_sessions
-- How far a session has come.
SELECT session, session_number, head, floor FROM sessions WHERE session = :session;

-- name: find_published
-- A message that a session has had under an id.
SELECT session_number, message_id, serial FROM session_messages
WHERE session_number = :session_number AND message_id = :message_id;

-- name: find_changed
-- Whose a message is that is to be changed, and what it has taken in; one that is not kept cannot be.
SELECT session_number, serial, version, run_id FROM session_messages
WHERE session_number = :session_number AND serial = :serial AND NOT ephemeral;

-- name: open_streams
-- The messages of a run with what was appended and not taken in.
SELECT DISTINCT session_number, serial
FROM session_appends JOIN session_messages USING (session_number, serial)
WHERE session_number = :session_number AND run_id = :run_id;

-- name: read_joined
-- A message that is to take in what was done to it.
SELECT session_number, serial, version, name, client_id, document FROM session_messages
WHERE session_number = :session_number AND serial = :serial;

-- name: read_appended
-- What was appended to a message and not taken in.
SELECT session_number, serial, version, client_id, document FROM session_appends
WHERE session_number = :session_number AND serial = :serial ORDER BY version;

-- name: insert_session_messages
-- Write a new message.
INSERT INTO session_messages (session_number, serial, version, message_id, name, client_id, run_id,
                              created_at, ephemeral, document)
VALUES (:session_number, :serial, :serial, :message_id, :name, :client_id, :run_id, :created_at,
        :ephemeral, :document);

-- name: insert_session_appends
-- Write what is appended to a message.
INSERT INTO session_appends (session_number, serial, version, client_id, document)
VALUES (:session_number, :serial, :version, :client_id, :document);

-- name: join_session_messages
-- Write a message with all that it takes in.
UPDATE session_messages SET version = :version, document = :document
WHERE session_number = :session_number AND serial = :serial;

-- name: drop_joined
-- Delete what a message has taken in.
DELETE FROM session_appends WHERE session_number = :session_number AND serial = :serial;

-- name: advance_sessions
-- Note how far a session has come.
UPDATE sessions SET head = :head, changed_at = :changed_at WHERE session_number = :session_number;

-- name: drop_ephemeral
-- Delete some of what is not kept and was written before :before.
DELETE FROM session_messages WHERE message_number IN (
  SELECT message_number FROM session_messages WHERE ephemeral AND created_at < :before
  LIMIT :limit);

-- name: read_deliveries
-- How far a session has come, and what was done to its messages after a version, as far as :limit.
WITH wanted AS (SELECT session_number, head, floor FROM sessions WHERE session = :session)
SELECT 0 AS kind, head AS version, floor AS serial, NULL AS name, NULL AS client_id,
       NULL AS created_at, 0 AS ephemeral, NULL AS document
FROM wanted
UNION ALL SELECT * FROM (
  SELECT 1, version, serial, name, client_id, created_at, ephemeral, document
  FROM session_messages WHERE session_number = (SELECT session_number FROM wanted)
  AND version > :after ORDER BY version LIMIT :limit)
UNION ALL SELECT * FROM (
  SELECT 2, version, serial, NULL, client_id, NULL, 0, document
  FROM session_appends WHERE session_number = (SELECT session_number FROM wanted)
  AND version > :after ORDER BY version LIMIT :limit);

-- name: read_page
-- How far a session has come, its newest messages before a serial, and what was appended to those.
WITH wanted AS (SELECT session_number, head, floor FROM sessions WHERE session = :session),
page AS (
  SELECT version, serial, name, client_id, created_at, document
  FROM session_messages WHERE session_number = (SELECT session_number FROM wanted)
  AND serial > (SELECT floor FROM wanted) AND serial < :before AND NOT ephemeral
  ORDER BY serial DESC LIMIT :limit)
SELECT 0 AS kind, head AS version, floor AS serial, NULL AS name, NULL AS client_id,
       NULL AS created_at, 0 AS ephemeral, NULL AS document
FROM wanted
UNION ALL SELECT 1, version, serial, name, client_id, created_at, 0, document FROM page
UNION ALL SELECT 2, version, serial, NULL, client_id, NULL, 0, document
FROM session_appends WHERE session_number = (SELECT session_number FROM wanted)
AND serial IN (SELECT serial FROM page);

-- name: session_heads
-- The last version of each of some sessions.
SELECT session, head FROM sessions
WHERE session IN (SELECT value FROM json_each(:sessions)) AND head > 0;

-- name: list_sessions
-- The sessions that were written to last.
SELECT session, head, changed_at FROM sessions WHERE floor < head
ORDER BY changed_at DESC, session_number DESC LIMIT :limit;

-- name: erase_session
-- Let nobody read what a session has; return its number where there was anything.
UPDATE sessions SET floor = head, erasing = 1
WHERE session = :session AND (floor < head OR erasing) RETURNING session_number;

-- name: count_sessions_expired
-- How many sessions were last written to before :before, and have no run that goes on.
SELECT count(*) FROM sessions WHERE floor < head AND changed_at < :before
AND NOT EXISTS (SELECT 1 FROM turns JOIN runs USING (run_id)
                WHERE turns.session = sessions.session
                AND state NOT IN ('completed', 'failed', 'cancelled'));

-- name: collect_sessions
-- Let nobody read some sessions that were last written to before :before, and have no run that goes
-- on.
UPDATE sessions SET floor = head, erasing = 1 WHERE session_number IN (
  SELECT session_number FROM sessions WHERE floor < head AND changed_at < :before
  AND NOT EXISTS (SELECT 1 FROM turns JOIN runs USING (run_id)
                  WHERE turns.session = sessions.session
                  AND state NOT IN ('completed', 'failed', 'cancelled'))
  LIMIT :limit);

-- name: erase_session_messages
-- Delete some messages that nobody may read.
DELETE FROM session_messages WHERE message_number IN (
  SELECT message_number FROM sessions JOIN session_messages USING (session_number)
  WHERE erasing AND serial <= floor LIMIT :limit);

-- name: erase_session_appends
-- Delete some of what was appended to messages that nobody may read.
DELETE FROM session_appends WHERE append_number IN (
  SELECT append_number FROM sessions JOIN session_appends USING (session_number)
  WHERE erasing AND serial <= floor LIMIT :limit);

-- name: end_erasing
-- Note of which sessions nothing is left that nobody may read.
UPDATE sessions SET erasing = 0 WHERE erasing
AND NOT EXISTS (SELECT 1 FROM session_messages AS messages
                WHERE messages.session_number = sessions.session_number AND serial <= floor)
AND NOT EXISTS (SELECT 1 FROM session_appends AS appends
                WHERE appends.session_number = sessions.session_number AND version <= floor);

-- name: is_erasing
-- Whether something is left of a session that nobody may read.
SELECT erasing FROM sessions WHERE session_number = :session_number;

-- name: stale_session_messages
-- Some messages after :after with a document that does not begin with :head.
SELECT message_number, session, serial, version, name, client_id, document
FROM session_messages JOIN sessions USING (session_number)
WHERE message_number > :after AND substr(document, 1, length(:head)) <> :head
ORDER BY message_number LIMIT :limit;

-- name: reseal_session_messages
-- Write the document of a message anew.
UPDATE session_messages SET document = :document WHERE message_number = :number;

-- name: stale_session_appends
-- Some of what was appended after :after with a document that does not begin with :head.
SELECT append_number, session, serial, version, client_id, document
FROM session_appends JOIN sessions USING (session_number)
WHERE append_number > :after AND substr(document, 1, length(:head)) <> :head
ORDER BY append_number LIMIT :limit;

-- name: reseal_session_appends
-- Write the document of what was appended anew.
UPDATE session_appends SET document = :document WHERE append_number = :number;
