from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import msgspec

from perdure.approvals import Answer, ApprovalKind
from perdure.canonical import decode, encode
from perdure.child import CHILD_HANDLER, NOT_GIVEN, ChildRun
from perdure.errors import (
    InvalidInvocation,
    InvalidPayload,
    RunCancelled,
    RunFailed,
    UnknownRun,
    WaitTimedOut,
)
from perdure.ids import IDENTIFIER_LIMIT, check_identifier, shortened
from perdure.inbox import Message
from perdure.journal.invocation import OperationKind
from perdure.journal.record import Failure, Outcome, Success
from perdure.queued import queued_of
from perdure.scope import Scope
from perdure.waits import Wait, check_seconds, milliseconds

T = TypeVar("T")


class Outside(Scope):
    """What a run waits for that is not its own doing: times, messages, answers, other runs."""

    @property
    def deadline(self) -> datetime | None:
        """When the run has to have ended, or None."""
        at = self._performer.deadline_at
        return None if at is None else datetime.fromtimestamp(at, UTC)

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Wait; a later attempt of the run waits for what remains, not again for the whole.

        Durable when it returns: that the wait is over.
        If it raises: `InvalidPayload` when `seconds` is not a finite number from 0.
        """
        self._own()
        check_seconds(seconds)
        number = self.counter("sleep")
        document = encode({"delay_ms": round(seconds * 1000)})
        invocation = self._invocation(
            OperationKind.RETRY_DELAY, "sleep", number, "perdure.sleep", document
        )
        return self._performer.delay(invocation, seconds, above=self._above)

    def sleep_until(self, at: datetime) -> Coroutine[Any, Any, None]:
        """Wait until a moment, which has a time zone; one that is over is not waited for.

        Durable when it returns: that the wait is over.
        If it raises: `InvalidPayload` for a moment without a time zone.
        """
        self._own()
        if at.tzinfo is None:
            raise InvalidPayload(f"a run sleeps until a moment with a time zone, not {at!r}")
        try:
            until, wake_at = at.astimezone(UTC).isoformat(), at.timestamp()
        except (OverflowError, ValueError) as error:
            raise InvalidPayload(f"a run cannot sleep until {at!r}: {error}") from error
        number = self.counter("sleep_until")
        document = encode({"until": until})
        invocation = self._invocation(
            OperationKind.RETRY_DELAY, "sleep_until", number, "perdure.sleep_until", document
        )
        return self._performer.delay_until(invocation, wake_at, above=self._above)

    def wait_for(
        self, name: str, *, timeout_seconds: float | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Return what the next message of a name says that is sent to the run.

        `App.send` sends it, from any process and before or after this. Each message is returned
        once, in the order in which they came. While a run only waits, it takes nothing but rows.
        `timeout_seconds` counts from when the wait first began, whatever happened since.

        Durable when it returns: what the message says, and that it was taken, fsynced.
        If it raises: `WaitTimedOut` when nothing came in time, now and on every replay;
        `InvalidInvocation` for a malformed name or inside an operation, `InvalidPayload` for a
        time that is none, `ForeignTask`, or as `call`.
        """
        self._own()
        check_identifier(name, "message name")
        document = encode({"name": name, "timeout_ms": milliseconds(timeout_seconds)})
        return self._message(name, self.counter("wait"), document, timeout_seconds)

    async def _message(
        self, name: str, number: int, document: bytes, timeout_seconds: float | None
    ) -> Any:
        async def said(message: Message) -> Outcome:
            return Success(message.payload_json or b"null")

        why = f"no message {name!r} came within {timeout_seconds} seconds"
        wait = Wait(name, said, timeout_seconds, Failure("WaitTimedOut", message=why))
        performed = await self.wait("wait", number, "perdure.wait", document, wait)
        if isinstance(performed.outcome, Failure):
            raise WaitTimedOut(name, performed.outcome.message)
        return self._read(performed.output(name), f"message {name}", None)

    async def take(self, name: str) -> list[Any]:
        """Return what the messages of a name say that have come so far; none is waited for.

        Durable when it returns: what they say, and that they were taken, fsynced.
        If it raises: as `wait_for`, but for `WaitTimedOut`.
        """
        self._own()
        check_identifier(name, "message name")
        taken: list[Any] = []
        while True:
            number = self.counter("take")
            invocation = self._invocation(
                OperationKind.APPROVAL_RESUME,
                "take",
                number,
                "perdure.take",
                encode({"name": name}),
            )
            performed = await self.poll(invocation, name)
            if performed is None:
                return taken
            taken.append(self._read(performed, f"message {name}", None))

    def approval(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        kind: ApprovalKind = ApprovalKind.APPROVAL,
        timeout_seconds: float | None = None,
    ) -> Coroutine[Any, Any, Answer]:
        """Ask for something, and return what a person or a system outside answers.

        `App.approvals` shows it and `App.resolve` answers it, in any process. `name` is what is to
        be done, and `arguments` with what, as JSON values.

        Durable when it returns: the answer, fsynced.
        If it raises: `WaitTimedOut`, or as `wait_for`.
        """
        self._own()
        check_identifier(name, "approval name")
        number = self.counter("approval")
        document = encode({**arguments}, what=f"{name}: arguments")
        return self._asked(number, name, document, kind, timeout_seconds)

    async def _asked(
        self,
        number: int,
        name: str,
        document: bytes,
        kind: ApprovalKind,
        timeout_seconds: float | None,
    ) -> Answer:
        found = await self.ask("approval", number, name, document, kind, timeout_seconds)
        return found.answer

    async def start_child(
        self,
        function: Callable[..., Coroutine[Any, Any, T]] | str,
        input: Any = NOT_GIVEN,  # noqa: A002
        *,
        run_id: str | None = None,
        version: int | None = None,
        deadline_seconds: float | None = None,
        queue: str | None = None,
        key: str | None = None,
        priority: int = 0,
    ) -> ChildRun[T]:
        """Start a run from inside of this one, and return what its result is asked of.

        It is a run of its own, which any worker executes; cancelling this one cancels it. Without
        `run_id` it gets an id from its place in this run. `version` and the input's default are
        those of when it is started. It ends no later than this run has to. `queue`, `key` and
        `priority` are those of `App.start`.

        Durable when it returns: the run, fsynced.
        If it raises: `UnknownFunction`, `InvalidPayload`, `InvalidInvocation`, `InvalidOptions`, or
        as `call`: `OperationFailed` with the code `RunConflict` for a `run_id` that is another
        run's, or `UnknownQueue`.
        """
        self._own()
        if self.nested:
            raise InvalidInvocation(
                f"run {self.run_id}: a run is started from the run itself, not inside an operation"
            )
        children = self._performer.children
        if deadline_seconds is not None:
            check_seconds(deadline_seconds)
        number = self.counter("child")
        here = f"{self.run_id}.{self.place('child')}.{number}"
        child = shortened(here, IDENTIFIER_LIMIT) if run_id is None else run_id
        check_identifier(child, "run id")
        name = children.name_of(function)
        given = None
        if input is not NOT_GIVEN:
            called = None if isinstance(function, str) else function
            given = self._performer.codec.encode(input, what=f"{name}: input", function=called)
        queued = queued_of(queue, key, priority)
        text = None if given is None else given.decode()
        asked = {"run_id": run_id, "function": name, "version": version, "input_json": text}
        if queued is not None:
            asked |= msgspec.structs.asdict(queued)
        document = encode(asked)

        async def start() -> Outcome:
            seconds = self._performer.seconds_left(deadline_seconds)
            begin = partial(children.start, self.run_id, child, function, given, version, seconds)
            await self._performer.tenure.insist(partial(begin, queued=queued))
            return Success(encode({"run_id": child}))

        performed = await self.perform(
            OperationKind.TOOL_CALL, "child", number, CHILD_HANDLER, document, start
        )
        # Of a run that was forked, it is the other one's.
        started = decode(performed.output(child), what="child")["run_id"]
        return ChildRun(started, partial(self._end_of_child, started, number))

    async def _end_of_child(self, run_id: str, number: int) -> Any:
        children = self._performer.children

        async def ended(message: Message) -> Outcome:
            del message
            return await children.end_of(run_id)

        async def look() -> Outcome | None:
            # A run that was forked or imported was told of no end: its children told another one.
            try:
                return await children.ended(run_id)
            except UnknownRun as error:
                raise self._performer.tenure.park(error) from error

        late = Failure("WaitTimedOut")
        wait = Wait(f"perdure:run:{run_id}", ended, None, late, look=look)
        document = encode({"run_id": run_id})
        performed = await self.wait("child.end", number, "perdure.child.end", document, wait)
        self._performer.add_runs(partial(children.family, run_id))
        outcome = performed.outcome
        if isinstance(outcome, Success):
            return self._read(outcome.output_json, f"the result of run {run_id}", None)
        assert isinstance(outcome, Failure)
        if outcome.error_name == "RunCancelled":
            raise RunCancelled(run_id)
        raise RunFailed(
            run_id,
            code=outcome.error_name,
            type_name=outcome.type_name or outcome.error_name,
            message=outcome.message,
        )
