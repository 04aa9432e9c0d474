from __future__ import annotations

import asyncio
from collections import Counter
from decimal import Decimal
from typing import Any

from perdure.app import App
from perdure.context import Context
from perdure.engine.store import RunState
from perdure.errors import InvalidPayload, RunConflict, RunFailed, UnknownFunction, UnknownRun
from perdure.testing.engine.scene import Scene, end_of
from perdure.testing.storage.expecting import ensure, expect, refusal


async def a_run_takes_and_returns_values_with_their_types(scene: Scene) -> None:
    """Wherever it was started and whoever asks for its result."""

    def serving(app: App) -> None:
        @app.run(version=1)
        async def half(_: Context, amounts: tuple[Decimal, ...]) -> set[Decimal]:
            return {amount / 2 for amount in amounts}

    worker, outsider = await scene.worker(serving), await scene.outsider(serving)
    for app, other in ((worker, outsider), (outsider, worker)):
        handle = await app.start("half", (Decimal("2.50"), Decimal(4)))
        expect(await end_of(handle), {Decimal("1.25"), Decimal(2)}, "what a run returned")
        again = await end_of(other.handle(handle.run_id))
        expect(again, {Decimal("1.25"), Decimal(2)}, "what another App is told")
        expect(await handle.status(), RunState.COMPLETED, "where it stands")


async def a_run_without_an_input_gets_its_default(scene: Scene) -> None:
    """Also a function that takes none."""

    def serving(app: App) -> None:
        @app.run(version=1)
        async def nothing(_: Context) -> str:
            return "nothing"

        @app.run(version=1)
        async def some(_: Context, number: int = 7) -> int:
            return number

    app = await scene.worker(serving)
    expect(await end_of(await app.start("nothing")), "nothing", "a function without an input")
    expect(await end_of(await app.start("some")), 7, "a function with a default")


async def a_run_is_started_once_by_its_id(scene: Scene) -> None:
    """However often and wherever, at once or after its end; another input is refused."""
    called: list[int] = []

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(_: Context, number: int) -> int:
            called.append(number)
            return number + 1

    worker, outsider = await scene.worker(serving), await scene.outsider(serving)
    run_id = scene.name()
    starting = [app.start("work", 1, run_id=run_id) for app in (worker, outsider, worker)]
    handles = await asyncio.gather(*starting)
    expect([await end_of(each) for each in handles], [2, 2, 2], "what all are told")
    expect(await end_of(await outsider.start("work", 1, run_id=run_id)), 2, "after the end")
    expect(called, [1], "how often it was executed")
    for app in (worker, outsider):
        with refusal(RunConflict, "the id of a run with another input"):
            await app.start("work", 2, run_id=run_id)
    expect(await end_of(worker.handle(run_id)), 2, "the run after a conflict")


async def a_run_that_raises_has_failed(scene: Scene) -> None:
    """With what it raised, for whoever asks."""

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(_: Context) -> None:
            raise KeyError("the cellar")

    worker, outsider = await scene.worker(serving), await scene.outsider(serving)
    handle = await outsider.start("work")
    for app in (worker, outsider, worker):
        try:
            await end_of(app.handle(handle.run_id))
        except RunFailed as failed:
            told = (failed.run_id, failed.code, failed.type_name)
            expect(told, (handle.run_id, "KeyError", "KeyError"), "how a run failed")
            ensure("the cellar" in failed.message, f"its message says why: {failed.message}")
        else:
            raise AssertionError("a run that raised returned something")
    expect(await handle.status(), RunState.FAILED, "where it stands")


async def what_cannot_be_started_leaves_nothing(scene: Scene) -> None:
    """An unknown function or version, and an input that cannot be stored."""

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(_: Context, value: Any = None) -> Any:
            return value

    for app in (await scene.worker(serving), await scene.outsider(serving)):
        with refusal(UnknownFunction, "a function that nobody registered"):
            await app.start("play", run_id=scene.name())
        with refusal(UnknownFunction, "a version that nobody registered"):
            await app.start("work", version=2, run_id=scene.name())
        with refusal(InvalidPayload, "an input that cannot be stored"):
            await app.start("work", object(), run_id=scene.name())
        run_id = scene.name()
        for asking in (app.find, app.cancel, app.resume):
            with refusal(UnknownRun, "a run that was never started"):
                await asking(run_id)
        with refusal(UnknownRun, "the result of a run that was never started"):
            await app.handle(run_id).result()
        expect(await app.list(), [], "the runs that are there")


async def several_workers_execute_each_run_once(scene: Scene) -> None:
    """Those that were started before there was a worker, too."""
    called: Counter[int] = Counter()

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(context: Context, number: int) -> int:
            called[number] += 1
            return await context.call(same, number)

    async def same(number: int) -> int:
        return number

    outsider = await scene.outsider(serving)
    handles = [await outsider.start("work", number) for number in range(4)]
    workers = [await scene.worker(serving) for _ in range(2)]
    handles += [await app.start("work", 4 + n) for n, app in enumerate([*workers, outsider])]
    results = await asyncio.gather(*(end_of(outsider.handle(each.run_id)) for each in handles))
    expect(results, [*range(7)], "what the runs return")
    expect(called, Counter(range(7)), "how often each was executed")
    listed = {row.run_id for row in await outsider.list(state=RunState.COMPLETED)}
    expect(listed, {each.run_id for each in handles}, "the runs that have completed")
