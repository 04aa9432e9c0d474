-- Turns: runs that answer what was said in a session, and whether their end is told there.
--
-- A turn is open from its first claim on until the session says how its run ended; whoever sweeps
-- looks at those whose run has ended. It holds ids alone, and goes with what its run holds.

CREATE TABLE turns (
  run_id TEXT PRIMARY KEY,
  session TEXT NOT NULL,
  event_id TEXT NOT NULL,
  open INTEGER NOT NULL DEFAULT 1
) STRICT, WITHOUT ROWID;

CREATE INDEX turns_open ON turns (run_id) WHERE open;
CREATE INDEX turns_of_session ON turns (session, run_id);

CREATE TRIGGER turns_of_deleted_runs AFTER DELETE ON runs
BEGIN
  DELETE FROM turns WHERE run_id = old.run_id;
END;

CREATE TRIGGER turns_of_erased_runs AFTER UPDATE OF erased_at ON runs WHEN new.erased_at IS NOT NULL
BEGIN
  DELETE FROM turns WHERE run_id = new.run_id;
END;
