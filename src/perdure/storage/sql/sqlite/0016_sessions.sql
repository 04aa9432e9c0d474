-- Sessions: the messages that people see, each as it stands, and what was appended to it since.
--
-- An append is one row of session_appends. A message takes in all of its own at once, when its stream
-- or its step ends, when it is replaced or when they are many: its version is that of the last one
-- that it took in.
--
-- A session keeps its row when it is erased: `floor` is the last version that is gone, so that what
-- comes later has higher ones. It is `erasing` while rows from before are still there.

CREATE TABLE sessions (
  session_number INTEGER PRIMARY KEY,
  session TEXT NOT NULL UNIQUE,
  head INTEGER NOT NULL DEFAULT 0,
  floor INTEGER NOT NULL DEFAULT 0,
  erasing INTEGER NOT NULL DEFAULT 0,
  changed_at REAL NOT NULL
) STRICT;

CREATE INDEX sessions_erasing ON sessions (session_number) WHERE erasing;

CREATE TABLE session_messages (
  message_number INTEGER PRIMARY KEY,
  session_number INTEGER NOT NULL,
  serial INTEGER NOT NULL,
  version INTEGER NOT NULL,
  message_id TEXT NOT NULL,
  name TEXT NOT NULL,
  client_id TEXT NOT NULL,
  run_id TEXT,
  created_at REAL NOT NULL,
  ephemeral INTEGER NOT NULL,
  document BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX session_messages_serial ON session_messages (session_number, serial);
CREATE UNIQUE INDEX session_messages_id ON session_messages (session_number, message_id);
CREATE INDEX session_messages_version ON session_messages (session_number, version);
CREATE INDEX session_messages_ephemeral ON session_messages (created_at) WHERE ephemeral;

CREATE TABLE session_appends (
  append_number INTEGER PRIMARY KEY,
  session_number INTEGER NOT NULL,
  serial INTEGER NOT NULL,
  version INTEGER NOT NULL,
  client_id TEXT NOT NULL,
  document BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX session_appends_version ON session_appends (session_number, version);
