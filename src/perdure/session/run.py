from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Collection
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
from perdure.session.attribution import Attribution
from perdure.session.cancelling import OnCancel
from perdure.session.codec import FoldedMessage
from perdure.session.connection import Connection
from perdure.session.incoming import Incoming, OnSteer
from perdure.session.lifecycle import ENDS, RunStatus
from perdure.session.opening import Entrance
from perdure.session.piping import PipeResult, Write, stream_failed
from perdure.session.prompt import prompt, question
from perdure.session.received import Received
from perdure.session.run_writer import RunWriter
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
        on_cancel: OnCancel | None,
        on_steer: OnSteer | None,
        new_id: Callable[[], str],
    ) -> None:
        self.invocation_id = invocation_id
        self._adopted = adopted
        self._connection = connection
        self._incoming = Incoming(
            connection, asked.input_event_id, run_id, on_cancel=on_cancel, on_steer=on_steer
        )
        self._entrance = Entrance(connection, self._incoming, invocation_id)
        self._writer = RunWriter(connection, self._incoming, new_id)
        self._steps = 0
        self._opening = False
        self._closing = asyncio.Lock()
        self._last_event: tuple[str, dict[str, str], str] | None = None

    @property
    def run_id(self) -> str:
        """The id of the run: where the trigger goes on with one, that one's once it is seen."""
        return self._incoming.run_id

    @property
    def cancelled(self) -> asyncio.Event:
        """Set once somebody has cancelled the run, at any time and whoever was attached then.

        A cancel is a wish: the run goes on until `end` is called. One that was sent before what
        resumes the run does not count.
        """
        return self._writer.cancelled

    @property
    def trigger(self) -> Received | None:
        """The input that the run is to answer, or None while it is not seen."""
        return self._incoming.asked

    @property
    def steers(self) -> list[Received]:
        """What was said to the run while it went on, oldest first, as far as it is seen.

        Whether an output has taken it up or not; looking at it changes nothing.
        """
        return self._incoming.steers

    @property
    def answers(self) -> list[Received]:
        """The approvals and results of tools that were sent to the run, oldest first.

        The trigger too, if it is one. Those that fork a conversation are of the run they begin.
        """
        return self._incoming.answers

    def take_up(self, codec_message_ids: Collection[str]) -> None:
        """Let the next output say that it takes up these of the steers."""
        self._incoming.steering.take(codec_message_ids)

    def has_input(self) -> bool:
        """Return whether there is something to answer, and take it for the next output.

        True before the first output of this process, and then whenever something was said that no
        output has taken up; the next one says that it does. False once the run is cancelled. So
        `while run.has_input(): await run.pipe(…)` answers all that comes meanwhile.
        """
        self._writer.check_open()
        if self.cancelled.is_set():
            return False
        is_steered = self._incoming.steering.draw()
        return is_steered or not self._incoming.steering.has_output

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

    @property
    def question(self) -> list[FoldedMessage]:
        """The messages that the run is to answer, as far as loaded: nothing it has written."""
        who = self._writer.check_open()
        tree = self._connection.reader.tree
        return question(tree, who.anchor, run_id=who.run_id, regenerates=who.regenerates)

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

    async def end_steps(self, reason: RunStatus | str) -> None:
        """End the steps that another process has left open, in front of the end of the run.

        For whoever knows that this process is gone. Durable when it returns: their ends.
        """
        who = self._writer.check_open()
        node = self._connection.reader.tree.run(who.run_id)
        status = _STEP_AT[RunStatus(reason)]
        for step, attempt in node.attempts.left_open() if node else ():
            await self._writer.step_event(
                headers.AI_STEP_END,
                step.step_id,
                step.step_client_id,
                step_start_serial=attempt,
                step_reason=status,
            )

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
        self._incoming.attend()
        return True

    async def _start(self, seconds: float) -> None:
        opening = await self._entrance.start(seconds)
        who = opening.who
        if opening.event is not None:
            is_new = opening.event == headers.AI_RUN_START
            await self._publish(opening.event, who.run_start() if is_new else who.run_event())
        self._open(who)

    async def _load(self, seconds: float) -> None:
        self._open(await self._entrance.load(seconds))

    def _open(self, who: Attribution) -> None:
        self._writer.who = who
        self._incoming.open()

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
                # Whoever ends it, and however often: a run has one end.
                ending = name == headers.AI_RUN_END
                message_id = f"{self.run_id}/{name}" if ending else uuid4().hex
                event = {**writer.check_open().run_event(), **said}
                self._last_event = (name, event, message_id)
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
        self._incoming.close()
