"""Runs that come to nothing again and again, and how often that is tried."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, RunNeedsAttention, operation
from perdure.errors import StorageError
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, Pause, app_on, attempts, interrupt, once, run, sql


def _lose(folder: Path, times: int, ending: str = "lost") -> None:
    """Leave a waiting run as workers that died with it, or let it go, would."""
    ((generation,),) = sql(folder, "SELECT generation FROM runs")
    for number in range(generation + 1, generation + times + 1):
        sql(
            folder,
            "INSERT INTO attempts (run_number, generation, holder, claimed_at, ended_at, ending)"
            " SELECT run_number, ?, 'gone', 1.0, 2.0, ? FROM runs",
            number,
            ending,
        )
    sql(folder, "UPDATE runs SET generation = generation + ?", times)


@pytest.mark.parametrize(
    ("losses", "parked"),
    [
        ([(10, "lost")], True),
        ([(9, "lost")], False),
        ([(9, "lost"), (1, "released"), (9, "lost")], False),
        ([(1, "released"), (10, "lost")], True),
    ],
)
def test_a_run_that_ten_workers_died_with_in_a_row_needs_attention(
    tmp_path: Path, losses: list[Any], *, parked: bool
) -> None:
    calls: list[str] = []
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> str:
        calls.append("work")
        return "done"

    async def main() -> None:
        async with app.connect():
            await app.start(work, run_id=RUN)
        for times, ending in losses:
            _lose(tmp_path, times, ending)
        if parked:
            with pytest.raises(RunNeedsAttention, match=f"perdure resume {RUN}") as raised:
                await once(app, work)
            assert (raised.value.code, calls) == ("WorkersLost", [])
            async with app.connect():
                await app.resume(RUN)
        assert await once(app, work) == "done"
        assert calls == ["work"]

    run(main())


@pytest.mark.parametrize(("losses", "parked"), [(9, False), (10, True)])
def test_a_run_that_recorded_something_meanwhile_goes_on(
    tmp_path: Path, losses: int, *, parked: bool
) -> None:
    app, pause = app_on(tmp_path), Pause()

    @operation(read_only=True)
    async def one() -> int:
        return 1

    @app.run(version=1)
    async def work(context: Context) -> int:
        number = await context.call(one)
        await pause()
        return number

    async def main() -> None:
        await interrupt(app, pause, work)
        sql(tmp_path, "UPDATE attempts SET ending = 'lost'")
        _lose(tmp_path, losses)
        if parked:
            with pytest.raises(RunNeedsAttention):
                await once(app, work)
        else:
            assert await once(app, work) == 1

    run(main())


def test_a_run_that_waits_for_a_time_may_be_lost_however_often(tmp_path: Path) -> None:
    clock = ManualClock()
    app = app_on(tmp_path, clock=clock, lease_seconds=1e9)

    @app.run(version=1)
    async def work(context: Context) -> str:
        await context.sleep(1e6)
        return "done"

    async def main() -> None:
        async with app:
            await app.start(work, run_id=RUN)
            await clock.until_sleeping()
        _lose(tmp_path, 10)
        async with app:
            await clock.until_sleeping()
            clock.advance(1e6)
            assert await app.handle(RUN).result() == "done"

    run(main())


def test_a_run_that_the_store_refuses_is_tried_again_later_each_time(tmp_path: Path) -> None:
    app = app_on(tmp_path)
    refusals = 2

    @app.run(version=1)
    async def work(context: Context) -> str:
        return await context.call(done)

    @operation(read_only=True)
    async def done() -> str:
        return "done"

    async def main() -> None:
        async with app:
            genuine = app.store.append_record

            async def refusing(*args: Any) -> None:
                nonlocal refusals
                refusals -= 1
                if refusals >= 0:
                    raise StorageError("not now")
                await genuine(*args)

            app.store.append_record = refusing
            assert await (await app.start(work, run_id=RUN)).result() == "done"

    run(main())
    claimed = [entry.claimed_at for entry in run(attempts(app))]
    gaps = [later - earlier for earlier, later in pairwise(claimed)]
    # By the clock of a server, which is known only about.
    assert all(gap > 0.6 * least for gap, least in zip(gaps, (0.25, 0.5), strict=True))
