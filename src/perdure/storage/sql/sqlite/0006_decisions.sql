-- Decisions: what people said of effects that nobody knew of.
--
-- A receipt shows the last one; a later attempt of the same effect may need another. They go with
-- their receipt.

CREATE TABLE decisions (
  operation_key TEXT NOT NULL,
  version INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  decision TEXT NOT NULL,
  decided_by TEXT NOT NULL,
  decided_why TEXT NOT NULL,
  decided_at REAL NOT NULL,
  PRIMARY KEY (operation_key, version)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER decisions_go AFTER DELETE ON receipts BEGIN
  DELETE FROM decisions WHERE operation_key = OLD.operation_key;
END;
