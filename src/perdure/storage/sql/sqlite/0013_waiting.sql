-- Waiting: what a run waits for while nobody executes it, and the messages that reach it.
--
-- A run sleeps until `wake_at`, or is suspended until a message comes that one of its waits awaits,
-- and no longer than until `wake_at`, where that is not null.

ALTER TABLE runs ADD COLUMN wake_at REAL;
ALTER TABLE runs ADD COLUMN deadline_at REAL;
ALTER TABLE runs ADD COLUMN parent TEXT;

CREATE INDEX runs_due ON runs (wake_at)
WHERE state IN ('sleeping', 'suspended') AND wake_at IS NOT NULL;
CREATE INDEX runs_parent ON runs (parent) WHERE parent IS NOT NULL;

-- A wait may have no end of its own.
CREATE TABLE timers_of_today (
  run_number INTEGER NOT NULL,
  step_id TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  kind TEXT NOT NULL,
  handler_id TEXT NOT NULL,
  input_sha256 BLOB NOT NULL,
  input BLOB NOT NULL,
  wake_at REAL,
  awaits TEXT,
  PRIMARY KEY (run_number, step_id, sequence)
) STRICT, WITHOUT ROWID;
INSERT INTO timers_of_today (run_number, step_id, sequence, kind, handler_id, input_sha256, input,
                             wake_at)
SELECT run_number, step_id, sequence, kind, handler_id, input_sha256, input, wake_at FROM timers;
DROP TABLE timers;
ALTER TABLE timers_of_today RENAME TO timers;

-- A message is there once for each run and id, also after an operation took it.
CREATE TABLE messages (
  message_number INTEGER PRIMARY KEY,
  run_number INTEGER NOT NULL,
  message_id TEXT NOT NULL,
  name TEXT NOT NULL,
  edition INTEGER NOT NULL,
  sent_by TEXT NOT NULL,
  sent_at REAL NOT NULL,
  payload BLOB,
  taken_step TEXT,
  taken_sequence INTEGER,
  taken_at REAL
) STRICT;

CREATE UNIQUE INDEX messages_key ON messages (run_number, message_id);
CREATE INDEX messages_waiting ON messages (run_number, name, message_number)
WHERE taken_at IS NULL;

CREATE TRIGGER messages_wake AFTER INSERT ON messages WHEN NEW.taken_at IS NULL BEGIN
  UPDATE runs SET state = 'pending', wake_at = NULL
  WHERE run_number = NEW.run_number AND state = 'suspended' AND EXISTS (
    SELECT 1 FROM timers WHERE run_number = NEW.run_number AND awaits = NEW.name);
END;

-- The end of a run is a message to the one that started it, which may go on if it failed.
CREATE TRIGGER runs_tell_parent AFTER UPDATE OF state ON runs
WHEN NEW.parent IS NOT NULL AND NEW.state IN ('completed', 'failed', 'cancelled')
AND OLD.state <> NEW.state BEGIN
  INSERT INTO messages (run_number, message_id, name, edition, sent_by, sent_at)
  SELECT run_number, 'perdure:run:' || NEW.run_id, 'perdure:run:' || NEW.run_id, 1, 'run ' || NEW.run_id,
         COALESCE(NEW.finished_at, NEW.created_at)
  FROM runs WHERE run_id = NEW.parent AND state NOT IN ('completed', 'cancelled')
  AND erased_at IS NULL
  ON CONFLICT DO NOTHING;
END;

-- One that goes on after its end has not ended, unless its parent has heard of that.
CREATE TRIGGER runs_go_on AFTER UPDATE OF state ON runs
WHEN NEW.parent IS NOT NULL AND OLD.state = 'failed' AND NEW.state = 'pending' BEGIN
  DELETE FROM messages WHERE message_id = 'perdure:run:' || NEW.run_id AND taken_at IS NULL
  AND run_number = (SELECT run_number FROM runs WHERE run_id = NEW.parent);
END;

-- What a person, or a system outside, has to answer before a wait of a run is over.
--
-- An item is open while its wait is under way and nobody has answered it; one answer is written.
CREATE TABLE approvals (
  approval_number INTEGER PRIMARY KEY,
  run_number INTEGER NOT NULL,
  item_id TEXT NOT NULL,
  step_id TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  asked_at REAL NOT NULL,
  arguments BLOB NOT NULL,
  decision TEXT,
  answer BLOB,
  answered_by TEXT,
  answered_at REAL
) STRICT;

CREATE UNIQUE INDEX approvals_key ON approvals (run_number, item_id);
CREATE INDEX approvals_open ON approvals (approval_number) WHERE decision IS NULL;
