from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import App, Context, RunState
from tests.harness import RUN, app_on, run

pytestmark = pytest.mark.usefixtures("storage")


def fan_out(folder: Path, executed: list[int]) -> App:
    """Return an App whose run starts eight others, and waits for a word before it ends."""
    app = app_on(folder, linger_seconds=0.0)

    @app.run(version=1)
    async def part(context: Context, number: int) -> int:
        async def work() -> int:
            executed.append(number)
            return number * number

        return await context.call(work)

    @app.run(version=1)
    async def whole(context: Context) -> int:
        parts = [await context.start_child(part, number) for number in range(8)]
        results = [await each.result() for each in parts]
        return sum(results) if await context.wait_for("gate") else 0

    return app


def test_a_run_that_fanned_out_goes_on_without_running_its_children_again(tmp_path: Path) -> None:
    """T04: a fan-out of eight, then a gate, then other processes."""
    executed: list[int] = []

    async def main() -> None:
        async with fan_out(tmp_path, executed) as app:
            await app.start("whole", run_id=RUN)

            async def gate_is_reached() -> bool:
                row = await app.find(RUN)
                timers = (await app.store.read_journal(RUN)).timers
                waits = [timer.awaits for timer in timers]
                return row.state is RunState.SUSPENDED and waits == ["gate"]

            while not await gate_is_reached():
                await asyncio.sleep(0)
        for _ in range(2):
            async with fan_out(tmp_path, executed):
                pass
        async with fan_out(tmp_path, executed) as app:
            await app.send(RUN, "gate", payload=True)
            assert await app.handle(RUN).result() == sum(number * number for number in range(8))
            assert sorted(executed) == [*range(8)]
            last = (await app.store.list_attempts(RUN))[-1]
            assert (last.executed, last.replayed) == (0, 16), "executed and replayed are reported"
            assert len(await app.list()) == 9

    run(main())
