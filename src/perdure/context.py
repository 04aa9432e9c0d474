from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, overload

from perdure.activity import Place
from perdure.asked_effect import identity_of
from perdure.canonical import encode
from perdure.declaration import EffectDeclaration, Reported, Verdict
from perdure.effects.identity import OperationIdentity
from perdure.effects.support import EffectPolicy
from perdure.errors import ForeignTask, InvalidInvocation, InvalidOptions, InvalidPayload
from perdure.functions import EndedMeanwhile, Operation, declared_of, fits, invoke
from perdure.ids import check_identifier, shortened
from perdure.journal.failures import failure_of
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.record import Outcome, Success
from perdure.perform import Performed, Performer
from perdure.ports import Handler
from perdure.retry import RetryPolicy

if TYPE_CHECKING:
    import random
    import uuid

P = ParamSpec("P")
T = TypeVar("T")

_current: ContextVar[Context | None] = ContextVar("perdure_context", default=None)
_NOW: Final = Operation("perdure.now", effect=None)
_NO_EFFECT: Final = EffectPolicy()


def current() -> Context | None:
    """Return the context of the run or operation that this code is part of, or None outside."""
    return _current.get()


class Context:
    """What the code of a run holds: everything that reaches outside goes through it.

    Operations are numbered in the order in which the code asks for them, so the same code gives
    the same identities on every execution. One task owns a context; give concurrent tasks a
    `branch` each.
    """

    def __init__(
        self,
        performer: Performer,
        started_at: float,
        namespace: str = "",
        *,
        above: tuple[Place, ...] = (),
        operation: tuple[Invocation, EffectPolicy] | None = None,
    ) -> None:
        self.namespace = namespace
        self.started_at = started_at
        self._operation = operation
        self._above = above
        self._performer = performer
        self._counters: dict[str, int] = {}
        self._calls = 0
        self._task: asyncio.Task[Any] | None = None

    @property
    def run_id(self) -> str:
        """The id of the run; every operation's key begins with it."""
        return self._performer.fence.run_id

    @property
    def operation(self) -> OperationIdentity | None:
        """The identity of the operation whose handler this code is part of, or None outside."""
        return None if self._operation is None else identity_of(*self._operation)

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

    def branch(self, name: str) -> Context:
        """Return a context of its own for one of several concurrent tasks.

        `name` is made of letters, digits, `_` and `-`; a name used again gets the next number.
        """
        self._own()
        check_identifier(name, "branch name")
        if "." in name:
            raise InvalidInvocation(f"the branch name {name!r} has a dot, which only nesting gives")
        number = self.counter(f"branch.{name}")
        return self._child(f"branch.{name}.{number}")

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Wait; a later attempt of the run waits for what remains, not again for the whole.

        Durable when it returns: that the wait is over.
        If it raises: `InvalidPayload` when `seconds` is not a finite number from 0.
        """
        self._own()
        _check_seconds(seconds)
        number = self.counter("sleep")
        document = encode({"delay_ms": round(seconds * 1000)})
        invocation = self._invocation(
            OperationKind.RETRY_DELAY, "sleep", number, "perdure.sleep", document
        )
        return self._performer.delay(invocation, seconds, above=self._above)

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

    def key(self, step_id: str, sequence: int) -> str:
        """Return the stable key of an operation of this context."""
        return f"{self.run_id}/{self._within(step_id)}/{sequence}"

    def recorded(self, step_id: str, sequence: int) -> bool:
        """Return whether an operation of this context is recorded, and so is not called again."""
        return self._performer.holds(self._within(step_id), sequence)

    def counter(self, name: str) -> int:
        """Return 1, 2, 3, … for each use of a name in this context."""
        number = self._counters.get(name, 0) + 1
        self._counters[name] = number
        return number

    async def perform(
        self,
        kind: OperationKind,
        step_id: str,
        sequence: int,
        handler_id: str,
        input_json: bytes,
        handler: Handler,
        *,
        retry: RetryPolicy | None = None,
        cuts: tuple[int, ...] = (),
        effect: EffectDeclaration | None = None,
    ) -> Performed:
        """Perform one operation whose identity the caller assigned; what adapters build on.

        `step_id` is taken within this context's namespace. While the handler runs, `current()`
        is a context below this operation, so that what it performs has its own identity. `cuts`
        are offsets at which the store may split the input to share equal beginnings. `effect` is
        what the handler does to the world, or None.

        Durable when it returns and if it raises: as `Performer.perform`.
        """
        invocation = self._invocation(kind, step_id, sequence, handler_id, input_json)
        return await self.execute(invocation, handler, retry=retry, cuts=cuts, effect=effect)

    async def execute(
        self,
        invocation: Invocation,
        handler: Handler,
        *,
        retry: RetryPolicy | None = None,
        cuts: tuple[int, ...] = (),
        effect: EffectDeclaration | None = None,
    ) -> Performed:
        """Perform an invocation of this run that is complete, namespace included.

        Durable when it returns and if it raises: as `Performer.perform`.
        """
        policy = _NO_EFFECT if effect is None else effect.policy

        async def below() -> Outcome | Reported:
            place = (invocation.step_id, invocation.sequence)
            child = Context(
                self._performer,
                self.started_at,
                shortened(f"{invocation.step_id}.{invocation.sequence}"),
                above=(*self._above, place),
                operation=(invocation, policy),
            )
            token = _current.set(child)
            try:
                return await handler()
            finally:
                _current.reset(token)

        return await self._performer.perform(
            invocation, below, retry=retry, cuts=cuts, above=self._above, effect=effect
        )

    def enter(self) -> None:
        """Make this the context that `current()` returns for the rest of the current task."""
        _current.set(self)

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
        what = f"{declared.handler_id}: result"
        try:
            return self._performer.codec.decode(output_json, what=what, function=function)
        except InvalidPayload as error:
            # Nobody can say what the code would do with the value that was recorded.
            self._performer.activity.cut(self._above)
            raise self._performer.tenure.park(error) from error

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

    def _own(self) -> None:
        task = asyncio.current_task()
        if self._task is None:
            self._task = task
        elif self._task is not task:
            raise ForeignTask(
                f"run {self.run_id}: a context is used by two tasks, whose order a replay cannot"
                " repeat; give each task its own: context.branch('name')"
            )

    def _within(self, name: str) -> str:
        """Return a name within the namespace of this context."""
        return f"{self.namespace}.{name}" if self.namespace else name

    def _child(self, name: str) -> Context:
        return Context(
            self._performer,
            self.started_at,
            shortened(self._within(name)),
            above=self._above,
            operation=self._operation,
        )

    def _invocation(
        self, kind: OperationKind, step_id: str, sequence: int, handler_id: str, input_json: bytes
    ) -> Invocation:
        step_id = self._within(step_id)
        return Invocation(self.run_id, step_id, sequence, kind, handler_id, input_json)

    def _entropy(self, purpose: str) -> bytes:
        self._own()
        number = self.counter(purpose)
        seed = f"{self.run_id}/{self.namespace}/{purpose}/{number}"
        return hashlib.sha256(seed.encode()).digest()


async def _moment(seconds: Awaitable[float]) -> datetime:
    return datetime.fromtimestamp(await seconds, UTC)


def _check_seconds(seconds: Any) -> None:
    # The largest is some thirty million years, and still a float.
    if not (isinstance(seconds, int | float) and 0 <= seconds < 1e15):
        raise InvalidPayload(f"a run sleeps for a finite number of seconds, not {seconds!r}")
