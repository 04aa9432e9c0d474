-- Blobs: large values that stand in a store outside of this database.
--
-- A packing of 4 or more says that a value ends with the 32 bytes of the name of a blob. Here stand
-- those names of which no row has any: since when a blob is about to be needed, or 0 for one that
-- nothing can need any more. A row takes the name it needs away from here, and leaves it here when
-- it goes. Each name is of one row alone.

CREATE TABLE perdure.blobs (
  name bytea PRIMARY KEY,
  since double precision NOT NULL
);
CREATE INDEX blobs_since ON perdure.blobs (since);

CREATE FUNCTION perdure.need_blob(packing smallint, value bytea) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF packing >= 4 AND length(value) >= 32 THEN
    DELETE FROM perdure.blobs
    WHERE name = substring(value FROM length(value) - 31) AND since > 0;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'a blob was collected' USING ERRCODE = 'PB001';
    END IF;
  END IF;
END $$;

CREATE FUNCTION perdure.leave_blob(packing smallint, value bytea) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF packing >= 4 AND length(value) >= 32 THEN
    INSERT INTO perdure.blobs (name, since) VALUES (substring(value FROM length(value) - 31), 0);
  END IF;
END $$;

-- A value is replaced by the end of a run, by an erasure, and where it is encrypted anew.
CREATE FUNCTION perdure.change_blob(
  old_packing smallint, old bytea, new_packing smallint, new bytea) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF substring(old FROM length(old) - 31) IS DISTINCT FROM substring(new FROM length(new) - 31) THEN
    PERFORM perdure.leave_blob(old_packing, old);
    PERFORM perdure.need_blob(new_packing, new);
  END IF;
END $$;

CREATE FUNCTION perdure.records_blobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    PERFORM perdure.need_blob(NEW.input_packing, NEW.input_tail);
    PERFORM perdure.need_blob(NEW.payload_packing, NEW.payload);
  ELSIF TG_OP = 'DELETE' THEN
    PERFORM perdure.leave_blob(OLD.input_packing, OLD.input_tail);
    PERFORM perdure.leave_blob(OLD.payload_packing, OLD.payload);
  ELSE
    PERFORM perdure.change_blob(OLD.input_packing, OLD.input_tail, NEW.input_packing,
                                NEW.input_tail);
    PERFORM perdure.change_blob(OLD.payload_packing, OLD.payload, NEW.payload_packing,
                                NEW.payload);
  END IF;
  RETURN NULL;
END $$;

CREATE FUNCTION perdure.pieces_blobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    PERFORM perdure.need_blob(NEW.packing, NEW.data);
  ELSIF TG_OP = 'DELETE' THEN
    PERFORM perdure.leave_blob(OLD.packing, OLD.data);
  ELSE
    PERFORM perdure.change_blob(OLD.packing, OLD.data, NEW.packing, NEW.data);
  END IF;
  RETURN NULL;
END $$;

CREATE FUNCTION perdure.runs_blobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    PERFORM perdure.need_blob(NEW.input_packing, NEW.input);
    PERFORM perdure.need_blob(NEW.output_packing, NEW.output);
  ELSIF TG_OP = 'DELETE' THEN
    PERFORM perdure.leave_blob(OLD.input_packing, OLD.input);
    PERFORM perdure.leave_blob(OLD.output_packing, OLD.output);
  ELSE
    PERFORM perdure.change_blob(OLD.input_packing, OLD.input, NEW.input_packing, NEW.input);
    PERFORM perdure.change_blob(OLD.output_packing, OLD.output, NEW.output_packing, NEW.output);
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER records_need_blob AFTER INSERT ON perdure.records FOR EACH ROW
WHEN (NEW.input_packing >= 4 OR NEW.payload_packing >= 4)
EXECUTE FUNCTION perdure.records_blobs();

CREATE TRIGGER records_change_blob AFTER UPDATE OF input_tail, payload ON perdure.records
FOR EACH ROW WHEN (OLD.input_packing >= 4 OR OLD.payload_packing >= 4)
EXECUTE FUNCTION perdure.records_blobs();

CREATE TRIGGER records_leave_blob AFTER DELETE ON perdure.records FOR EACH ROW
WHEN (OLD.input_packing >= 4 OR OLD.payload_packing >= 4)
EXECUTE FUNCTION perdure.records_blobs();

CREATE TRIGGER pieces_need_blob AFTER INSERT ON perdure.pieces FOR EACH ROW
WHEN (NEW.packing >= 4) EXECUTE FUNCTION perdure.pieces_blobs();

CREATE TRIGGER pieces_change_blob AFTER UPDATE OF data ON perdure.pieces FOR EACH ROW
WHEN (OLD.packing >= 4) EXECUTE FUNCTION perdure.pieces_blobs();

CREATE TRIGGER pieces_leave_blob AFTER DELETE ON perdure.pieces FOR EACH ROW
WHEN (OLD.packing >= 4) EXECUTE FUNCTION perdure.pieces_blobs();

CREATE TRIGGER runs_need_blob AFTER INSERT ON perdure.runs FOR EACH ROW
WHEN (NEW.input_packing >= 4 OR NEW.output_packing >= 4)
EXECUTE FUNCTION perdure.runs_blobs();

CREATE TRIGGER runs_change_blob AFTER UPDATE OF input, output ON perdure.runs FOR EACH ROW
WHEN (OLD.input_packing >= 4 OR OLD.output_packing >= 4 OR NEW.output_packing >= 4)
EXECUTE FUNCTION perdure.runs_blobs();

CREATE TRIGGER runs_leave_blob AFTER DELETE ON perdure.runs FOR EACH ROW
WHEN (OLD.input_packing >= 4 OR OLD.output_packing >= 4)
EXECUTE FUNCTION perdure.runs_blobs();
