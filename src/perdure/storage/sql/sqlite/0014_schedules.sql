-- Schedules: what starts runs by the clock, and until when its ticks are dealt with.
--
-- A tick's run is written first, under an id made of the schedule and the tick, and `counted_to`
-- then: a crash between the two leaves a tick that is started again as the same run. Instants are
-- whole seconds, because a tick is one exactly.

CREATE TABLE schedules (
  name TEXT PRIMARY KEY,
  function TEXT NOT NULL,
  rule TEXT NOT NULL,
  counted_to INTEGER NOT NULL,
  paused INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
