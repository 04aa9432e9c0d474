-- Schedules: what starts runs by the clock, and until when its ticks are dealt with.
--
-- A tick's run is written first, under an id made of the schedule and the tick, and `counted_to`
-- then: a crash between the two leaves a tick that is started again as the same run. Instants are
-- whole seconds, because a tick is one exactly.

CREATE TABLE perdure.schedules (
  name text COLLATE "C" PRIMARY KEY,
  function text NOT NULL,
  rule text NOT NULL,
  counted_to bigint NOT NULL,
  paused boolean NOT NULL DEFAULT false
);
