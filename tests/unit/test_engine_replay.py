from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    App,
    Context,
    RunState,
    operation,
)
from perdure.errors import (
    RunCancelled,
    RunNeedsAttention,
)
from perdure.journal import OperationKind, Outcome, Success
from tests.harness import (
    RUN,
    Pause,
    app_on,
    attempts,
    finish,
    interrupt,
    run,
    sql,
)

pytestmark = pytest.mark.usefixtures("storage")


def test_equal_inputs_have_equal_digests_however_they_were_built(tmp_path: Path) -> None:
    """T08"""
    app = app_on(tmp_path)
    calls: list[Any] = []

    async def take(value: Any) -> int:
        calls.append(value)
        return len(calls)

    async def main() -> Any:
        pause = Pause()
        shared: list[Any] = [1, {"k": "v"}]

        @app.run(version=1)
        async def work(context: Context) -> int:
            value = {"a": shared, "b": shared}
            if pause.open:
                value = {"b": [1, {"k": "".join("v")}], "a": [1, {"k": "v"}]}
            number = await context.call(take, value)
            await pause()
            return number

        await interrupt(app, pause, work)
        return await finish(app)

    assert run(main()) == 1
    assert len(calls) == 1


def versions_app(folder: Path, pause: Pause, *versions: int) -> App:
    app = app_on(folder)
    for version in versions:

        @app.run(version=version, name="work")
        async def work(context: Context, version: int = version) -> str:
            await pause()
            return f"version {version}"

    return app


def test_a_run_goes_on_with_the_version_it_was_started_on(tmp_path: Path) -> None:
    async def main() -> None:
        pause = Pause()
        await interrupt(versions_app(tmp_path, pause, 1), pause, "work", 1)
        newest = versions_app(tmp_path, pause, 2)
        async with newest:
            assert await (await newest.start("work", 2, run_id="run-2")).result() == "version 2"
            assert await newest.handle(RUN).status() == RunState.PENDING
            (waiting,) = await newest.store.unserved(newest.functions)
            assert (waiting.run_id, waiting.version) == (RUN, 1)
        both = versions_app(tmp_path, pause, 1, 2)
        assert await finish(both) == "version 1"
        async with both:
            assert await (await both.start("work", 1, version=1)).result() == "version 1"

    run(main())


async def ask(number: int) -> int:
    return number


@operation(name="ask", version=2)
async def ask_anew(number: int) -> int:
    return number


async def answer() -> Outcome:
    return Success(b"1")


def mismatching(
    folder: Path, code: str, swallow: tuple[type[BaseException], ...], pause: Pause
) -> App:
    """Return an App with one of several codes of a run that was recorded by "right"."""
    app = app_on(folder)

    @app.run(version=1)
    async def work(context: Context) -> str:
        try:
            if code == "handler":
                await context.call(ask_anew, 1)
            else:
                await context.call(ask, 1 if code == "right" else 2)
            await pause()
        except swallow:
            with contextlib.suppress(*swallow):
                await context.perform(OperationKind.TOOL_CALL, "tool", 1, "tools", b"1", answer)
        return "done"

    return app


@pytest.mark.parametrize(
    "swallow", [(), (Exception,), (BaseException,)], ids=["none", "errors", "all"]
)
@pytest.mark.parametrize("code", ["input", "handler"])
def test_changed_code_is_parked_at_once_and_goes_on_under_the_right_one(
    tmp_path: Path, code: str, swallow: tuple[type[BaseException], ...]
) -> None:
    """T13"""
    right, wrong = (hashlib.sha256(b'{"args":[%d],"kwargs":{}}' % n).hexdigest() for n in (1, 2))

    async def main() -> None:
        pause = Pause()
        await interrupt(mismatching(tmp_path, "right", (), pause), pause, "work")
        changed = mismatching(tmp_path, code, swallow, pause)
        async with changed:
            with pytest.raises(RunNeedsAttention) as caught:
                await changed.handle(RUN).result()
            assert await changed.handle(RUN).status() == RunState.NEEDS_ATTENTION
        asked = ("'ask'", wrong) if code == "input" else ("'ask.v2'", right)
        for part in (f"{RUN}/call/1", "tool_call by 'ask' with", right, *asked):
            assert part in caught.value.message
        assert (": args[0] was 1 and is 2; nothing" in caught.value.message) == (code == "input")
        assert caught.value.code == "ReplayMismatch"
        assert changed.observer.counts["perdure_operation_executed_total"] == 0
        repaired = mismatching(tmp_path, "right", (), pause)
        async with repaired.connect():
            row = await repaired.resume(RUN)
            assert (row.state, row.problem, row.finished_at) == (RunState.PENDING, None, None)
        assert await finish(repaired) == "done"

    run(main())
    endings = [entry.ending for entry in run(attempts(app_on(tmp_path)))]
    assert endings == ["released", "needs_attention", "completed"]


def test_a_parked_run_can_be_cancelled(tmp_path: Path) -> None:
    """T13"""

    async def main() -> None:
        pause = Pause()
        await interrupt(mismatching(tmp_path, "right", (), pause), pause, "work")
        changed = mismatching(tmp_path, "input", (), pause)
        async with changed:
            with pytest.raises(RunNeedsAttention):
                await changed.handle(RUN).result()
            assert await changed.handle(RUN).cancel() == RunState.CANCELLED
            with pytest.raises(RunCancelled):
                await changed.handle(RUN).result()
            assert (await changed.resume(RUN)).state == RunState.CANCELLED

    run(main())


def test_a_cancellation_asked_for_while_a_run_is_being_parked_is_not_lost(tmp_path: Path) -> None:
    async def main() -> None:
        pause = Pause()
        await interrupt(mismatching(tmp_path, "right", (), pause), pause, "work")
        changed = mismatching(tmp_path, "input", (), pause)
        async with changed.connect():
            await changed.start("work", run_id=RUN)
        async with changed:
            genuine = changed.store.end_run

            async def end_late(*args: Any) -> RunState:
                sql(tmp_path, "UPDATE runs SET cancel_requested = TRUE")
                return await genuine(*args)

            setattr(changed.store, "end_run", end_late)  # noqa: B010 - a protocol's method
            with pytest.raises(RunCancelled):
                await changed.handle(RUN).result()
            assert (await changed.find(RUN)).state == RunState.CANCELLED

    run(main())
    assert [a.ending for a in run(attempts(app_on(tmp_path)))] == ["released", "cancelled"]


def test_a_new_comment_and_new_unrelated_functions_change_nothing(tmp_path: Path) -> None:
    """T14"""

    async def main() -> str:
        pause = Pause()
        await interrupt(mismatching(tmp_path, "right", (), pause), pause, "work")
        edited = app_on(tmp_path)

        @edited.run(version=1)
        async def added(context: Context) -> None:
            """Stand in front of the other one."""

        @edited.run(version=1)
        async def work(context: Context) -> str:
            # The same operations, another wording.
            number = await context.call(ask, 1)
            await pause()
            return "done" if number == 1 else "?"

        return await finish(edited)

    assert run(main()) == "done"
