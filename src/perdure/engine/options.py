from __future__ import annotations

from typing import Final

import msgspec

from perdure.errors import InvalidOptions

_NAME_CHARACTERS: Final = 128


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker behaves.

    `name` shows up in timelines and need not be unique. `concurrency` bounds the runs that it
    executes at once. `lease_seconds` is how long its runs stay its own when it stops answering
    without having died; a death on the same host is noticed at once, within `sweep_seconds`.
    `poll_seconds` is how often it looks for work that another process wrote, and
    `reconcile_seconds` how often for effects whose targets are to be asked. When it closes,
    operations under way have `drain_seconds` to end and be recorded before they are cancelled.
    A run that does nothing but wait, for a time or for what comes from outside, stays in memory for
    `linger_seconds`, or until another one needs its place; then only rows are left of it.
    """

    name: str = "worker"
    concurrency: int = 100
    lease_seconds: float = 15.0
    sweep_seconds: float = 0.25
    poll_seconds: float = 0.05
    reconcile_seconds: float = 1.0
    drain_seconds: float = 20.0
    linger_seconds: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what no worker can do: `InvalidOptions`."""
        if not (self.name.isprintable() and 0 < len(self.name) <= _NAME_CHARACTERS):
            raise InvalidOptions(
                f"a worker's name is 1 to {_NAME_CHARACTERS} characters that can be shown in one"
                f" line, not {self.name[: _NAME_CHARACTERS + 1]!r}"
            )
        if self.concurrency < 1:
            raise InvalidOptions(f"a worker's concurrency is 1 or more, not {self.concurrency!r}")
        for name in ("sweep_seconds", "drain_seconds", "linger_seconds"):
            if not getattr(self, name) >= 0:
                raise InvalidOptions(f"a worker's {name} is 0 or more, not {getattr(self, name)!r}")
        for name in ("lease_seconds", "poll_seconds", "reconcile_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidOptions(f"a worker's {name} is over 0, not {getattr(self, name)!r}")
