from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Context,
    EffectRejected,
    OperationFailed,
    RetryPolicy,
    RunNeedsAttention,
    current,
)
from perdure.declaration import EffectDeclaration, Verdict
from perdure.engine.history import OperationRow
from perdure.errors import InvalidInvocation, InvalidPayload, MissingHandler, OperationSuspended
from perdure.journal import (
    Binding,
    Failure,
    Handlers,
    Invocation,
    OperationKind,
    Outcome,
    Success,
    Suspended,
    SuspensionReason,
)
from perdure.runtimes.embedded import EmbeddedRuntime
from perdure.terms import Terms, TermsOf
from perdure.testing.manual_clock import ManualClock
from tests.harness import (
    RUN,
    Pause,
    app_on,
    finish,
    in_time,
    interrupt,
    keys,
    once,
    operations,
    run,
    sql,
)

TOOL = OperationKind.TOOL_CALL
NO_EFFECT = {(TOOL, "tools"): None}


class Worker:
    """A worker function that gives one outcome and remembers what it was asked."""

    def __init__(self, outcome: Outcome | Exception | None = None) -> None:
        self.outcome = outcome
        self.asked: list[Invocation] = []
        self.handlers = Handlers()
        self.handlers.register(TOOL, "tools", self)

    async def __call__(self, invocation: Invocation) -> Outcome:
        self.asked.append(invocation)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome or Success(b'{"of": ' + invocation.input_json + b"}")

    def binding(
        self,
        context: Context,
        namespace: str = "",
        effects: Mapping[tuple[OperationKind, str], EffectDeclaration | TermsOf | None] = NO_EFFECT,
    ) -> Binding:
        runtime = EmbeddedRuntime(context, self.handlers, effects=effects)
        return Binding(
            run_id=RUN, runtime=runtime, handler_ids={TOOL: "tools"}, namespace=namespace
        )


def test_a_binding_is_performed_once_and_replayed_byte_for_byte(tmp_path: Path) -> None:
    worker = Worker()
    app = app_on(tmp_path)

    async def main() -> list[str]:
        pause = Pause()

        @app.run(version=1)
        async def work(context: Context) -> list[str]:
            binding = worker.binding(context, "agent")
            outputs = [
                (await binding.execute(TOOL, "tool", sequence, b"[1, 2]")).output_json.decode()
                for sequence in (0, 2**64 - 1)
            ]
            await pause()
            return outputs

        await interrupt(app, pause, work)
        return await finish(app)

    assert run(main()) == ['{"of": [1, 2]}'] * 2
    assert [asked.sequence for asked in worker.asked] == [0, 2**64 - 1]
    assert run(keys(app)) == [("agent.tool", 0), ("agent.tool", 2**64 - 1)]


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Failure("Refused", retryable=True, message="no"), "Refused"),
        (ValueError("no"), "ValueError"),
        (Success(b'{"a": 1, "a": 2}'), "InvalidPayload"),
        (Success(b"NaN"), "InvalidPayload"),
        (Success(b""), "InvalidPayload"),
        (Failure("not an identifier"), "InvalidRecord"),
        (Success(b'"' + b"x" * 8 * 1024 * 1024 + b'"'), "InvalidPayload"),
    ],
    ids=["failure", "raised", "twice", "nan", "empty", "name", "oversize"],
)
def test_what_is_no_success_is_recorded_as_a_failure(
    tmp_path: Path, outcome: Any, code: str
) -> None:
    worker = Worker(outcome)
    app = app_on(tmp_path)

    async def main() -> None:
        pause = Pause()

        @app.run(version=1)
        async def work(context: Context) -> None:
            with pytest.raises(OperationFailed) as caught:
                await worker.binding(context).execute(TOOL, "tool", 1, b"1")
            assert caught.value.code == code
            await pause()

        await interrupt(app, pause, work)
        await finish(app)

    run(main())
    assert len(worker.asked) == 1
    assert [row.status for row in run(operations(app))] == ["failure"]


def test_a_suspension_is_recorded_too(tmp_path: Path) -> None:
    worker = Worker(Suspended(SuspensionReason.APPROVAL, b"[]"))
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> None:
        with pytest.raises(OperationSuspended, match="approval"):
            await worker.binding(context).execute(TOOL, "tool", 1, b"1")

    run(once(app, work))
    assert [row.status for row in run(operations(app))] == ["suspended"]


def test_what_cannot_be_executed_is_refused_before_the_worker_is_called(tmp_path: Path) -> None:
    worker = Worker()
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> None:
        runtime = EmbeddedRuntime(context, worker.handlers)
        for invocation, error in [
            (Invocation("run-2", "tool", 1, TOOL, "tools", b"1"), InvalidInvocation),
            (Invocation(RUN, "a b", 1, TOOL, "tools", b"1"), InvalidInvocation),
            (Invocation(RUN, "tool", 2**64, TOOL, "tools", b"1"), InvalidInvocation),
            (Invocation(RUN, "tool", 1, TOOL, "tools", b'{"a":1,"a":1}'), InvalidPayload),
            (Invocation(RUN, "tool", 1, TOOL, "tools", b'"\\ud800"'), InvalidPayload),
            (Invocation(RUN, "tool", 1, TOOL, "tools", b"1" * (2 * 1024**2 + 1)), InvalidPayload),
            (Invocation(RUN, "tool", 1, TOOL, "others", b"1"), MissingHandler),
        ]:
            with pytest.raises(error):
                await runtime.execute(invocation)

    run(once(app, work))
    assert worker.asked == []
    assert run(keys(app)) == []


def test_the_spelling_of_an_input_is_part_of_what_was_asked(tmp_path: Path) -> None:
    worker = Worker()
    app = app_on(tmp_path)

    async def main() -> None:
        pause = Pause()

        @app.run(version=1)
        async def work(context: Context) -> None:
            document = b"[1,2]" if pause.open else b"[1, 2]"
            await worker.binding(context).execute(TOOL, "tool", 1, document)
            await pause()

        await interrupt(app, pause, work)
        with pytest.raises(RunNeedsAttention, match=f"{RUN}/tool/1"):
            await finish(app)

    run(main())
    assert len(worker.asked) == 1


async def _one_call(
    folder: Path, kind: OperationKind, worker: Any
) -> tuple[list[OperationRow], list[Any], OperationFailed | RunNeedsAttention | None]:
    """Execute one operation; return its records, its receipts and how it failed."""
    app = app_on(folder, clock=(clock := ManualClock()))
    handlers, problem = Handlers(), None
    handlers.register(kind, "work", worker)

    @app.run(version=1)
    async def work(context: Context) -> None:
        nonlocal problem
        runtime = EmbeddedRuntime(context, handlers)
        binding = Binding(run_id=RUN, runtime=runtime, handler_ids={kind: "work"})
        try:
            await binding.execute(kind, "step", 1, b"1")
        except OperationFailed as failed:
            problem = failed

    try:
        await in_time(clock, once(app, work))
    except RunNeedsAttention as parked:
        problem = parked
    receipts = sql(folder, "SELECT support, state, attempt FROM receipts")
    return await operations(app), receipts, problem


@pytest.mark.parametrize("kind", list(OperationKind))
def test_workers_have_the_effect_of_their_kind(tmp_path: Path, kind: OperationKind) -> None:
    rows, receipts, problem = run(_one_call(tmp_path, kind, Worker()))
    support = {
        OperationKind.TOOL_CALL: ["at_least_once"],
        OperationKind.MCP_REQUEST: ["at_least_once"],
        OperationKind.EVENT_DELIVERY: ["idempotent"],
    }.get(kind, [])
    assert receipts == [(each, "completed", 1) for each in support]
    assert ([row.status for row in rows], problem) == (["success"], None)


@pytest.mark.parametrize(
    ("outcome", "code", "states", "recorded"),
    [
        (Failure("EffectRejected", message="no funds"), "EffectRejected", "failed", True),
        (Failure("EffectNotSent", message="offline"), "EffectNotSent", "failed", True),
        (EffectRejected("no funds"), "EffectRejected", "failed", True),
        (Success(b"NaN"), "InvalidPayload", "completed", True),
        (Failure("Timeout", message="no reply"), "EffectAmbiguous", "ambiguous", False),
        (Failure("not an identifier"), "EffectAmbiguous", "ambiguous", False),
        (ValueError("no"), "EffectAmbiguous", "ambiguous", False),
    ],
    ids=["rejected", "not-sent", "raised-refusal", "nan", "failure", "name", "raised"],
)
def test_what_a_worker_with_an_effect_says_of_it(
    tmp_path: Path, outcome: Any, code: str, states: str, *, recorded: bool
) -> None:
    worker = Worker(outcome)
    rows, receipts, problem = run(_one_call(tmp_path, TOOL, worker))
    assert problem is not None
    assert (problem.code, receipts) == (code, [("at_least_once", states, 1)])
    assert [row.status for row in rows] == ["failure"] * recorded
    assert len(worker.asked) == 1


def test_an_event_is_delivered_again_under_its_key(tmp_path: Path) -> None:
    keys_seen: list[str | None] = []

    async def deliver(invocation: Invocation) -> Outcome:
        context = current()
        assert context is not None
        keys_seen.append(context.operation and context.operation.operation_key)
        if len(keys_seen) < 3:
            raise ConnectionError("no reply")
        return Success(b"1")

    rows, receipts, problem = run(_one_call(tmp_path, OperationKind.EVENT_DELIVERY, deliver))
    assert len(keys_seen) == 3
    assert len(set(keys_seen) - {None}) == 1
    assert receipts == [("idempotent", "completed", 3)]
    assert ([row.status for row in rows], problem) == (["success"], None)


def test_who_tells_the_terms_of_each_operation_is_not_asked_on_a_replay(tmp_path: Path) -> None:
    worker = Worker()
    app = app_on(tmp_path)
    asked: list[int] = []

    async def terms(invocation: Invocation) -> Terms:
        asked.append(invocation.sequence)
        if invocation.sequence == 1:
            return Terms()
        return Terms(effect=EffectDeclaration(), verdict_of=lambda outcome: Verdict.UNKNOWN)

    async def main() -> None:
        pause = Pause()

        @app.run(version=1)
        async def work(context: Context) -> None:
            binding = worker.binding(context.branch("a"), "agent", effects={(TOOL, "tools"): terms})
            for sequence in (1, 2):
                await binding.execute(TOOL, "tool", sequence, b"1")
            await pause()

        await interrupt(app, pause, work)
        await finish(app)

    run(main())
    assert asked == [1, 2]
    assert sql(tmp_path, "SELECT state FROM receipts") == [("ambiguous",)]
    assert [row.status for row in run(operations(app))] == ["success", "success"]


def test_a_worker_is_tried_again_as_its_terms_say(tmp_path: Path) -> None:
    worker = Worker(ConnectionError("gone"))
    app = app_on(tmp_path, clock=(clock := ManualClock()))

    async def terms(invocation: Invocation) -> Terms:
        return Terms(retry=RetryPolicy(attempts=4))

    @app.run(version=1)
    async def work(context: Context) -> None:
        binding = worker.binding(context, effects={(TOOL, "tools"): terms})
        with pytest.raises(OperationFailed, match="gone"):
            await binding.execute(TOOL, "tool", 1, b"1")

    run(in_time(clock, once(app, work)))
    assert len(worker.asked) == 4
