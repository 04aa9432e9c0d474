"""What every runtime promises of operations, as checks that run on any of them.

A check gets a function that calls code with a `Runtime`, and calls it a few times: each time is an
execution of one and the same run, as after a crash, and the run has to be the check's own. It is
given the handlers that are to be behind the runtime, those of `REGISTERED`, and the code, which
takes the runtime and the id of the run. It returns or raises what the code does, or the error for
which a runtime stops the run. A check raises `AssertionError` where the runtime does something else
than `perdure.journal.runtime.Runtime` says. Only a repeat within one execution may be refused with
`DuplicateOperation`, by a runtime that holds it for a mistake.

    async def host(handlers, code):
        async with workers_of(my_queue, handlers):
            return await code(MyRuntime(my_queue), "run-1")

    for check in checks():
        asyncio.run(check(host))

Operations are requests of models, which change nothing: one that was cut short may be called again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from perdure.canonical import INPUT_LIMIT_BYTES, RECORD_LIMIT_BYTES
from perdure.errors import (
    DuplicateOperation,
    InvalidInvocation,
    InvalidPayload,
    MissingHandler,
    ReplayMismatch,
    RuntimeRecordMismatch,
)
from perdure.journal.handlers import Handlers
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.record import (
    Failure,
    Outcome,
    Record,
    Success,
    Suspended,
    SuspensionReason,
)
from perdure.journal.runtime import Runtime
from perdure.testing.storage.expecting import expect, refusal, within

T = TypeVar("T")

REGISTERED: Final = (
    (OperationKind.MODEL_REQUEST, "model"),
    (OperationKind.MODEL_REQUEST, "other-model"),
    (OperationKind.MODEL_STREAM, "model"),
)
"""The kinds and handler ids that a runtime is to have workers for."""

_REQUEST: Final = OperationKind.MODEL_REQUEST
_REFUSED: Final = (RuntimeRecordMismatch, ReplayMismatch, DuplicateOperation)
_LAST: Final = 2**64 - 1

Code: TypeAlias = Callable[[Runtime, str], Awaitable[T]]


class Host(Protocol):
    """Calls code with the runtime of a run, with workers of these handlers behind it."""

    async def __call__(self, handlers: Handlers, code: Code[T], /) -> T:
        """Return or raise what the code does."""
        ...


class RuntimeCheck(msgspec.Struct, frozen=True):
    """One promise: `name` says what holds."""

    name: str
    holds: Callable[[Host], Awaitable[None]]

    async def __call__(self, host: Host) -> None:
        """Check it in a run of its own; raises `AssertionError` if it is not kept."""
        await self.holds(host)


def checks() -> list[RuntimeCheck]:
    """Return every check."""
    return [
        RuntimeCheck(name, holds)
        for name, holds in globals().items()
        if inspect.iscoroutinefunction(holds) and holds.__module__ == __name__
        if not name.startswith("_")
    ]


async def an_operation_is_called_once(host: Host) -> None:
    """Whoever executes it again gets its record, byte for byte, in any execution of the run."""
    models = _Models()

    async def twice(runtime: Runtime, run_id: str) -> list[Record]:
        asked = [_asked(run_id, sequence=sequence) for sequence in (0, _LAST)]
        records = [await _executed(runtime, each) for each in asked]
        for record in records:
            with suppress(DuplicateOperation):
                expect(await _executed(runtime, record.invocation), record, "a repeat")
        return records

    first = await host(models.handlers, twice)
    expect({each.outcome for each in first}, {Success(b'{"of": [1, 2]}')}, "what it came to")
    for _ in range(2):
        expect(await host(models.handlers, twice), first, "what another execution is told")
    expect(models.called, ["model_request model"] * 2, "what was called")


async def another_input_under_a_key_is_refused(host: Host) -> None:
    """Its spelling is part of it."""
    await _is_refused(host, input_json=b"[1,2]")


async def another_kind_under_a_key_is_refused(host: Host) -> None:
    """Although its handler is called the same."""
    await _is_refused(host, kind=OperationKind.MODEL_STREAM)


async def another_handler_under_a_key_is_refused(host: Host) -> None:
    """Although its input is the same."""
    await _is_refused(host, handler_id="other-model")


async def kind_and_handler_say_what_is_called(host: Host) -> None:
    """And nothing else."""
    models = _Models()

    async def each(runtime: Runtime, run_id: str) -> None:
        for sequence, (kind, handler_id) in enumerate(REGISTERED):
            await _executed(runtime, _asked(run_id, b"1", sequence, kind, handler_id))

    await host(models.handlers, each)
    expect(models.called, [f"{kind} {name}" for kind, name in REGISTERED], "what was called")


async def whatever_it_came_to_is_recorded(host: Host) -> None:
    """A failure, a suspension, an exception, and an output that is none."""
    models = _Models()

    async def every(runtime: Runtime, run_id: str) -> list[Record]:
        asked = [b'"fail"', b'"suspend"', b'"raise"', b'"garble"']
        return [
            await _executed(runtime, _asked(run_id, document, n))
            for n, document in enumerate(asked)
        ]

    first = await host(models.handlers, every)
    failed, suspended, raised, garbled = (each.outcome for each in first)
    expect(failed, Failure("Overloaded", retryable=True), "a failure")
    expect(suspended, Suspended(SuspensionReason.APPROVAL, b'{"for": 1}'), "a suspension")
    for outcome, name in ((raised, "ConnectionResetError"), (garbled, "InvalidPayload")):
        expect(isinstance(outcome, Failure) and outcome.error_name, name, "what is no outcome")
    expect(await host(models.handlers, every), first, "what another execution is told")
    expect(len(models.called), 4, "how often it was called")


async def what_cannot_be_executed_is_refused_first(host: Host) -> None:
    """Before anything is called or recorded: what was meant may be executed under the key."""
    models = _Models()
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"step_id": "a b"}, InvalidInvocation),
        ({"sequence": 2**64}, InvalidInvocation),
        ({"input_json": b'{"a": 1, "a": 1}'}, InvalidPayload),
        ({"input_json": b"NaN"}, InvalidPayload),
        ({"input_json": b"1" * (INPUT_LIMIT_BYTES + 1)}, InvalidPayload),
        ({"handler_id": "nobody"}, MissingHandler),
    ]

    async def every(runtime: Runtime, run_id: str) -> Record:
        right = _asked(run_id)
        for changes, error in wrong:
            with refusal(error, f"an operation with {str(changes)[:80]}"):
                await _executed(runtime, msgspec.structs.replace(right, **changes))
        expect(models.called, [], "what was called")
        return await _executed(runtime, right)

    record = await host(models.handlers, every)
    expect(record.outcome, Success(b'{"of": [1, 2]}'), "what was meant")


async def an_output_over_the_limit_is_a_failure(host: Host) -> None:
    """It is recorded, and nothing is called again."""
    models = _Models()

    async def grown(runtime: Runtime, run_id: str) -> Record:
        return await _executed(runtime, _asked(run_id, b'"grow"'))

    outcomes = [(await host(models.handlers, grown)).outcome for _ in range(2)]
    names = [isinstance(each, Failure) and each.error_name for each in outcomes]
    expect(names, ["InvalidPayload"] * 2, "what an output that is too large comes to")
    expect(len(models.called), 1, "how often it was called")


async def of_those_that_ask_at_once_one_is_served(host: Host) -> None:
    """The others get its record, or are told that it is under way."""
    models = _Models()

    async def together(runtime: Runtime, run_id: str) -> list[Record | BaseException]:
        asked = _asked(run_id, b'"hold"')
        asking = [asyncio.ensure_future(_executed(runtime, asked)) for _ in range(4)]
        await within(models.begun.wait(), "an operation is called")
        models.may_end.set()
        return await asyncio.gather(*asking, return_exceptions=True)

    told = await host(models.handlers, together)
    records = [each for each in told if isinstance(each, Record)]
    others = [each for each in told if not isinstance(each, Record | DuplicateOperation)]
    expect(others, [], "what is neither a record nor a refusal")
    expect({each.outcome for each in records}, {Success(b'{"of": "hold"}')}, "what they are told")
    expect(len(models.called), 1, "how often it was called")


class _Models:
    """Worker functions that do what their input says, and note who was called."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.handlers = Handlers()
        for kind, handler_id in REGISTERED:
            self._register(kind, handler_id)

    def _register(self, kind: OperationKind, handler_id: str) -> None:
        async def answer(invocation: Invocation) -> Outcome:
            self.called.append(f"{kind} {handler_id}")
            return await self._answer(invocation)

        self.handlers.register(kind, handler_id, answer)

    async def _answer(self, invocation: Invocation) -> Outcome:
        self.begun.set()
        match invocation.input_json:
            case b'"fail"':
                return Failure("Overloaded", retryable=True)
            case b'"suspend"':
                return Suspended(SuspensionReason.APPROVAL, b'{"for": 1}')
            case b'"raise"':
                raise ConnectionResetError("the model went away")
            case b'"garble"':
                return Success(b"{")
            case b'"grow"':
                return Success(b'"' + b"x" * RECORD_LIMIT_BYTES + b'"')
            case b'"hold"':
                await self.may_end.wait()
            case _:
                pass
        return Success(b'{"of": ' + invocation.input_json + b"}")


def _asked(
    run_id: str,
    input_json: bytes = b"[1, 2]",
    sequence: int = 1,
    kind: OperationKind = _REQUEST,
    handler_id: str = "model",
) -> Invocation:
    return Invocation(run_id, "ask", sequence, kind, handler_id, input_json)


async def _executed(runtime: Runtime, invocation: Invocation) -> Record:
    record = await within(runtime.execute(invocation), f"the record of {invocation.stable_key}")
    expect(record.invocation, invocation, "what a record is of")
    return record


async def _is_refused(host: Host, **changes: Any) -> None:
    """Have an operation executed, and then another one under its key, here and later."""
    models = _Models()

    async def right(runtime: Runtime, run_id: str) -> None:
        await _executed(runtime, _asked(run_id))

    async def wrong(runtime: Runtime, run_id: str) -> None:
        await _executed(runtime, msgspec.structs.replace(_asked(run_id), **changes))

    async def both(runtime: Runtime, run_id: str) -> None:
        await right(runtime, run_id)
        await wrong(runtime, run_id)

    await host(models.handlers, right)
    for code in (both, wrong):
        with refusal(_REFUSED, f"an operation with {changes} under a key that is taken"):
            await host(models.handlers, code)
    expect(models.called, ["model_request model"], "what was called")
