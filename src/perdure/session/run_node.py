from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.session import headers
from perdure.session.attempts import Step, StepAttempts
from perdure.session.codec import Codec, FoldedMessage
from perdure.session.event_log import EventLog
from perdure.session.lifecycle import Lifecycle, read_lifecycle
from perdure.session.message import WireMessage


class RunInfo(msgspec.Struct, frozen=True):
    """A run as readers have it. `parent` and `regenerates` name messages, `fork_of` a node."""

    run_id: str
    client_id: str
    invocation_id: str
    lifecycle: Lifecycle
    steps: list[Step]
    start_serial: str
    parent: str | None
    fork_of: str | None
    regenerates: str | None


class RunNode:
    """One run: the events of its life, its steps, and all that was put out or sent within it.

    Everything is derived from what was seen, in the order of serials, so that reading it takes no
    account of the order in which it was seen.
    """

    def __init__(self, key: str, codec: Codec) -> None:
        self.key = key
        self.attempts = StepAttempts()
        self.log = EventLog(codec, self.attempts.standing)
        self._events: dict[str, WireMessage] = {}
        self._steps_with_output: set[str] = set()
        self._own_ids: set[str] = set()

    def note(self, event: WireMessage) -> None:
        """Take in an event of the run's life, or of one of its steps."""
        if event.name in headers.RUN_LIFECYCLE:
            self._events[event.serial] = event
        elif self.attempts.note(event) in self._steps_with_output:
            self.log.refold()

    def put(self, content: WireMessage) -> None:
        """Take in an output, or an input that was sent to the run."""
        self._steps_with_output.add(content.header(headers.STEP_ID))
        self._own_ids.add(content.header(headers.CODEC_MESSAGE_ID))
        self.log.put(content)

    @property
    def exists(self) -> bool:
        """Whether more is known of the run than how it went on or ended."""
        return self._origin is not None

    @property
    def started(self) -> bool:
        """Whether the start of the run is seen, which alone knows all about it for sure."""
        return any(event.name == headers.AI_RUN_START for event in self._events.values())

    @property
    def serial(self) -> str:
        """The serial that orders the node among others: of the run's start, once that is seen."""
        origin = self._origin
        assert origin is not None  # only nodes that exist are ordered
        return origin.serial

    @property
    def parent(self) -> str | None:
        """The message that the run follows.

        Only the start knows it for sure: outputs of a resumed or forked run name a message of the
        run itself, and such a parent is none.
        """
        if self.started:
            return self._from_origin(headers.PARENT)
        named = (message.header(headers.PARENT) for message in self.log.entries())
        return next((parent for parent in named if parent and parent not in self._own_ids), None)

    @property
    def regenerates(self) -> str | None:
        """The message that the run was asked to replace."""
        return self._from_origin(headers.MSG_REGENERATE)

    @property
    def info(self) -> RunInfo:
        """What readers have of the run."""
        return RunInfo(
            run_id=self.key,
            client_id=self._first_said(headers.RUN_CLIENT_ID),
            invocation_id=self._first_said(headers.INVOCATION_ID),
            lifecycle=read_lifecycle(self._events[serial] for serial in sorted(self._events)),
            steps=self.attempts.steps(),
            start_serial=self.serial,
            parent=self.parent,
            fork_of=self._from_origin(headers.FORK_OF),
            regenerates=self.regenerates,
        )

    def messages(self) -> Sequence[FoldedMessage]:
        """Return the messages of the run, those of attempts that count."""
        return self.log.messages()

    @property
    def unanswered(self) -> list[str]:
        """The inputs that were sent to the run and that no output says to have taken up."""
        answered: set[str] = set()
        asked: list[str] = []
        for message in self.log.entries():
            if message.name == headers.AI_INPUT:
                asked.append(message.header(headers.CODEC_MESSAGE_ID))
            answered.update(_listed(message.header(headers.STEER_CODEC_MESSAGE_IDS)))
        return [key for key in dict.fromkeys(asked) if key not in answered]

    @property
    def _origin(self) -> WireMessage | None:
        """The start of the run, or the earliest sign of it while the start is not seen."""
        starts = [e for e in self._events.values() if e.name == headers.AI_RUN_START]
        signs = starts or [self.log.first(), self.attempts.first_start()]
        known = [sign for sign in signs if sign is not None]
        return min(known, key=lambda sign: sign.serial, default=None)

    def _first_said(self, header: str) -> str:
        """Return what the start says, or the first that says anything while it is not seen."""
        if self.started:
            return self._from_origin(header) or ""
        found = (self._origin, self.attempts.first_start(), *self.log.entries())
        signs = [sign for sign in found if sign is not None]
        return next((said for sign in signs if (said := sign.header(header))), "")

    def _from_origin(self, header: str) -> str | None:
        origin = self._origin
        return (origin.header(header) or None) if origin else None


def _listed(header: str) -> list[str]:
    """Return the ids in a header that lists them as JSON; none if it is not that."""
    try:
        return msgspec.json.decode(header, type=list[str]) if header else []
    except msgspec.MsgspecError:
        return []
