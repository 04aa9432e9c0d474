-- Queues: what bounds how many runs are executed at once, and how many begin within a time.
--
-- A queue keeps no counts: the runs of it that are executed, and those that began within its time,
-- are counted while nobody else can claim. Where a limit is null, there is none. A queue stays.

CREATE TABLE queues (
  name TEXT PRIMARY KEY,
  concurrency INTEGER,
  key_concurrency INTEGER,
  rate_runs INTEGER,
  rate_seconds REAL,
  paused INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

ALTER TABLE runs ADD COLUMN queue TEXT;
ALTER TABLE runs ADD COLUMN queue_key TEXT;
ALTER TABLE runs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;

-- What waits in a queue must not stand in the way of what waits in none.
DROP INDEX runs_waiting;
CREATE INDEX runs_waiting ON runs (run_number) WHERE state = 'pending' AND queue IS NULL;
CREATE INDEX runs_queued ON runs (queue, started_at IS NULL, priority DESC, run_number)
WHERE state = 'pending' AND queue IS NOT NULL;
CREATE INDEX runs_keyed ON runs (queue, queue_key, started_at IS NULL, priority DESC, run_number)
WHERE state = 'pending' AND queue IS NOT NULL;
CREATE INDEX runs_queue_held ON runs (queue, queue_key)
WHERE state IN ('running', 'cancelling') AND queue IS NOT NULL;
CREATE INDEX runs_queue_begun ON runs (queue, started_at)
WHERE queue IS NOT NULL AND started_at IS NOT NULL;
