-- Who applies an effect, so that whoever looks at its receipt knows which lookup asks about it.

ALTER TABLE receipts ADD COLUMN handler_id TEXT;
