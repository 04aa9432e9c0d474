-- Blobs: large values that stand in a store outside of this file.
--
-- A packing of 4 or more says that a value ends with the 32 bytes of the name of a blob. Here stand
-- those names of which no row has any: since when a blob is about to be needed, or 0 for one that
-- nothing can need any more. A row takes the name it needs away from here, and leaves it here when
-- it goes. Each name is of one row alone.

CREATE TABLE blobs (
  name BLOB PRIMARY KEY,
  since REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX blobs_since ON blobs (since);

CREATE TRIGGER records_need_blob AFTER INSERT ON records
WHEN NEW.input_packing >= 4 OR NEW.payload_packing >= 4 BEGIN
  SELECT RAISE(ABORT, 'a blob was collected') WHERE NEW.input_packing >= 4 AND NOT EXISTS (
    SELECT 1 FROM blobs WHERE name = substr(NEW.input_tail, -32) AND since > 0);
  SELECT RAISE(ABORT, 'a blob was collected') WHERE NEW.payload_packing >= 4 AND NOT EXISTS (
    SELECT 1 FROM blobs WHERE name = substr(NEW.payload, -32) AND since > 0);
  DELETE FROM blobs WHERE NEW.input_packing >= 4 AND name = substr(NEW.input_tail, -32);
  DELETE FROM blobs WHERE NEW.payload_packing >= 4 AND name = substr(NEW.payload, -32);
END;

CREATE TRIGGER records_leave_blob AFTER DELETE ON records
WHEN OLD.input_packing >= 4 OR OLD.payload_packing >= 4 BEGIN
  INSERT INTO blobs (name, since) SELECT substr(OLD.input_tail, -32), 0 WHERE OLD.input_packing >= 4;
  INSERT INTO blobs (name, since) SELECT substr(OLD.payload, -32), 0 WHERE OLD.payload_packing >= 4;
END;

CREATE TRIGGER pieces_need_blob AFTER INSERT ON pieces WHEN NEW.packing >= 4 BEGIN
  SELECT RAISE(ABORT, 'a blob was collected') WHERE NOT EXISTS (
    SELECT 1 FROM blobs WHERE name = substr(NEW.data, -32) AND since > 0);
  DELETE FROM blobs WHERE name = substr(NEW.data, -32);
END;

CREATE TRIGGER pieces_leave_blob AFTER DELETE ON pieces WHEN OLD.packing >= 4 BEGIN
  INSERT INTO blobs (name, since) VALUES (substr(OLD.data, -32), 0);
END;

CREATE TRIGGER runs_need_blob AFTER INSERT ON runs
WHEN NEW.input_packing >= 4 OR NEW.output_packing >= 4 BEGIN
  SELECT RAISE(ABORT, 'a blob was collected') WHERE NEW.input_packing >= 4 AND NOT EXISTS (
    SELECT 1 FROM blobs WHERE name = substr(NEW.input, -32) AND since > 0);
  SELECT RAISE(ABORT, 'a blob was collected') WHERE NEW.output_packing >= 4 AND NOT EXISTS (
    SELECT 1 FROM blobs WHERE name = substr(NEW.output, -32) AND since > 0);
  DELETE FROM blobs WHERE NEW.input_packing >= 4 AND name = substr(NEW.input, -32);
  DELETE FROM blobs WHERE NEW.output_packing >= 4 AND name = substr(NEW.output, -32);
END;

CREATE TRIGGER runs_leave_blob AFTER DELETE ON runs
WHEN OLD.input_packing >= 4 OR OLD.output_packing >= 4 BEGIN
  INSERT INTO blobs (name, since) SELECT substr(OLD.input, -32), 0
  WHERE OLD.input_packing >= 4 AND length(OLD.input) >= 32;
  INSERT INTO blobs (name, since) SELECT substr(OLD.output, -32), 0
  WHERE OLD.output_packing >= 4 AND length(OLD.output) >= 32;
END;

-- A value is replaced by the end of a run, by an erasure, and where it is encrypted anew.
CREATE TRIGGER runs_change_input AFTER UPDATE OF input ON runs
WHEN (OLD.input_packing >= 4 OR NEW.input_packing >= 4)
AND substr(NEW.input, -32) IS NOT substr(OLD.input, -32) BEGIN
  SELECT RAISE(ABORT, 'a blob was collected')
  WHERE NEW.input_packing >= 4 AND length(NEW.input) >= 32 AND NOT EXISTS (
    SELECT 1 FROM blobs WHERE name = substr(NEW.input, -32) AND since > 0);
  DELETE FROM blobs WHERE NEW.input_packing >= 4 AND name = substr(NEW.input, -32) AND since > 0;
  INSERT INTO blobs (name, since) SELECT substr(OLD.input, -32), 0
  WHERE OLD.input_packing >= 4 AND length(OLD.input) >= 32;
END;

CREATE TRIGGER runs_change_output AFTER UPDATE OF output ON runs
WHEN (OLD.output_packing >= 4 OR NEW.output_packing >= 4)
AND substr(NEW.output, -32) IS NOT substr(OLD.output, -32) BEGIN
  SELECT RAISE(ABORT, 'a blob was collected')
  WHERE NEW.output_packing >= 4 AND length(NEW.output) >= 32 AND NOT EXISTS (
    SELECT 1 FROM blobs WHERE name = substr(NEW.output, -32) AND since > 0);
  DELETE FROM blobs WHERE NEW.output_packing >= 4 AND name = substr(NEW.output, -32) AND since > 0;
  INSERT INTO blobs (name, since) SELECT substr(OLD.output, -32), 0
  WHERE OLD.output_packing >= 4 AND length(OLD.output) >= 32;
END;

CREATE TRIGGER records_change_input_tail AFTER UPDATE OF input_tail ON records
WHEN (OLD.input_packing >= 4 OR NEW.input_packing >= 4)
AND substr(NEW.input_tail, -32) IS NOT substr(OLD.input_tail, -32) BEGIN
  SELECT RAISE(ABORT, 'a blob was collected')
  WHERE NEW.input_packing >= 4 AND length(NEW.input_tail) >= 32 AND NOT EXISTS (
    SELECT 1 FROM blobs WHERE name = substr(NEW.input_tail, -32) AND since > 0);
  DELETE FROM blobs WHERE NEW.input_packing >= 4 AND name = substr(NEW.input_tail, -32) AND since > 0;
  INSERT INTO blobs (name, since) SELECT substr(OLD.input_tail, -32), 0
  WHERE OLD.input_packing >= 4 AND length(OLD.input_tail) >= 32;
END;

CREATE TRIGGER records_change_payload AFTER UPDATE OF payload ON records
WHEN (OLD.payload_packing >= 4 OR NEW.payload_packing >= 4)
AND substr(NEW.payload, -32) IS NOT substr(OLD.payload, -32) BEGIN
  SELECT RAISE(ABORT, 'a blob was collected')
  WHERE NEW.payload_packing >= 4 AND length(NEW.payload) >= 32 AND NOT EXISTS (
    SELECT 1 FROM blobs WHERE name = substr(NEW.payload, -32) AND since > 0);
  DELETE FROM blobs WHERE NEW.payload_packing >= 4 AND name = substr(NEW.payload, -32) AND since > 0;
  INSERT INTO blobs (name, since) SELECT substr(OLD.payload, -32), 0
  WHERE OLD.payload_packing >= 4 AND length(OLD.payload) >= 32;
END;

CREATE TRIGGER pieces_change_data AFTER UPDATE OF data ON pieces
WHEN (OLD.packing >= 4 OR NEW.packing >= 4)
AND substr(NEW.data, -32) IS NOT substr(OLD.data, -32) BEGIN
  SELECT RAISE(ABORT, 'a blob was collected')
  WHERE NEW.packing >= 4 AND length(NEW.data) >= 32 AND NOT EXISTS (
    SELECT 1 FROM blobs WHERE name = substr(NEW.data, -32) AND since > 0);
  DELETE FROM blobs WHERE NEW.packing >= 4 AND name = substr(NEW.data, -32) AND since > 0;
  INSERT INTO blobs (name, since) SELECT substr(OLD.data, -32), 0
  WHERE OLD.packing >= 4 AND length(OLD.data) >= 32;
END;
