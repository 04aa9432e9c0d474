from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    App,
    Context,
    RunState,
    current,
    operation,
)
from perdure.errors import (
    RunNeedsAttention,
    StorageBusy,
    StorageError,
    StorageFull,
)
from perdure.testing.manual_clock import ManualClock
from tests.harness import (
    RUN,
    Pause,
    app_on,
    attempts,
    finish,
    interrupt,
    keys,
    run,
    sql,
    until,
)

ANY_ERROR = (Exception,)
ANYTHING = (BaseException,)


@operation(read_only=True)
async def one() -> int:
    return 1


async def pay() -> int:
    return 1


def refuse(app: App, method: str, *errors: Exception) -> None:
    """Make the open store refuse as often as there are errors, and obey then."""
    genuine = getattr(app.store, method)
    left = list(errors)

    async def refusing(*args: Any) -> Any:
        if left:
            raise left.pop(0)
        return await genuine(*args)

    setattr(app.store, method, refusing)


@pytest.mark.parametrize(
    ("method", "function"),
    [
        ("append_record", one),
        ("end_run", one),
        ("claim_effect", pay),
        ("settle_record", pay),
    ],
)
def test_a_busy_or_full_store_is_waited_for(
    tmp_path: Path, method: str, function: Callable[[], Awaitable[int]]
) -> None:
    clock = ManualClock()
    app = app_on(tmp_path, clock=clock)

    @app.run(version=1)
    async def work(context: Context) -> int:
        return await context.call(function)

    async def main() -> int:
        async with app:
            refuse(app, method, StorageBusy("busy"), StorageFull("full"))
            handle = await app.start(work, run_id=RUN)
            for pause in (0.05, 0.1):
                await clock.until_sleeping()
                clock.advance(pause)
            return await handle.result()

    assert run(main()) == 1
    assert app.observer.counts["perdure_operation_executed_total"] == 1
    assert len(run(attempts(app))) == 1


@pytest.mark.parametrize(
    "method", ["append_record", "claim_effect", "end_run", "begin_timer", "read_journal"]
)
def test_a_run_whose_store_refuses_is_given_back_and_completes_later(
    tmp_path: Path, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> int:
        number = 0
        for _ in range(2):
            # Code that makes an answer of every error must not get on without the operation.
            try:
                await context.sleep(0)
                number += await context.call(pay)
            except ANY_ERROR:
                number += 10
        return number

    async def main() -> int:
        async with app.connect():
            await app.start(work, run_id=RUN)
        sql(tmp_path, "UPDATE runs SET generation = 5")
        async with app:
            refuse(app, method, StorageError("the disk is on fire"))
            return await app.handle(RUN).result()

    assert run(main()) == 2
    assert [entry.ending for entry in run(attempts(app))] == ["released", "completed"]
    assert "stops here, to go on later: the disk is on fire" in caplog.text


def test_an_operation_around_a_refused_one_is_not_recorded(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> str:
        @operation(read_only=True)
        async def outer() -> str:
            try:
                return str(await context.branch("inner").call(one))
            except ANY_ERROR:
                return "swallowed"

        return await context.call(outer)

    async def main() -> str:
        async with app:
            refuse(app, "append_record", StorageError("no"))
            return await (await app.start(work, run_id=RUN)).result()

    assert run(main()) == "1"


@pytest.mark.parametrize("read_only", [True, False])
def test_a_stolen_run_writes_nothing_and_is_not_failed(tmp_path: Path, *, read_only: bool) -> None:
    app = app_on(tmp_path)
    after: list[str] = []

    @operation(read_only=read_only)
    async def steal() -> None:
        sql(tmp_path, "UPDATE runs SET holder = 'thief', generation = generation + 1")

    @app.run(version=1)
    async def work(context: Context) -> str:
        try:
            await context.call(steal)
        except ANYTHING as signal:
            after.append(type(signal).__name__)
        try:
            await context.call(one)
        except ANYTHING as signal:
            after.append(type(signal).__name__)
        return "finished after all"

    async def main() -> None:
        async with app:
            await app.start(work, run_id=RUN)
            await until(lambda: app.observer.counts["perdure_lease_lost_total"] == 1)
            row = await app.find(RUN)
            assert (row.state, row.holder, row.generation) == (RunState.RUNNING, "thief", 2)

    run(main())
    assert after == ["LeaseLost", "LeaseLost"]
    assert run(keys(app)) == []
    # What it did to the world is not this worker's to tell any more.
    open_ones = "SELECT count(*) FROM receipts WHERE state IN ('in_flight', 'ambiguous')"
    assert sql(tmp_path, open_ones) == [(0 if read_only else 1,)]
    assert app.observer.counts["perdure_lease_fencing_rejected_total"] == 1
    assert app.observer.counts["perdure_operation_executed_total"] == 1


def test_an_operation_around_a_mismatch_is_not_recorded(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    async def main() -> None:
        pause = Pause()

        @operation(read_only=True)
        async def outer() -> str:
            context = current()
            assert context is not None
            try:
                await context.call(abs, 2 if pause.open else 1)
                await pause()
            except ANYTHING:
                if pause.open:
                    return "swallowed"
                raise
            return "done"

        @app.run(version=1)
        async def work(context: Context) -> None:
            await context.call(outer)

        await interrupt(app, pause, work)
        with pytest.raises(RunNeedsAttention, match=f"{RUN}/call.1.call/1"):
            await finish(app)

    run(main())
    assert run(keys(app)) == [("call.1.call", 1)]
