-- Large inputs and outputs of runs, and large answers, share pieces as the inputs of records do.

ALTER TABLE runs ADD COLUMN input_packing INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN input_piece INTEGER;
ALTER TABLE runs ADD COLUMN output_packing INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN output_piece INTEGER;
ALTER TABLE records ADD COLUMN payload_piece INTEGER;

CREATE INDEX runs_input_piece ON runs (input_piece) WHERE input_piece IS NOT NULL;
CREATE INDEX runs_output_piece ON runs (output_piece) WHERE output_piece IS NOT NULL;
CREATE INDEX records_payload_piece ON records (payload_piece) WHERE payload_piece IS NOT NULL;
