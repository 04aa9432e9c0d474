from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure import Context, OperationFailed, RunNeedsAttention
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
from tests.harness import RUN, Pause, app_on, finish, interrupt, keys, once, operations, run

TOOL = OperationKind.TOOL_CALL


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

    def binding(self, context: Context, namespace: str = "") -> Binding:
        runtime = EmbeddedRuntime(context, self.handlers)
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
