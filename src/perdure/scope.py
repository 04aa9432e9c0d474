from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Self

from perdure.activity import Place, this_task
from perdure.approvals import (
    Answered,
    ApprovalKind,
    NewApproval,
    answered,
    decode_answer,
    encode_answer,
    item_of,
    signer_of,
)
from perdure.asked_effect import identity_of
from perdure.canonical import decode, encode
from perdure.declaration import EffectDeclaration, Reported
from perdure.effects.identity import OperationIdentity
from perdure.effects.support import EffectPolicy
from perdure.errors import ForeignTask, InvalidInvocation, InvalidPayload, WaitTimedOut
from perdure.ids import check_identifier, shortened
from perdure.inbox import Message
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.record import Failure, Outcome, Success
from perdure.journal.spending import Spending
from perdure.perform import Performer
from perdure.ports import Handler
from perdure.recorder import Performed
from perdure.retry import RetryPolicy
from perdure.waits import Wait, milliseconds

if TYPE_CHECKING:
    from perdure.showing import Showing

_NO_EFFECT: Final = EffectPolicy()

active: ContextVar[Scope | None] = ContextVar("perdure_context", default=None)
"""The scope of the run or operation that the running code is part of."""


class Scope:
    """A part of a run in which identities are given: its namespace, its counters and its task."""

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

    @property
    def performing(self) -> str | None:
        """The stable key of the operation whose handler this code is part of, or None outside."""
        return None if self._operation is None else self._operation[0].stable_key

    @property
    def showing(self) -> Showing | None:
        """What people see of the run while it is executed here, or None where nobody watches."""
        return self._performer.showing

    @property
    def in_turn(self) -> bool:
        """Whether the run answers what was said in a session, whether or not anybody watches."""
        return self._performer.in_turn

    @property
    def has_streamed(self) -> bool:
        """Whether the code of a turn has streamed anything to the people who watch, or would."""
        return self._performer.has_streamed

    @has_streamed.setter
    def has_streamed(self, value: bool) -> None:
        self._performer.has_streamed = value

    @property
    def origin(self) -> str:
        """The run whose ids this one draws: itself, or the one that it was forked from."""
        return self._performer.origin

    @property
    def nested(self) -> bool:
        """Whether this is part of an operation, whose handler is under way."""
        return bool(self._above)

    def branch(self, name: str) -> Self:
        """Return a context of its own for one of several concurrent tasks.

        `name` is made of letters, digits, `_` and `-`; a name used again gets the next number.
        """
        self._own()
        check_identifier(name, "branch name")
        if "." in name:
            raise InvalidInvocation(f"the branch name {name!r} has a dot, which only nesting gives")
        number = self.counter(f"branch.{name}")
        return self._child(f"branch.{name}.{number}")

    def key(self, step_id: str, sequence: int) -> str:
        """Return the stable key of an operation of this context."""
        return f"{self.run_id}/{self._within(step_id)}/{sequence}"

    def place(self, step_id: str) -> str:
        """Return the whole step id of an operation of this context."""
        return self._within(step_id)

    def recorded(self, step_id: str, sequence: int) -> bool:
        """Return whether an operation of this context is recorded, and so is not called again."""
        return self._performer.holds(self._within(step_id), sequence)

    def holds(self, invocation: Invocation) -> bool:
        """Return whether an invocation of this run, namespace included, is recorded."""
        return self._performer.holds(invocation.step_id, invocation.sequence)

    async def spending(self) -> Spending:
        """Return what the run has spent, by what is recorded of it and will be.

        Raises a `StorageError`.
        """
        return await self._performer.spending()

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
            child = type(self)(
                self._performer,
                self.started_at,
                shortened(f"{invocation.step_id}.{invocation.sequence}"),
                above=(*self._above, place),
                operation=(invocation, policy),
            )
            token = active.set(child)
            try:
                return await handler()
            finally:
                active.reset(token)

        return await self._performer.perform(
            invocation, below, retry=retry, cuts=cuts, above=self._above, effect=effect
        )

    async def wait(
        self, step_id: str, sequence: int, handler_id: str, input_json: bytes, wait: Wait
    ) -> Performed:
        """Perform one operation that waits for somebody outside; what adapters build on.

        Durable when it returns and if it raises: as `Performer.wait_for`; `InvalidInvocation`
        inside an operation, which would hold its worker for as long.
        """
        return await self._waited(
            self._invocation(
                OperationKind.APPROVAL_RESUME, step_id, sequence, handler_id, input_json
            ),
            wait,
        )

    async def _waited(self, invocation: Invocation, wait: Wait) -> Performed:
        self._refuse_nested()
        return await self._performer.wait_for(invocation, wait)

    def _refuse_nested(self) -> None:
        if self._above:
            raise InvalidInvocation(
                f"run {self.run_id}: inside an operation nothing is waited for that comes from"
                " outside; wait in the run itself, and give the operation what came"
            )

    async def poll(self, invocation: Invocation, name: str) -> bytes | None:
        """Return what the next message of a name says, if it has come; what adapters build on.

        Durable when it returns and if it raises: as `wait`.
        """

        async def said(message: Message) -> Outcome:
            return Success(encode({"said": (message.payload_json or b"null").decode()}))

        wait = Wait(name, said, None, Success(b"{}"))
        self._refuse_nested()
        performed = await self._performer.poll(invocation, wait)
        found = decode(performed.output(invocation.stable_key), what=f"message {name}")
        return None if "said" not in found else found["said"].encode()

    async def ask(
        self,
        step_id: str,
        sequence: int,
        name: str,
        arguments_json: bytes,
        kind: ApprovalKind,
        timeout_seconds: float | None = None,
        *,
        show: Callable[[], Awaitable[None]] | None = None,
    ) -> Answered:
        """Perform one operation that waits for an answer; what adapters build on.

        `show` is called in each execution that waits, once there is something to be answered.

        Durable when it returns: the answer, fsynced.
        If it raises: `WaitTimedOut`, or as `wait`.
        """
        store, fence = self._performer.store, self._performer.fence
        document = encode(
            {
                "kind": kind.value,
                "name": name,
                "arguments_json": arguments_json.decode(),
                "timeout_ms": milliseconds(timeout_seconds),
            }
        )
        invocation = self._invocation(
            OperationKind.APPROVAL_RESUME, step_id, sequence, "perdure.approval", document
        )
        item_id = item_of(invocation.step_id, sequence)

        async def begin(digest: bytes, wake_at: float | None) -> None:
            now = self._performer.clock.now()
            new = NewApproval(item_id, kind, name, arguments_json, now)
            await store.begin_approval(fence, invocation, digest, wake_at, new)

        async def outcome(message: Message) -> Outcome:
            del message
            found = await store.read_approval(fence.run_id, item_id)
            assert found is not None
            assert found.answer is not None
            return Success(encode_answer(found.answer, found.answered_by))

        late = Failure("WaitTimedOut", message=f"nobody answered {name!r} in {timeout_seconds} s")
        wait = Wait(answered(item_id), outcome, timeout_seconds, late, begin, show)
        performed = await self._waited(invocation, wait)
        if isinstance(performed.outcome, Failure):
            raise WaitTimedOut(name, performed.outcome.message)
        document = performed.output(item_id)
        return Answered(decode_answer(document), signer_of(document))

    def enter(self) -> None:
        """Make this the context that `current()` returns for the rest of the current task."""
        active.set(self)

    def _read(self, document: bytes, what: str, function: Callable[..., Any] | None) -> Any:
        try:
            return self._performer.codec.decode(document, what=what, function=function)
        except InvalidPayload as error:
            # Nobody can say what the code would do with the value that was recorded.
            self._performer.activity.cut(self._above)
            raise self._performer.tenure.park(error) from error

    def _own(self) -> None:
        task = asyncio.current_task()
        if self._task is None:
            self._task = task
            self._performer.activity.own(self.namespace, this_task())
        elif self._task is not task:
            raise ForeignTask(
                f"run {self.run_id}: a context is used by two tasks, whose order a replay cannot"
                " repeat; give each task its own: context.branch('name')"
            )

    def _within(self, name: str) -> str:
        """Return a name within the namespace of this context."""
        return f"{self.namespace}.{name}" if self.namespace else name

    def _child(self, name: str) -> Self:
        namespace = shortened(self._within(name))
        self._performer.activity.branch(namespace, of=self.namespace)
        return type(self)(
            self._performer,
            self.started_at,
            namespace,
            above=self._above,
            operation=self._operation,
        )

    def _invocation(
        self, kind: OperationKind, step_id: str, sequence: int, handler_id: str, input_json: bytes
    ) -> Invocation:
        step_id = self._within(step_id)
        return Invocation(self.run_id, step_id, sequence, kind, handler_id, input_json)
