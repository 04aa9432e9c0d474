-- Everything that the driver keeps, in a schema of its own.
--
-- A run is claimed by writing holder and generation; every later write of the run names both, and
-- locks the run's row against a claim that would overtake it. A worker's lease stands in `workers`
-- alone, so one UPDATE renews it for all of its runs. All times are wall seconds of this server.
-- What users gave is kept as bytes. It is packed before it comes here.
--
-- A token is drawn for each claim, and tells whoever lost the connection in the middle of a commit
-- whether the claim is its own.

CREATE TABLE perdure.workers (
  worker_number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  holder text NOT NULL UNIQUE,
  name text NOT NULL,
  host text NOT NULL,
  machine text NOT NULL,
  pid integer NOT NULL,
  lease_seconds double precision NOT NULL,
  lease_until double precision NOT NULL,
  gone smallint NOT NULL DEFAULT 0,
  started_at double precision NOT NULL
);
CREATE INDEX workers_alive ON perdure.workers (holder) WHERE gone = 0;

-- A document is its pieces from the root down to the last one, and a rest around them. A piece is
-- named by the digest of the document up to its end. The references keep a piece for as long as it
-- is needed, whoever deletes at the same moment.
CREATE TABLE perdure.pieces (
  digest bytea PRIMARY KEY,
  parent bytea REFERENCES perdure.pieces ON UPDATE CASCADE,
  packing smallint NOT NULL,
  data bytea NOT NULL
);
CREATE INDEX pieces_parent ON perdure.pieces (parent) WHERE parent IS NOT NULL;

-- The keys that values are sealed with: an id and a proof of each, which does not tell the key.
CREATE TABLE perdure.keys (
  key_id text COLLATE "C" PRIMARY KEY,
  proof bytea NOT NULL
);

CREATE TABLE perdure.runs (
  run_number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_id text COLLATE "C" NOT NULL UNIQUE,
  function text NOT NULL,
  version integer NOT NULL,
  state text NOT NULL,
  holder text,
  generation bigint NOT NULL,
  cancel_requested boolean NOT NULL DEFAULT false,
  created_at double precision NOT NULL,
  started_at double precision,
  finished_at double precision,
  input_sha256 bytea NOT NULL,
  input_piece bytea REFERENCES perdure.pieces ON UPDATE CASCADE,
  input_packing smallint NOT NULL,
  input bytea NOT NULL,
  output_piece bytea REFERENCES perdure.pieces ON UPDATE CASCADE,
  output_packing smallint NOT NULL DEFAULT 0,
  output bytea,
  problem bytea,
  problem_code text,
  erased_at double precision,
  erased_by text,
  erased_why text,
  erasing boolean NOT NULL DEFAULT false
);
CREATE INDEX runs_waiting ON perdure.runs (run_number) WHERE state = 'pending';
CREATE INDEX runs_held ON perdure.runs (holder) WHERE holder IS NOT NULL;
CREATE INDEX runs_input_piece ON perdure.runs (input_piece) WHERE input_piece IS NOT NULL;
CREATE INDEX runs_output_piece ON perdure.runs (output_piece) WHERE output_piece IS NOT NULL;

CREATE TABLE perdure.attempts (
  run_number bigint NOT NULL,
  generation bigint NOT NULL,
  holder text NOT NULL,
  token bytea NOT NULL,
  claimed_at double precision NOT NULL,
  ended_at double precision,
  ending text,
  executed integer NOT NULL DEFAULT 0,
  replayed integer NOT NULL DEFAULT 0,
  PRIMARY KEY (run_number, generation)
);
CREATE INDEX attempts_under_way ON perdure.attempts (holder) WHERE ended_at IS NULL;

CREATE TABLE perdure.records (
  record_number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_number bigint NOT NULL,
  step_id text COLLATE "C" NOT NULL,
  sequence bigint NOT NULL,
  kind text NOT NULL,
  handler_id text NOT NULL,
  input_sha256 bytea NOT NULL,
  input_bytes integer NOT NULL,
  status text NOT NULL,
  attempt integer NOT NULL,
  generation bigint NOT NULL,
  nested boolean NOT NULL,
  started_at double precision NOT NULL,
  finished_at double precision NOT NULL,
  input_piece bytea REFERENCES perdure.pieces ON UPDATE CASCADE,
  input_packing smallint NOT NULL,
  input_tail bytea NOT NULL,
  payload_piece bytea REFERENCES perdure.pieces ON UPDATE CASCADE,
  payload_packing smallint NOT NULL,
  payload_bytes integer NOT NULL,
  payload bytea NOT NULL
);
CREATE UNIQUE INDEX records_key ON perdure.records (run_number, step_id, sequence);
CREATE INDEX records_input_piece ON perdure.records (input_piece) WHERE input_piece IS NOT NULL;
CREATE INDEX records_payload_piece ON perdure.records (payload_piece)
WHERE payload_piece IS NOT NULL;

CREATE TABLE perdure.timers (
  run_number bigint NOT NULL,
  step_id text COLLATE "C" NOT NULL,
  sequence bigint NOT NULL,
  kind text NOT NULL,
  handler_id text NOT NULL,
  input_sha256 bytea NOT NULL,
  input bytea NOT NULL,
  wake_at double precision NOT NULL,
  PRIMARY KEY (run_number, step_id, sequence)
);

CREATE TABLE perdure.receipts (
  receipt_number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  operation_key text COLLATE "C" NOT NULL UNIQUE,
  run_id text COLLATE "C" NOT NULL,
  idempotency_key text NOT NULL,
  target text NOT NULL,
  ordinal bigint NOT NULL,
  support text NOT NULL,
  arguments_sha256 bytea NOT NULL,
  state text NOT NULL,
  attempt integer NOT NULL,
  holder text NOT NULL,
  generation bigint NOT NULL,
  token bytea NOT NULL,
  version integer NOT NULL,
  payload bytea,
  problem text,
  first_claimed_at double precision NOT NULL,
  claimed_at double precision NOT NULL,
  settled_at double precision,
  settle_seconds double precision NOT NULL,
  resend_after double precision,
  lookups integer NOT NULL DEFAULT 0,
  lookup_at double precision,
  lookup_holder text,
  exhausted boolean NOT NULL DEFAULT false,
  earlier_unknown boolean NOT NULL DEFAULT false,
  residual_duplicate_risk boolean NOT NULL DEFAULT false,
  decided_by text,
  decided_why text,
  handler_id text
);
CREATE INDEX receipts_open ON perdure.receipts (state, lookup_at)
WHERE state IN ('in_flight', 'ambiguous');
CREATE INDEX receipts_run ON perdure.receipts (run_id);

-- A tombstone stands where a receipt was: the effect must not be sent again.
CREATE TABLE perdure.tombstones (
  operation_key text COLLATE "C" PRIMARY KEY,
  state text NOT NULL,
  erased_at double precision NOT NULL,
  erased_by text NOT NULL,
  erased_why text NOT NULL
);

CREATE TABLE perdure.decisions (
  operation_key text COLLATE "C" NOT NULL REFERENCES perdure.receipts (operation_key)
    ON DELETE CASCADE,
  version integer NOT NULL,
  attempt integer NOT NULL,
  decision text NOT NULL,
  decided_by text NOT NULL,
  decided_why text NOT NULL,
  decided_at double precision NOT NULL,
  PRIMARY KEY (operation_key, version)
);

CREATE TABLE perdure.audit (
  audit_number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at double precision NOT NULL,
  operation_key text,
  operation_target_ref text,
  operation_support text,
  operation_state text,
  operation_first_execution boolean,
  operation_replay_suppressed boolean,
  operation_reconciliation_required boolean,
  operation_reconciliation_exhausted boolean,
  operation_residual_duplicate_risk boolean
);
CREATE INDEX audit_operation ON perdure.audit (operation_key);

ALTER TABLE perdure.runs ALTER COLUMN input SET STORAGE EXTERNAL,
  ALTER COLUMN output SET STORAGE EXTERNAL;
ALTER TABLE perdure.pieces ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE perdure.records ALTER COLUMN input_tail SET STORAGE EXTERNAL,
  ALTER COLUMN payload SET STORAGE EXTERNAL;
ALTER TABLE perdure.receipts ALTER COLUMN payload SET STORAGE EXTERNAL;

-- What the driver reads of a run and of a receipt, in the order that it expects.
CREATE VIEW perdure.runs_read AS
SELECT run_id, function, version, state, input_sha256, holder, generation, cancel_requested,
       problem, created_at, started_at, finished_at, erased_at, erased_by, erased_why, erasing,
       output_piece, output_packing, output, run_number
FROM perdure.runs;

CREATE VIEW perdure.receipts_read AS
SELECT operation_key, run_id, idempotency_key, target, ordinal, support, arguments_sha256, state,
       attempt, holder, generation, version, payload, problem, first_claimed_at, claimed_at,
       settled_at, settle_seconds, resend_after, lookups, lookup_at, lookup_holder, exhausted,
       earlier_unknown, residual_duplicate_risk, decided_by, decided_why, handler_id,
       receipt_number
FROM perdure.receipts;
