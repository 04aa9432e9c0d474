-- Checkpoints: how far something in a run has come, one for each run and checkpoint id.
--
-- One is written only over what its writer knows: revision and cursor are looked at in the
-- transaction that writes. They go with their run.

CREATE TABLE checkpoints (
  checkpoint_number INTEGER PRIMARY KEY,
  run_number INTEGER NOT NULL,
  checkpoint_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  revision INTEGER NOT NULL,
  cursor INTEGER NOT NULL,
  state BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX checkpoints_key ON checkpoints (run_number, checkpoint_id);
