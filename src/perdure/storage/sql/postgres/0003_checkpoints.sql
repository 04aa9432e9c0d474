-- Checkpoints: how far something in a run has come, one for each run and checkpoint id.
--
-- One is written only over what its writer knows: revision and cursor are looked at under the lock
-- of the row, and the run's row is locked against an erasure. They go with their run.

CREATE TABLE perdure.checkpoints (
  checkpoint_number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_number bigint NOT NULL,
  checkpoint_id text COLLATE "C" NOT NULL,
  kind text NOT NULL,
  revision bigint NOT NULL,
  cursor bigint NOT NULL,
  state bytea NOT NULL
);
CREATE UNIQUE INDEX checkpoints_key ON perdure.checkpoints (run_number, checkpoint_id);
