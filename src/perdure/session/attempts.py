from __future__ import annotations

from enum import Enum, StrEnum

import msgspec

from perdure.session import headers
from perdure.session.message import WireMessage


class StepStatus(StrEnum):
    """Where a step stands. A failed attempt may be followed by another."""

    ACTIVE = "active"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Standing(Enum):
    """Whether an output counts, and if it does not, what it is."""

    COUNTS = "counts"
    REPLACED = "replaced"
    """Of an attempt that another followed, and written before that one began."""
    VOID = "void"
    """Written by an attempt after another took its place, or by one whose start is not seen."""


class Step(msgspec.Struct, frozen=True):
    """A step of a run: how its attempt that counts went, and how many there were."""

    step_id: str
    status: StepStatus
    attempt_count: int
    step_client_id: str


class _Attempts:
    """The starts and ends of one step, by the serial of the attempt's start."""

    def __init__(self) -> None:
        self.starts: dict[str, WireMessage] = {}
        self.ends: dict[str, WireMessage] = {}

    @property
    def counting(self) -> str:
        """The attempt that counts: the latest start, or the latest known where none was seen."""
        return max(self.starts or self.ends)

    def step(self, step_id: str) -> Step:
        start, end = self.starts.get(self.counting), self.ends.get(self.counting)
        known = start or end
        return Step(
            step_id,
            _status(end) if end else StepStatus.ACTIVE,
            len(self.starts.keys() | self.ends.keys()),
            known.header(headers.STEP_CLIENT_ID) if known else "",
        )


class StepAttempts:
    """Which attempt of each step of a run counts: the one whose start has the highest serial.

    An attempt is its start's serial, and outputs refer back to it. So it makes no difference when
    an output arrives: what a dead attempt still had under way is of the dead attempt.
    """

    def __init__(self) -> None:
        self._steps: dict[str, _Attempts] = {}

    def note(self, event: WireMessage) -> str | None:
        """Take in a start or an end; return the id of the step if another attempt counts now.

        An event without a step, or an end that does not say of which attempt, is passed over.
        """
        step_id = event.header(headers.STEP_ID)
        attempt = event.header(headers.STEP_START_SERIAL)
        if not step_id or (event.name == headers.AI_STEP_END and not attempt):
            return None
        attempts = self._steps.setdefault(step_id, _Attempts())
        if event.name == headers.AI_STEP_END:
            # The highest serial is kept, so that a second end counts the same however it arrives.
            known = attempts.ends.get(attempt)
            if known is None or known.serial <= event.serial:
                attempts.ends[attempt] = event
            return None
        before = max(attempts.starts, default="")
        attempts.starts[event.serial] = event
        return step_id if event.serial > before else None

    def standing(self, output: WireMessage) -> Standing:
        """Return whether an output counts: it is of the attempt that does, or none is known."""
        attempt = output.header(headers.STEP_START_SERIAL)
        attempts = self._steps.get(output.header(headers.STEP_ID))
        if not attempt or attempts is None or not attempts.starts or attempt == attempts.counting:
            return Standing.COUNTS
        return Standing.REPLACED if output.serial < attempts.counting else Standing.VOID

    def steps(self) -> list[Step]:
        """Return the steps in the order of the attempts that count."""
        order = sorted(self._steps, key=lambda step_id: self._steps[step_id].counting)
        return [self._steps[step_id].step(step_id) for step_id in order]

    @property
    def complete(self) -> list[str]:
        """The steps that are complete, by id, in the order of the attempts that count."""
        return [step.step_id for step in self.steps() if step.status is StepStatus.COMPLETE]

    def left_open(self) -> list[tuple[Step, str]]:
        """Return the steps whose attempt that counts was begun and not ended, with its serial."""
        left = [(self._steps[step.step_id], step) for step in self.steps()]
        return [
            (step, known.counting)
            for known, step in left
            if known.counting in known.starts and known.counting not in known.ends
        ]

    def first_start(self) -> WireMessage | None:
        """Return the start with the lowest serial, of any step."""
        starts = [event for known in self._steps.values() for event in known.starts.values()]
        return min(starts, key=lambda event: event.serial, default=None)


def _status(end: WireMessage) -> StepStatus:
    """Return how an end says that the attempt went; what no reader knows is no success."""
    try:
        return StepStatus(end.header(headers.STEP_REASON) or StepStatus.COMPLETE)
    except ValueError:
        return StepStatus.FAILED
