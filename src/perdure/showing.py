from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Collection,
    Coroutine,
    Iterable,
    Sequence,
)
from contextlib import suppress
from typing import Any, Final

from perdure.errors import SessionError
from perdure.observe import Observer, log
from perdure.session.attempts import StepStatus
from perdure.session.piping import PipeReason
from perdure.session.run import AgentRun
from perdure.session.session import AgentSession

_END_SECONDS: Final = 1.0


class Showing:
    """What people see of one execution of a run: a session, and the run as it is open there.

    Steps are shown under the stable keys of operations: an operation that is performed again takes
    the place of what was seen of it, and one that is replayed shows nothing. One step is shown at
    a time, and others wait for their turn. What cannot be shown keeps nothing from being done.
    """

    def __init__(self, session: AgentSession, run: AgentRun, observer: Observer) -> None:
        self._session = session
        self._run = run
        self._observer = observer
        self._turn = asyncio.Lock()
        self._watching: list[asyncio.Task[None]] = []

    def watch(self, watching: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Run what watches the session, until this is closed."""
        self._watching += map(asyncio.create_task, watching)

    async def cancelled(self) -> None:
        """Return once somebody has cancelled the run in its session, and its step shows that.

        A step that takes its time to end is not waited for.
        """
        await self._run.cancelled.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS), self._turn:
                pass

    def take_up(self, codec_message_ids: Collection[str]) -> None:
        """Show with the next step that it takes up what people said meanwhile."""
        self._run.take_up(codec_message_ids)

    async def messages(self) -> list[dict[str, Any]]:
        """Return the conversation that the run is to answer, oldest message first.

        Nothing that the run has shown is part of it, nor what people say to it meanwhile: an agent
        hears that by itself. Raises `HistoryFailed` where it cannot be read.
        """
        await self._session.load_history()
        return [folded.message for folded in self._run.question]

    async def step(
        self, key: str, source: AsyncIterable[Any], *, of_call: str | None = None
    ) -> None:
        """Show what a source yields as the step of the operation `key`.

        An earlier attempt of the step vanishes as this one starts. `of_call` is the id of a tool
        call, to whose message it is added; None for a message of its own. The source is read to its
        end, also where it is not shown. Raises what the source raises, and `LeaseLost`.
        """
        into = None if of_call is None else self._session.find_call(self._run.run_id, of_call)
        reading = _Reading(source)
        async with self._turn:
            # What code does to clean up after a cancel is not shown.
            if not self._run.cancelled.is_set():
                await self._pipe(key, reading, into)
        if reading.cut_short:
            # What half a source comes to is nothing to go on with: the run is stopped in a moment.
            await asyncio.Event().wait()
        await reading.finish()

    async def _pipe(self, key: str, reading: _Reading, into: str | None) -> None:
        try:
            async with self._run.create_step(step_id=key) as step:
                result = await step.pipe(reading.shown(), message_id=into)
                reading.cut_short = result.reason is PipeReason.CANCELLED
                if result.reason is PipeReason.ERROR and reading.failed is None:
                    self._miss(key, result.error)
        except SessionError as error:
            self._miss(key, error)

    async def once(self, key: str, chunks: Sequence[Any], *, of_call: str | None = None) -> None:
        """Show chunks that are the same in every attempt, unless they are there already.

        Raises `LeaseLost`.
        """
        info = self._session.find_run(self._run.run_id)
        steps = [] if info is None else info.steps
        if not any(step.step_id == key and step.status is StepStatus.COMPLETE for step in steps):
            await self.step(key, _each(chunks), of_call=of_call)

    async def suspend(self) -> None:
        """Show that the run waits for somebody. Raises `LeaseLost`.

        Durable when it returns: that, unless the log says why not.
        """
        try:
            await self._run.suspend()
        except SessionError as error:
            self._miss("that it waits", error)

    async def close(self) -> None:
        """Leave the session. Publishes nothing: the run stays open for who goes on with it."""
        for task in self._watching:
            task.cancel()
        if self._watching:
            await asyncio.wait(self._watching)
        await self._session.detach()

    def _miss(self, what: str, error: SessionError | None) -> None:
        self._observer.count("perdure_session_unshown_total")
        log.error("run %s: %s is not shown: %s", self._run.run_id, what, error)


class _Reading:
    """A source that is read to its end, of which somebody is shown as much as he takes."""

    def __init__(self, source: AsyncIterable[Any]) -> None:
        self._iterator: AsyncIterator[Any] = aiter(source)
        self.failed: Exception | None = None
        self.cut_short = False

    async def shown(self) -> AsyncGenerator[Any]:
        """Yield what the source yields, and raise what it raises."""
        try:
            async for chunk in self._iterator:
                yield chunk
        except Exception as error:
            self.failed = error
            raise

    async def finish(self) -> None:
        """Read what is left. Raises what the source raised, then or before."""
        if self.failed is not None:
            raise self.failed
        async for _ in self._iterator:
            pass


async def _each(chunks: Sequence[Any]) -> AsyncGenerator[Any]:
    for chunk in chunks:
        yield chunk
