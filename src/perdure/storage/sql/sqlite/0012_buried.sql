-- Of which run, or of whatever else, the receipt was that a tombstone stands for: the SHA-256 of its
-- id, since the id itself may be what was to be erased. None where a tombstone is older.

ALTER TABLE tombstones ADD COLUMN run_sha256 BLOB;

CREATE INDEX tombstones_run ON tombstones (run_sha256) WHERE run_sha256 IS NOT NULL;
