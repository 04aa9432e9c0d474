from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import msgspec

from perdure.errors import (
    InvalidSessionArgument,
    LifecycleNotPublished,
    SessionCancelled,
    SessionError,
)
from perdure.session import headers
from perdure.session.attempts import StepStatus
from perdure.session.attribution import Attribution, attribute
from perdure.session.codec import FoldedMessage
from perdure.session.connection import Connection
from perdure.session.lifecycle import RunStatus
from perdure.session.message import WireMessage
from perdure.session.piping import PipeResult, Write, stream_failed
from perdure.session.prompt import prompt
from perdure.session.run_writer import ENDS, RunWriter
from perdure.session.step import RunStep

_STEP_AT: dict[RunStatus, StepStatus] = {
    RunStatus.COMPLETE: StepStatus.COMPLETE,
    RunStatus.CANCELLED: StepStatus.CANCELLED,
    RunStatus.ERROR: StepStatus.FAILED,
}


class SessionInvocation(msgspec.Struct, frozen=True, rename="camel"):
    """What a client asks an agent to answer: the event id of an input, and its channel."""

    input_event_id: str = ""
    session_name: str = ""


class AgentRun:
    """One turn of an agent in a session, from its start to one end, in one process or several.

    It is opened once, by `start` where this process begins or resumes it, or by `load` where
    another has. As a context manager it is detached at the end, which leaves it open for the next
    process; `end` and `suspend` are always said.
    """

    def __init__(
        self,
        connection: Connection,
        asked: SessionInvocation,
        *,
        run_id: str,
        invocation_id: str,
        adopted: bool,
        new_id: Callable[[], str],
    ) -> None:
        self.run_id = run_id
        self.invocation_id = invocation_id
        self._asked = asked
        self._adopted = adopted
        self._connection = connection
        self._writer = RunWriter(connection, new_id)
        self._steps = 0
        self._opening = False
        self._closing = asyncio.Lock()
        self._last_event: tuple[str, dict[str, str], str] | None = None
        connection.watchers.add(self._look_for_cancels)

    @property
    def cancelled(self) -> asyncio.Event:
        """Set once somebody has cancelled the run, at any time and whoever was attached then.

        A cancel is a wish: the run goes on until `end` is called.
        """
        return self._writer.cancelled

    @property
    def status(self) -> RunStatus:
        """Where the run stands, as far as it is seen."""
        return self._writer.status

    @property
    def is_open(self) -> bool:
        """Whether the run was opened here, and neither suspended nor ended."""
        return self._writer.who is not None and not self._writer.ended

    @property
    def is_over(self) -> bool:
        """Whether the run was suspended or ended here."""
        return self._writer.ended

    @property
    def view(self) -> list[FoldedMessage]:
        """The messages that the run is to answer and those it has written, as far as loaded."""
        who = self._writer.check_open()
        tree = self._connection.reader.tree
        return prompt(tree, who.anchor, run_id=who.run_id, regenerates=who.regenerates)

    async def start(self, timeout_seconds: float = 30.0) -> None:
        """Open the run for what triggered it, as a new run or as the one that this resumes.

        Durable when it returns: its start or resumption. A second call does nothing, and what has
        been written for this invocation is not written again. Raises `SessionCancelled` if it was
        cancelled, `RunNotObserved` if the trigger is not seen in time, `InvalidSessionArgument` if
        the run has ended, `LifecycleNotPublished`, and `SessionClosed`; it may be called again.
        """
        if self._adopted:
            raise InvalidSessionArgument("a run that is adopted is opened with `load()`")
        self._connection.require()
        if self.cancelled.is_set():
            raise SessionCancelled("the run was cancelled before it was started")
        if self._open_once():
            try:
                await self._start(timeout_seconds)
            except BaseException:
                self._close()
                self._opening = False
                raise

    async def load(self, timeout_seconds: float = 30.0) -> None:
        """Open a run that another process has started. Publishes nothing.

        Waits for the start of the run and for its trigger, in history and then live. Raises
        `RunNotObserved` if they are not seen in time, which may be tried again, and
        `InvalidSessionArgument` if the run is suspended or has ended. A run that was cancelled is
        loaded with `cancelled` set, so that it can be ended.
        """
        if not self._adopted:
            raise InvalidSessionArgument("a run that is created is opened with `start()`")
        self._connection.require()
        if self._open_once():
            try:
                await self._load(timeout_seconds)
            except BaseException:
                self._close()
                self._opening = False
                raise

    async def pipe(
        self,
        source: AsyncIterable[Any],
        *,
        on_cancelled: Callable[[Write], Awaitable[None]] | None = None,
    ) -> PipeResult:
        """Put out what a source yields, as a step of its own; return how that went.

        The step starts with the first output. What fails is in the result, and not raised, and the
        run does not end. Durable when it returns: what the source had yielded, and the step's end.
        """
        step = RunStep(self._writer, self._new_step_id())
        return await step.pipe_implicitly(source, on_cancelled)

    def create_step(self, *, step_id: str | None = None, client_id: str | None = None) -> RunStep:
        """Return a step that is not started yet. Publishes nothing.

        An id that was used before is of the same step: its new attempt replaces the old one. The
        id is that of the step before if that has failed, or else a new one.
        """
        if step_id == "":
            raise InvalidSessionArgument("the id of a step is empty; leave it out for a new one")
        known = step_id or self._writer.failed_step or self._new_step_id()
        return RunStep(self._writer, known, client_id)

    async def suspend(self) -> None:
        """Pause the run until it is resumed. Durable when it returns: the suspension.

        Does nothing where the run was suspended or ended. Raises `InvalidSessionArgument` while a
        step is open, and `LifecycleNotPublished`; it may be called again.
        """
        self._writer.check_open()
        self._writer.check_idle()
        await self._finish(headers.AI_RUN_SUSPEND, {})

    async def end(
        self,
        reason: RunStatus | str = RunStatus.COMPLETE,
        *,
        error: BaseException | None = None,
    ) -> None:
        """End the run and the step that is open. Durable when it returns: the run's end.

        `reason` is `complete`, `cancelled` or `error`. Does nothing where the run was suspended or
        ended, here or as far as it is seen elsewhere. Raises `LifecycleNotPublished`; calling it
        again then says the same once more, and not something else.
        """
        self._writer.check_open()
        if reason not in ENDS:
            raise InvalidSessionArgument(f"a run ends as {', '.join(sorted(ENDS))}, not {reason!r}")
        status = RunStatus(reason)
        said: dict[str, str] = {headers.RUN_REASON: status}
        if error is not None and status is RunStatus.ERROR:
            fault = stream_failed(error)
            said |= {headers.ERROR_CODE: str(fault.code), headers.ERROR_MESSAGE: str(fault)}
        step = self._writer.turn
        if isinstance(step, RunStep) and self.is_open:
            try:
                await step.end(_STEP_AT[status])
            except SessionError as failure:
                self._connection.report(failure)
        await self._finish(headers.AI_RUN_END, said)

    def detach(self) -> None:
        """Leave the run as it is, for another process. Publishes nothing."""
        self._close()

    async def __aenter__(self) -> Self:
        """Open the run."""
        await (self.load() if self._adopted else self.start())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Detach from the run."""
        self.detach()

    def _open_once(self) -> bool:
        if self._opening:
            return False
        self._opening = True
        self._connection.watchers.add(self._look_for_cancels)
        return True

    async def _start(self, seconds: float) -> None:
        await self._observe(self._is_located, "the input that asks for the run", seconds)
        trigger = self._trigger()
        continues = trigger.header(headers.RUN_ID) if trigger else ""
        if continues:
            self.run_id = continues
            await self._observe(self._has_started, f"the start of the run {continues}", seconds)
        who = self._attribute(trigger)
        run = self._connection.reader.tree.run(self.run_id)
        known = run.info if run is not None and run.started else None
        if known and known.lifecycle.status in ENDS:
            self._refuse(known.lifecycle.status, "start another run")
        self._look_for_cancels()
        is_active = known is not None and known.lifecycle.status is RunStatus.ACTIVE
        if not (is_active and known and known.invocation_id == self.invocation_id):
            if continues:
                await self._publish(headers.AI_RUN_RESUME, who.run_event())
            else:
                await self._publish(headers.AI_RUN_START, who.run_start())
        self._writer.who = who

    async def _load(self, seconds: float) -> None:
        def is_seen() -> bool:
            return self._has_started() and self._is_located()

        await self._observe(is_seen, f"the start of the run {self.run_id}, and its input,", seconds)
        run = self._connection.reader.tree.run(self.run_id)
        assert run is not None  # it has started
        status = run.info.lifecycle.status
        if status is RunStatus.SUSPENDED:
            self._refuse(status, "resume it: create a run for the input that answers it")
        if status in ENDS:
            self._refuse(status, "it can only be read")
        self._writer.who = self._attribute(self._trigger())
        self._look_for_cancels()

    async def _observe(self, ready: Callable[[], bool], what: str, seconds: float) -> None:
        await self._connection.observe(ready, what, seconds, self.cancelled)

    def _refuse(self, status: RunStatus, advice: str) -> None:
        word = "is suspended" if status is RunStatus.SUSPENDED else f"has ended ({status})"
        raise InvalidSessionArgument(f"the run {self.run_id} {word}; {advice}")

    def _attribute(self, trigger: WireMessage | None) -> Attribution:
        tree = self._connection.reader.tree
        return attribute(tree, trigger, run_id=self.run_id, invocation_id=self.invocation_id)

    def _trigger(self) -> WireMessage | None:
        requests = self._connection.reader.tree.requests
        return requests.trigger(self._asked.input_event_id)

    def _is_located(self) -> bool:
        return not self._asked.input_event_id or self._trigger() is not None

    def _has_started(self) -> bool:
        run = self._connection.reader.tree.run(self.run_id)
        return run is not None and run.started

    def _look_for_cancels(self) -> None:
        if self.cancelled.is_set():
            return
        trigger = self._trigger() if self._asked.input_event_id else None
        input_id = trigger.header(headers.CODEC_MESSAGE_ID) if trigger else ""
        requests = self._connection.reader.tree.requests
        if requests.cancels(run_id=self.run_id, input_id=input_id):
            self.cancelled.set()

    def _new_step_id(self) -> str:
        self._steps += 1
        return f"{self.invocation_id}-step-{self._steps - 1}"

    async def _finish(self, name: str, said: dict[str, str]) -> None:
        """Publish how the run stops here, once: a second try is the same message."""
        writer = self._writer
        async with self._closing:
            if writer.ended or writer.status in ENDS:
                writer.ended = True
                self._close()
                return
            if self._last_event is None or self._last_event[0] != name:
                self._last_event = (name, {**writer.check_open().run_event(), **said}, uuid4().hex)
            name, event, message_id = self._last_event
            await self._publish(name, event, message_id)
            writer.ended = True
            self._close()

    async def _publish(
        self, name: str, event: dict[str, str], message_id: str | None = None
    ) -> None:
        try:
            await self._connection.publish(name, event, message_id=message_id)
        except SessionError as error:
            raise LifecycleNotPublished(
                f"{name} of the run {self.run_id} could not be published; try again: {error}"
            ) from error

    def _close(self) -> None:
        self._connection.watchers.discard(self._look_for_cancels)
