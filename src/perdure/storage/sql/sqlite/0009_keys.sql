-- The keys that values are sealed with, so that whoever opens the file without one is told at once.
--
-- Only ids stand here, and a proof of each, which does not tell the key.

CREATE TABLE keys (
  key_id TEXT PRIMARY KEY,
  proof BLOB NOT NULL
) STRICT, WITHOUT ROWID;
