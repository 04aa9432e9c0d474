from __future__ import annotations

import msgspec


class Fence(msgspec.Struct, frozen=True):
    """The proof of ownership that every write of a run carries in its WHERE clause.

    `generation` grows each time the run is claimed, so a worker that was thought dead writes
    nothing once another has taken over, whatever it is called.
    """

    run_id: str
    holder: str
    generation: int
