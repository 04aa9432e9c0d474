-- Waiting: what a run waits for while nobody executes it, and the messages that reach it.
--
-- A run sleeps until `wake_at`, or is suspended until a message comes that one of its waits awaits,
-- and no longer than until `wake_at`, where that is not null.

ALTER TABLE perdure.runs ADD COLUMN wake_at double precision,
  ADD COLUMN deadline_at double precision,
  ADD COLUMN parent text COLLATE "C";

CREATE INDEX runs_due ON perdure.runs (wake_at)
WHERE state IN ('sleeping', 'suspended') AND wake_at IS NOT NULL;
CREATE INDEX runs_parent ON perdure.runs (parent) WHERE parent IS NOT NULL;

-- A wait may have no end of its own.
ALTER TABLE perdure.timers ALTER COLUMN wake_at DROP NOT NULL,
  ADD COLUMN awaits text COLLATE "C";

-- A message is there once for each run and id, also after an operation took it. Whoever writes one
-- locks its run's row before, so that the numbers of a run's messages are in the order in which
-- they came, and whoever puts the run away sees those that came before.
CREATE TABLE perdure.messages (
  message_number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_number bigint NOT NULL,
  message_id text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  edition integer NOT NULL,
  sent_by text NOT NULL,
  sent_at double precision NOT NULL,
  payload bytea,
  taken_step text COLLATE "C",
  taken_sequence bigint,
  taken_at double precision
);
CREATE UNIQUE INDEX messages_key ON perdure.messages (run_number, message_id);
CREATE INDEX messages_waiting ON perdure.messages (run_number, name, message_number)
WHERE taken_at IS NULL;

CREATE FUNCTION perdure.messages_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE perdure.runs SET state = 'pending', wake_at = NULL
  WHERE run_number = NEW.run_number AND state = 'suspended' AND EXISTS (
    SELECT 1 FROM perdure.timers AS timers
    WHERE timers.run_number = NEW.run_number AND timers.awaits = NEW.name);
  RETURN NULL;
END $$;

CREATE TRIGGER messages_wake AFTER INSERT ON perdure.messages FOR EACH ROW
WHEN (NEW.taken_at IS NULL) EXECUTE FUNCTION perdure.messages_wake();

-- The end of a run is a message to the one that started it, which may go on if it failed.
CREATE FUNCTION perdure.runs_tell_parent() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  told bigint;
BEGIN
  SELECT run_number INTO told FROM perdure.runs
  WHERE run_id = NEW.parent AND state NOT IN ('completed', 'cancelled') AND erased_at IS NULL
  FOR UPDATE;
  IF FOUND THEN
    INSERT INTO perdure.messages (run_number, message_id, name, edition, sent_by, sent_at)
    VALUES (told, 'perdure:run:' || NEW.run_id, 'perdure:run:' || NEW.run_id, 1,
            'run ' || NEW.run_id, COALESCE(NEW.finished_at, NEW.created_at))
    ON CONFLICT DO NOTHING;
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER runs_tell_parent AFTER UPDATE OF state ON perdure.runs FOR EACH ROW
WHEN (NEW.parent IS NOT NULL AND NEW.state IN ('completed', 'failed', 'cancelled')
      AND OLD.state <> NEW.state)
EXECUTE FUNCTION perdure.runs_tell_parent();

-- One that goes on after its end has not ended, unless its parent has heard of that.
CREATE FUNCTION perdure.runs_go_on() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM perdure.messages WHERE message_id = 'perdure:run:' || NEW.run_id AND taken_at IS NULL
  AND run_number = (SELECT run_number FROM perdure.runs WHERE run_id = NEW.parent);
  RETURN NULL;
END $$;

CREATE TRIGGER runs_go_on AFTER UPDATE OF state ON perdure.runs FOR EACH ROW
WHEN (NEW.parent IS NOT NULL AND OLD.state = 'failed' AND NEW.state = 'pending')
EXECUTE FUNCTION perdure.runs_go_on();

-- What a person, or a system outside, has to answer before a wait of a run is over.
--
-- An item is open while its wait is under way and nobody has answered it; one answer is written.
CREATE TABLE perdure.approvals (
  approval_number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_number bigint NOT NULL,
  item_id text COLLATE "C" NOT NULL,
  step_id text COLLATE "C" NOT NULL,
  sequence bigint NOT NULL,
  kind text NOT NULL,
  name text NOT NULL,
  asked_at double precision NOT NULL,
  arguments bytea NOT NULL,
  decision text,
  answer bytea,
  answered_by text,
  answered_at double precision
);
CREATE UNIQUE INDEX approvals_key ON perdure.approvals (run_number, item_id);
CREATE INDEX approvals_open ON perdure.approvals (approval_number) WHERE decision IS NULL;

-- What the driver reads of a run, in the order that it expects.
DROP VIEW perdure.runs_read;
CREATE VIEW perdure.runs_read AS
SELECT run_id, function, version, state, input_sha256, holder, generation, cancel_requested,
       problem, created_at, started_at, finished_at, erased_at, erased_by, erased_why, erasing,
       wake_at, deadline_at, parent, output_piece, output_packing, output, run_number
FROM perdure.runs;
