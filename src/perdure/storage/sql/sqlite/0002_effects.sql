-- Receipts: what touched the world.
--
-- A receipt is moved by one UPDATE that names its key, state, attempt and generation. A receipt in
-- flight belongs to the worker that holds it and, inside a run, to the claim of that run; when
-- either is gone, nobody knows what became of the attempt.

CREATE TABLE receipts (
  receipt_number INTEGER PRIMARY KEY,
  operation_key TEXT NOT NULL UNIQUE,
  run_id TEXT NOT NULL,
  idempotency_key TEXT NOT NULL,
  target TEXT NOT NULL,
  ordinal INTEGER NOT NULL,
  support TEXT NOT NULL,
  arguments_sha256 BLOB NOT NULL,
  state TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  holder TEXT NOT NULL,
  generation INTEGER NOT NULL,
  version INTEGER NOT NULL,
  payload BLOB,
  problem TEXT,
  first_claimed_at REAL NOT NULL,
  claimed_at REAL NOT NULL,
  settled_at REAL,
  settle_seconds REAL NOT NULL,
  resend_after REAL,
  lookups INTEGER NOT NULL DEFAULT 0,
  lookup_at REAL,
  lookup_holder TEXT,
  exhausted INTEGER NOT NULL DEFAULT 0,
  earlier_unknown INTEGER NOT NULL DEFAULT 0,
  residual_duplicate_risk INTEGER NOT NULL DEFAULT 0,
  decided_by TEXT,
  decided_why TEXT
) STRICT;

-- Small however many receipts there are: only what has not ended.
CREATE INDEX receipts_open ON receipts (state, lookup_at)
WHERE state IN ('in_flight', 'ambiguous');
CREATE INDEX receipts_run ON receipts (run_id);
