-- Sessions: the messages that people see, each as it stands, and what was appended to it since.
--
-- An append is one row of session_appends. A message takes in all of its own at once, when its stream
-- or its step ends, when it is replaced or when they are many: its version is that of the last one
-- that it took in.
-- Whoever writes to a session locks its row first, so versions are committed in their order.
--
-- A session keeps its row when it is erased: `floor` is the last version that is gone, so that what
-- comes later has higher ones. It is `erasing` while rows from before are still there.

CREATE TABLE perdure.sessions (
  session_number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  session text COLLATE "C" NOT NULL UNIQUE,
  head bigint NOT NULL DEFAULT 0,
  floor bigint NOT NULL DEFAULT 0,
  erasing boolean NOT NULL DEFAULT false,
  changed_at double precision NOT NULL
) WITH (fillfactor = 50);

CREATE INDEX sessions_erasing ON perdure.sessions (session_number) WHERE erasing;

CREATE TABLE perdure.session_messages (
  message_number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  session_number bigint NOT NULL,
  serial bigint NOT NULL,
  version bigint NOT NULL,
  message_id text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  client_id text COLLATE "C" NOT NULL,
  run_id text COLLATE "C",
  created_at double precision NOT NULL,
  ephemeral boolean NOT NULL,
  document bytea NOT NULL
);

CREATE UNIQUE INDEX session_messages_serial ON perdure.session_messages (session_number, serial);
CREATE UNIQUE INDEX session_messages_id ON perdure.session_messages (session_number, message_id);
CREATE INDEX session_messages_version ON perdure.session_messages (session_number, version);
CREATE INDEX session_messages_ephemeral ON perdure.session_messages (created_at) WHERE ephemeral;

CREATE TABLE perdure.session_appends (
  append_number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  session_number bigint NOT NULL,
  serial bigint NOT NULL,
  version bigint NOT NULL,
  client_id text COLLATE "C" NOT NULL,
  document bytea NOT NULL
);

CREATE UNIQUE INDEX session_appends_version ON perdure.session_appends (session_number, version);
