"""Runs that wait: Apps that put them away at once, and looks at where they stand."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from perdure import App, Context, RunState
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, app_on, until

WAITING = (RunState.SLEEPING, RunState.SUSPENDED)


def waiting_app(folder: Path, **options: Any) -> App:
    """Return an App whose runs are put away as soon as they only wait."""
    return app_on(folder, **{"linger_seconds": 0.0, **options})


def listening(folder: Path, *names: str, **options: Any) -> App:
    """Return an App whose one function waits for messages of these names, in turn."""
    app = waiting_app(folder, **options)

    @app.run(version=1)
    async def listen(context: Context) -> list[Any]:
        return [await context.wait_for(name) for name in names]

    return app


async def stands(app: App, *states: RunState, run_id: str = RUN) -> RunState:
    """Return as soon as there is a run that is in one of these states."""
    while (row := await app.store.read_run(run_id)) is None or row.state not in states:
        await asyncio.sleep(0)
    return row.state


async def put_away(app: App, run_id: str = RUN) -> RunState:
    """Return as soon as a run waits and takes nothing but rows."""
    return await stands(app, *WAITING, run_id=run_id)


async def until_given_up(app: App, run_id: str = RUN) -> None:
    """Return as soon as the worker of an App executes a run no more."""
    worker = app.engine._worker
    assert worker is not None
    await until(lambda: not worker.executes(run_id))


async def until_idle(app: App, run_id: str = RUN) -> None:
    """Return as soon as the worker of an App has seen that a run only waits."""
    worker = app.engine._worker
    assert worker is not None
    executions = worker._executions
    await until(lambda: run_id in executions and executions[run_id]._idle[0] >= 0)


async def ticks(app: App, count: int = 3) -> None:
    """Return once the worker of an App has looked for work so many times more."""
    worker = app.engine._worker
    assert worker is not None
    looked = 0
    look = worker._look_for_idle

    def counted() -> None:
        nonlocal looked
        looked += 1
        look()

    worker._look_for_idle = counted  # pyright: ignore[reportAttributeAccessIssue]
    try:
        await until(lambda: looked >= count)
    finally:
        worker._look_for_idle = look  # pyright: ignore[reportAttributeAccessIssue]


async def later(app: App, clock: ManualClock, seconds: float) -> None:
    """Turn a clock once the worker has come to rest, and let it look."""
    await ticks(app)
    clock.advance(seconds)
    await ticks(app)
