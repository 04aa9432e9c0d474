-- Turns: runs that answer what was said in a session, and whether their end is told there.
--
-- A turn is open from its first claim on until the session says how its run ended; whoever sweeps
-- looks at those whose run has ended. It holds ids alone, and goes with what its run holds.

CREATE TABLE perdure.turns (
  run_id text COLLATE "C" PRIMARY KEY,
  session text COLLATE "C" NOT NULL,
  event_id text NOT NULL,
  open boolean NOT NULL DEFAULT true
);

CREATE INDEX turns_open ON perdure.turns (run_id) WHERE open;
CREATE INDEX turns_of_session ON perdure.turns (session, run_id);

CREATE FUNCTION perdure.forget_turn() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM perdure.turns WHERE run_id = old.run_id;
  RETURN NULL;
END $$;

CREATE TRIGGER turns_of_deleted_runs AFTER DELETE ON perdure.runs
FOR EACH ROW EXECUTE FUNCTION perdure.forget_turn();

CREATE TRIGGER turns_of_erased_runs AFTER UPDATE OF erased_at ON perdure.runs
FOR EACH ROW WHEN (new.erased_at IS NOT NULL) EXECUTE FUNCTION perdure.forget_turn();
