from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.session import headers
from perdure.session.attempts import Standing, Step, StepAttempts
from perdure.session.codec import Codec, FoldedMessage
from perdure.session.codec.ui_inputs import ANSWERS
from perdure.session.event_log import EventLog
from perdure.session.lifecycle import Lifecycle, read_lifecycle
from perdure.session.message import WireMessage


class RunInfo(msgspec.Struct, frozen=True):
    """A run as readers have it. `parent` and `regenerates` name messages, `fork_of` a node.

    `invocation_id` is of the run's start, `goes_on_as` of what opened it last.
    """

    run_id: str
    client_id: str
    invocation_id: str
    lifecycle: Lifecycle
    steps: list[Step]
    start_serial: str
    parent: str | None
    fork_of: str | None
    regenerates: str | None
    goes_on_as: str = ""


class RunNode:
    """One run: the events of its life, its steps, and all that was put out or sent within it.

    Everything is derived from what was seen, in the order of serials, so that reading it takes no
    account of the order in which it was seen.
    """

    def __init__(self, key: str, codec: Codec) -> None:
        self.key = key
        self._codec = codec
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
            goes_on_as=self._opened_as(),
        )

    def messages(self) -> Sequence[FoldedMessage]:
        """Return the messages of the run, those of attempts that count."""
        return self.log.messages()

    def given(self) -> Sequence[FoldedMessage]:
        """Return what was sent to the run and is no steering: what a fork begins with."""
        log = EventLog(self._codec, self.attempts.standing)
        steers = {sent.serial for sent in self.steers}
        for sent in self.inputs:
            if sent.serial not in steers:
                log.put(sent)
        return log.messages()

    @property
    def unfinished(self) -> set[str]:
        """The messages, by id, that steps which are not complete have put something out for."""
        complete = self.attempts.complete
        outputs = [one for one in self.log.entries() if one.name == headers.AI_OUTPUT]
        left = [one for one in outputs if one.header(headers.STEP_ID) not in complete]
        return {one.header(headers.CODEC_MESSAGE_ID) for one in left}

    @property
    def inputs(self) -> list[WireMessage]:
        """What was sent to the run, in the order of serials: steering, answers, resumptions."""
        return [message for message in self.log.entries() if message.name == headers.AI_INPUT]

    @property
    def steers(self) -> list[WireMessage]:
        """What was said to the run while it went on: neither an answer, nor what resumed it."""
        resumed = {event.header(headers.INPUT_CODEC_MESSAGE_ID) for event in self._events.values()}
        return [
            sent
            for sent in self.inputs
            if sent.codec.get(headers.KIND) not in ANSWERS
            and sent.header(headers.CODEC_MESSAGE_ID) not in resumed
        ]

    @property
    def consumed(self) -> set[str]:
        """The inputs that outputs say to have taken up, those of attempts that count."""
        answered: set[str] = set()
        for message in self.log.entries():
            listed = _listed(message.header(headers.STEER_CODEC_MESSAGE_IDS))
            if listed and self.attempts.standing(message) is Standing.COUNTS:
                answered.update(listed)
        return answered

    @property
    def unanswered(self) -> list[str]:
        """The steering, by codec message id, that no output says to have taken up."""
        asked = dict.fromkeys(sent.header(headers.CODEC_MESSAGE_ID) for sent in self.steers)
        consumed = self.consumed if asked else set[str]()
        return [key for key in asked if key not in consumed]

    @property
    def invoked_at(self) -> str:
        """The serial of the last input that has resumed the run; '' if none has.

        A run that goes on by itself, for what it was asked at first, is not invoked anew.
        """
        resumed = {
            event.header(headers.INPUT_CODEC_MESSAGE_ID): event.serial
            for event in sorted(self._events.values(), key=lambda event: event.serial)
            if event.name == headers.AI_RUN_RESUME
        }
        asked = [
            sent.serial
            for sent in self.inputs
            if sent.serial < resumed.get(sent.header(headers.CODEC_MESSAGE_ID), "")
        ]
        return max(asked, default="")

    def resumed_since(self, serial: str) -> bool:
        """Whether the run was resumed after a serial."""
        events = self._events.values()
        return any(e.name == headers.AI_RUN_RESUME and e.serial > serial for e in events)

    @property
    def _origin(self) -> WireMessage | None:
        """The start of the run, or the earliest sign of it while the start is not seen."""
        starts = [e for e in self._events.values() if e.name == headers.AI_RUN_START]
        signs = starts or [self.log.first(), self.attempts.first_start()]
        known = [sign for sign in signs if sign is not None]
        return min(known, key=lambda sign: sign.serial, default=None)

    def _opened_as(self) -> str:
        opened = headers.AI_RUN_START, headers.AI_RUN_RESUME
        events = [event for event in self._events.values() if event.name in opened]
        last = max(events, key=lambda event: event.serial, default=None)
        return last.header(headers.INVOCATION_ID) if last else ""

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
