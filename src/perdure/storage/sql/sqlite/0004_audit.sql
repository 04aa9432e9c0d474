-- The audit: what was said of each effect, one row a record.
--
-- A column a key, null where a record does not have it.

CREATE TABLE audit (
  audit_number INTEGER PRIMARY KEY,
  at REAL NOT NULL,
  operation_key TEXT,
  operation_target_ref TEXT,
  operation_support TEXT,
  operation_state TEXT,
  operation_first_execution INTEGER CHECK (operation_first_execution IN (0, 1)),
  operation_replay_suppressed INTEGER CHECK (operation_replay_suppressed IN (0, 1)),
  operation_reconciliation_required INTEGER CHECK (operation_reconciliation_required IN (0, 1)),
  operation_reconciliation_exhausted INTEGER CHECK (operation_reconciliation_exhausted IN (0, 1)),
  operation_residual_duplicate_risk INTEGER CHECK (operation_residual_duplicate_risk IN (0, 1))
) STRICT;

CREATE INDEX audit_operation ON audit (operation_key);
