from __future__ import annotations

import re

from perdure.app import App
from perdure.context import Context
from perdure.testing.engine.scene import Scene, end_of, until
from perdure.testing.storage.expecting import ensure, expect


async def a_tick_starts_one_run(scene: Scene) -> None:
    """However many workers there are; it has the input, and an id that tells the tick."""
    executed: list[str] = []
    name = scene.name("beat")

    def serving(app: App) -> None:
        @app.run(version=1)
        async def beat(context: Context, numbers: list[int]) -> int:
            executed.append(context.run_id)
            return sum(numbers)

        app.schedule(beat, every_seconds=1, name=name, input=[1, 2])

    one, other = await scene.worker(serving), await scene.worker(serving)
    await until(lambda: len({*executed}) >= 2, "two ticks of a second each start runs")
    await one.pause_schedule(name)
    (row,) = await one.schedules()
    expect((row.name, row.function, row.paused), (name, "beat", True), "the schedule")
    started = [row.run_id for row in await one.list()]
    for run_id in started:
        ensure(
            re.fullmatch(rf"schedule\.{name}\.\d{{8}}T\d{{6}}Z", run_id), f"{run_id} tells a tick"
        )
        expect(await end_of(other.handle(run_id)), 3, "what a run of it returns")
    expect(sorted(executed), sorted({*executed}), "what was executed, each once")
