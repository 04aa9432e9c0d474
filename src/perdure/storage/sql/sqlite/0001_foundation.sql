-- Runs, their records and their workers.
--
-- A run is claimed by writing holder and generation; every later write of the run names both.
-- A worker's lease stands in `workers` alone, so one UPDATE renews it for all of its runs.
-- Times named *_at are wall seconds; lease_until is on the host's monotonic clock, which all
-- processes share and none can set.

CREATE TABLE workers (
  worker_number INTEGER PRIMARY KEY,
  holder TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  host TEXT NOT NULL,
  pid INTEGER NOT NULL,
  lease_seconds REAL NOT NULL,
  lease_until REAL NOT NULL,
  gone INTEGER NOT NULL DEFAULT 0,
  started_at REAL NOT NULL
) STRICT;

CREATE TABLE runs (
  run_number INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL UNIQUE,
  function TEXT NOT NULL,
  version INTEGER NOT NULL,
  state TEXT NOT NULL,
  holder TEXT,
  generation INTEGER NOT NULL,
  cancel_requested INTEGER NOT NULL DEFAULT 0,
  created_at REAL NOT NULL,
  started_at REAL,
  finished_at REAL,
  input_sha256 BLOB NOT NULL,
  input BLOB NOT NULL,
  output BLOB,
  problem BLOB
) STRICT;

CREATE INDEX runs_waiting ON runs (run_number) WHERE state = 'pending';
CREATE INDEX runs_held ON runs (holder) WHERE holder IS NOT NULL;

CREATE TABLE attempts (
  run_number INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  holder TEXT NOT NULL,
  claimed_at REAL NOT NULL,
  ended_at REAL,
  ending TEXT,
  executed INTEGER NOT NULL DEFAULT 0,
  replayed INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (run_number, generation)
) STRICT, WITHOUT ROWID;

-- An input is its pieces from the root down to `input_piece`, then `input_tail`.
CREATE TABLE pieces (
  piece_number INTEGER PRIMARY KEY,
  digest BLOB NOT NULL UNIQUE,
  parent INTEGER,
  packing INTEGER NOT NULL,
  data BLOB NOT NULL
) STRICT;

CREATE TABLE records (
  record_number INTEGER PRIMARY KEY,
  run_number INTEGER NOT NULL,
  step_id TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  kind TEXT NOT NULL,
  handler_id TEXT NOT NULL,
  input_sha256 BLOB NOT NULL,
  input_bytes INTEGER NOT NULL,
  status TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  nested INTEGER NOT NULL,
  started_at REAL NOT NULL,
  finished_at REAL NOT NULL,
  input_piece INTEGER,
  input_packing INTEGER NOT NULL,
  input_tail BLOB NOT NULL,
  payload_packing INTEGER NOT NULL,
  payload_bytes INTEGER NOT NULL,
  payload BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX records_key ON records (run_number, step_id, sequence);

CREATE TABLE timers (
  run_number INTEGER NOT NULL,
  step_id TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  kind TEXT NOT NULL,
  handler_id TEXT NOT NULL,
  input_sha256 BLOB NOT NULL,
  input BLOB NOT NULL,
  wake_at REAL NOT NULL,
  PRIMARY KEY (run_number, step_id, sequence)
) STRICT, WITHOUT ROWID;
