from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, overload

import msgspec

from perdure.canonical import encode
from perdure.declaration import EffectDeclaration, Reported, Verdict
from perdure.effects.support import EffectPolicy, SideEffectSupport
from perdure.errors import (
    InvalidOptions,
    InvalidPayload,
)
from perdure.functions import (
    EndedMeanwhile,
    Operation,
    declaration_of,
    declared_of,
    fits,
    invoke,
)
from perdure.journal.failures import failure_of
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.record import Outcome, Success
from perdure.outside import Outside
from perdure.recorder import Performed
from perdure.scope import active

if TYPE_CHECKING:
    import random
    import uuid

P = ParamSpec("P")
T = TypeVar("T")

_RECOGNISED: Final = EffectDeclaration(policy=EffectPolicy(support=SideEffectSupport.IDEMPOTENT))
"""What an event does to the world when nobody said otherwise."""

_NOW: Final = Operation("perdure.now", effect=None)


def current() -> Context | None:
    """Return the context of the run or operation that this code is part of, or None outside."""
    scope = active.get()
    return scope if isinstance(scope, Context) else None


class Context(Outside):
    """What the code of a run holds: everything that reaches outside goes through it.

    Operations are numbered in the order in which the code asks for them, so the same code gives
    the same identities on every execution. One task owns a context; give concurrent tasks a
    `branch` each.
    """

    @overload
    def call(
        self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def call(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    def call(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, Any]:
        """Perform a function as one operation and return what it returned.

        The result comes back as it was, of the same type, and so would the arguments: JSON values,
        bytes, tuples, sets, Decimal, datetimes, UUID, paths, and instances of classes that the
        App's `types` or the function's annotations name. A function that is not async runs in a
        thread.
        The operation has its number as soon as `call` returns, so
        `asyncio.gather(context.call(a), context.call(b))` is the same on every execution.

        Durable when it returns: the result, fsynced; a replay returns it without calling.
        If it raises: `OperationFailed` with what the function raised, now and on every replay.
        What leaves its effect ambiguous parks the run instead, until a person has settled it;
        `InvalidPayload` for arguments that cannot be stored, `ForeignTask` from a task that does
        not own this context, `InvalidFunction` for one without a usable name. What was recorded
        and cannot be read here parks the run as well.
        """
        declared = declared_of(function)
        return self._call(self._next(), declared, function, args, kwargs)

    async def deliver(
        self,
        step: str,
        sequence: int,
        event: Mapping[str, Any],
        *,
        to: Callable[..., Any],
    ) -> None:
        """Deliver an event to a function, once for its place in the run.

        `event` is an object of JSON values, and `step` and `sequence` are its place: a replay
        delivers none that was delivered before, and one that fails is delivered again by itself.
        Unless `to` declares its effect, it is taken to recognise a repeat by the identity of the
        operation, and gets an event again that may not have reached it. What it returns is ignored.

        Durable when it returns: that the event was delivered, fsynced.
        If it raises: `InvalidInvocation` for a malformed place, `DuplicateOperation` for one that
        was used before, or as `call`.
        """
        self._own()
        document = encode({**event}, what=f"event {step}/{sequence}")
        request = {
            "version": 1,
            "source": "application",
            "parent_sequence": sequence,
            "event_index": 0,
            "event_json": document.decode(),
        }
        declared = declared_of(to)
        if declaration_of(to) is None:
            declared = msgspec.structs.replace(declared, effect=_RECOGNISED)
        invocation = self._invocation(
            OperationKind.EVENT_DELIVERY, step, sequence, declared.handler_id, encode(request)
        )
        performed = await self._execute(invocation, declared, to, (dict(event),), {})
        performed.output(invocation.stable_key)

    def now(self) -> Coroutine[Any, Any, datetime]:
        """Return the time, recorded: every execution of the run sees the same."""

        async def wall_time() -> float:
            return self._performer.clock.now()

        return _moment(self._call(self._next(), _NOW, wall_time, (), {}))

    def uuid(self) -> uuid.UUID:
        """Return an id that is unique to this place in the run, and the same on every execution.

        Raises `ForeignTask` from a task that does not own this context.
        """
        import uuid  # costs more at start-up than most programs need it

        return uuid.UUID(bytes=self._entropy("uuid")[:16], version=4)

    def random(self) -> random.Random:
        """Return a random generator whose seed is this place in the run; not for secrets.

        Raises `ForeignTask` from a task that does not own this context.
        """
        import random

        return random.Random(self._entropy("random"))  # noqa: S311 - replay needs the same numbers

    def secret(self, name: str) -> str:
        """Return the secret of a name, as the App's `secrets` resolves it; it is never recorded.

        Raises `InvalidOptions` where the App has none.
        """
        resolve = self._performer.secrets
        if resolve is None:
            raise InvalidOptions(
                f"nobody resolves the secret {name!r}: pass App(url, secrets=resolver), a function"
                " that returns the secret of a name"
            )
        return resolve(name)

    async def _call(
        self,
        sequence: int,
        declared: Operation,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        what = f"{declared.handler_id}: arguments"
        given = {"args": [*args], "kwargs": {**kwargs}}
        input_json = self._performer.codec.encode(given, what=what, function=function)
        invocation = self._invocation(
            OperationKind.TOOL_CALL, "call", sequence, declared.handler_id, input_json
        )
        performed = self._performer.recall(invocation, above=self._above)
        if performed is None:
            performed = await self._execute(invocation, declared, function, args, kwargs)
        if isinstance(performed.outcome, Success):
            return self._decoded(performed.outcome.output_json, declared, function)
        return performed.output(self.key("call", sequence))

    def _decoded(
        self, output_json: bytes, declared: Operation, function: Callable[..., Any]
    ) -> Any:
        return self._read(output_json, f"{declared.handler_id}: result", function)

    async def _execute(
        self,
        invocation: Invocation,
        declared: Operation,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Performed:
        what = f"{declared.handler_id}: result"
        ended_meanwhile = False

        async def handler() -> Outcome | Reported:
            nonlocal ended_meanwhile
            work = invoke(function, args, kwargs, self._performer.threads)
            try:
                if declared.timeout_seconds is None:
                    result = await work
                else:
                    async with asyncio.timeout(declared.timeout_seconds):
                        result = await work
            except EndedMeanwhile as cancelled:
                # What it has done is recorded first.
                result, ended_meanwhile = cancelled.result, True
            except TypeError as error:
                if fits(function, args, kwargs):
                    raise
                return Reported(failure_of(error), Verdict.NOT_SENT)
            try:
                return Success(self._performer.codec.encode(result, what=what, function=function))
            except InvalidPayload as error:
                # Whatever it did, it has done.
                return Reported(failure_of(error), Verdict.APPLIED)

        performed = await self.execute(
            invocation, handler, retry=declared.retry, effect=declared.effect
        )
        if ended_meanwhile:
            raise asyncio.CancelledError
        return performed

    def _next(self) -> int:
        self._own()
        self._calls += 1
        return self._calls

    def _entropy(self, purpose: str) -> bytes:
        self._own()
        number = self.counter(purpose)
        seed = f"{self.origin}/{self.namespace}/{purpose}/{number}"
        return hashlib.sha256(seed.encode()).digest()


async def _moment(seconds: Awaitable[float]) -> datetime:
    return datetime.fromtimestamp(await seconds, UTC)
