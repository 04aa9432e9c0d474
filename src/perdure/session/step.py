from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable
from enum import Enum, auto
from types import TracebackType
from typing import Any, Self

from perdure.errors import InvalidSessionArgument, SessionError
from perdure.session import headers
from perdure.session.attempts import StepStatus
from perdure.session.piping import PipeReason, PipeResult, Write, pipe_into
from perdure.session.run_writer import RunWriter


class _State(Enum):
    NEW = auto()
    OPENING = auto()
    ACTIVE = auto()
    ENDED = auto()


class RunStep:
    """A part of a run that may be tried again: a later start of the same step replaces it.

    It replaces at its start, before anything is put out. As a context manager it is started, and
    ended as `complete`, or `failed` on an `Exception`. What is none, such as the cancelling of the
    task, leaves the step open for the process that tries it again.
    """

    def __init__(self, writer: RunWriter, step_id: str, client_id: str | None = None) -> None:
        self.step_id = step_id
        self._writer = writer
        self._client_id = client_id
        self._state = _State.NEW
        self._attempt = ""
        self._outcome = StepStatus.COMPLETE

    async def start(self) -> None:
        """Begin an attempt; earlier ones of the step no longer show.

        Durable when it returns: the start. Raises `InvalidSessionArgument` if the run takes no
        output, or another step of it is open; what could not be published leaves no step open.
        """
        if self._state is _State.ACTIVE:
            return
        writer = self._writer
        writer.check_publishable()
        if self._state is not _State.NEW:
            raise InvalidSessionArgument(f"the step {self.step_id} is being started, or has ended")
        writer.take_turn(self)
        self._state = _State.OPENING
        client_id = writer.client_of_steps() if self._client_id is None else self._client_id
        try:
            name = headers.AI_STEP_START
            self._attempt = await writer.step_event(name, self.step_id, client_id)
        except BaseException:
            self._state = _State.NEW
            writer.leave_turn(self)
            raise
        self._client_id = writer.last_client_id = client_id
        self._state = _State.ACTIVE

    async def send(self, output: Any) -> None:
        """Put out one output, as a message of its own. Durable when it returns: the output.

        A failure is raised, and the step counts as failed.
        """
        self._check_active()
        writer = self._writer.output(self._headers)
        try:
            await writer.write(output)
            await writer.finish()
        except Exception:
            self._outcome = StepStatus.FAILED
            raise
        finally:
            await writer.abandon()

    async def pipe(
        self,
        source: AsyncIterable[Any],
        *,
        on_cancelled: Callable[[Write], Awaitable[None]] | None = None,
        message_id: str | None = None,
    ) -> PipeResult:
        """Put out what a source yields, as one message; return how that went.

        `message_id` is that of a message which it is added to, None for one of its own.
        Stops when the run is cancelled; `on_cancelled` may write last outputs then. What fails is
        in the result, and not raised. Durable when it returns: what the source had yielded.
        """
        self._check_active()
        return await self._pipe(source, on_cancelled, message_id)

    async def pipe_implicitly(
        self,
        source: AsyncIterable[Any],
        on_cancelled: Callable[[Write], Awaitable[None]] | None,
    ) -> PipeResult:
        """Do what a pipe of a run does: the step is there from its first output to the last."""
        self._writer.check_publishable()
        self._writer.take_turn(self)
        try:
            result = await self._pipe(source, on_cancelled)
            if result.reason is PipeReason.ERROR:
                self._writer.steering.end_step(failed=True)
            try:
                await self.end()
            except SessionError as error:
                self._writer.connection.report(error)
        finally:
            self._writer.leave_turn(self)
        return result

    async def end(self, reason: StepStatus | None = None) -> None:
        """End the attempt. Durable when it returns: the end; a second call publishes nothing.

        Without a reason it is `cancelled` if the run is, `failed` if something of the step has
        failed, or else `complete`. None of them ends the run. A step that was not started ends
        without a trace.
        """
        if self._state is not _State.ACTIVE:
            return
        self._state = _State.ENDED
        writer = self._writer
        if writer.cancelled.is_set():
            self._outcome = StepStatus.CANCELLED
        said = reason or self._outcome
        writer.failed_step = self.step_id if said is StepStatus.FAILED else None
        writer.steering.end_step(failed=said is StepStatus.FAILED)
        try:
            await writer.step_event(
                headers.AI_STEP_END,
                self.step_id,
                self._client_id or "",
                step_start_serial=self._attempt,
                step_reason=said,
            )
        finally:
            writer.leave_turn(self)

    async def __aenter__(self) -> Self:
        """Start the step."""
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the step, unless what happens is not of it."""
        if error is None:
            await self.end()
        elif isinstance(error, Exception):
            await self.end(StepStatus.FAILED)
        else:
            self._state = _State.ENDED
            self._writer.leave_turn(self)

    async def _pipe(
        self,
        source: AsyncIterable[Any],
        on_cancelled: Callable[[Write], Awaitable[None]] | None,
        message_id: str | None = None,
    ) -> PipeResult:
        output = self._writer.output(self._headers, message_id)
        result = await pipe_into(
            output, source, self._writer.cancelled, opened=self.start, on_cancelled=on_cancelled
        )
        if result.reason is PipeReason.CANCELLED:
            self._outcome = StepStatus.CANCELLED
        elif result.reason is PipeReason.ERROR and self._outcome is StepStatus.COMPLETE:
            self._outcome = StepStatus.FAILED
        return result

    def _headers(self) -> dict[str, str]:
        return {
            headers.STEP_ID: self.step_id,
            headers.STEP_CLIENT_ID: self._client_id or "",
            headers.STEP_START_SERIAL: self._attempt,
        }

    def _check_active(self) -> None:
        self._writer.check_publishable()
        if self._state is not _State.ACTIVE:
            raise InvalidSessionArgument(
                f"the step {self.step_id} is not open; await `start()`, or create another one"
            )
