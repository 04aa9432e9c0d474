-- Erasure: what was deleted on request, and the tombstones that say so.
--
-- An erased run keeps its row: its id, function, state and times, and the digest of its input, by
-- which a start under the same id is recognised. While `erasing` is 1, some of it is still there.
-- A tombstone stands where a receipt was: the effect must not be sent again.

ALTER TABLE runs ADD COLUMN erased_at REAL;
ALTER TABLE runs ADD COLUMN erased_by TEXT;
ALTER TABLE runs ADD COLUMN erased_why TEXT;
ALTER TABLE runs ADD COLUMN erasing INTEGER NOT NULL DEFAULT 0;

CREATE TABLE tombstones (
  operation_key TEXT PRIMARY KEY,
  state TEXT NOT NULL,
  erased_at REAL NOT NULL,
  erased_by TEXT NOT NULL,
  erased_why TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Who else needs a piece, without looking at all of them.
CREATE INDEX pieces_parent ON pieces (parent) WHERE parent IS NOT NULL;
CREATE INDEX records_piece ON records (input_piece) WHERE input_piece IS NOT NULL;
