-- Queues: what bounds how many runs are executed at once, and how many begin within a time.
--
-- A queue keeps no counts: the runs of it that are executed, and those that began within its time,
-- are counted while its row is locked, which whoever claims from it locks first. Where a limit is
-- null, there is none. A queue stays.

CREATE TABLE perdure.queues (
  name text COLLATE "C" PRIMARY KEY,
  concurrency integer,
  key_concurrency integer,
  rate_runs integer,
  rate_seconds double precision,
  paused boolean NOT NULL DEFAULT false
);

ALTER TABLE perdure.runs ADD COLUMN queue text COLLATE "C",
  ADD COLUMN queue_key text COLLATE "C",
  ADD COLUMN priority integer NOT NULL DEFAULT 0;

-- What waits in a queue must not stand in the way of what waits in none.
DROP INDEX perdure.runs_waiting;
CREATE INDEX runs_waiting ON perdure.runs (run_number) WHERE state = 'pending' AND queue IS NULL;
CREATE INDEX runs_queued ON perdure.runs (queue, (started_at IS NULL), priority DESC, run_number)
WHERE state = 'pending' AND queue IS NOT NULL;
CREATE INDEX runs_keyed
ON perdure.runs (queue, queue_key, (started_at IS NULL), priority DESC, run_number)
WHERE state = 'pending' AND queue IS NOT NULL;
CREATE INDEX runs_queue_held ON perdure.runs (queue, queue_key)
WHERE state IN ('running', 'cancelling') AND queue IS NOT NULL;
CREATE INDEX runs_queue_begun ON perdure.runs (queue, started_at)
WHERE queue IS NOT NULL AND started_at IS NOT NULL;

-- What the driver reads of a run, in the order that it expects.
DROP VIEW perdure.runs_read;
CREATE VIEW perdure.runs_read AS
SELECT run_id, function, version, state, input_sha256, holder, generation, cancel_requested,
       problem, created_at, started_at, finished_at, erased_at, erased_by, erased_why, erasing,
       wake_at, deadline_at, parent, queue, queue_key, priority, output_piece, output_packing,
       output, run_number
FROM perdure.runs;
