-- What stopped a run, as one word that statements can compare: the problem itself may be encrypted.

ALTER TABLE runs ADD COLUMN problem_code TEXT;
UPDATE runs SET problem_code = json_extract(CAST(problem AS TEXT), '$.code')
WHERE problem IS NOT NULL;
