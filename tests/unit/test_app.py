from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunFailed, RunState
from perdure.blocking import Bridge
from perdure.errors import EngineClosed, InvalidFunction, InvalidUrl, StorageMissing
from tests.harness import RUN, app_on, attempts, finish, run


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("runs.db", "is not a URL that perdure can open"),
        ("sqlite://runs.db", "is 'sqlite:///' and a path"),
        ("mysql://host/db", "is not a URL that perdure can open"),
        ("postgresql+psycopg://host/db", r"leave out '\+psycopg'"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///runs.db?mode=ro", "names no file"),
    ],
)
def test_a_url_that_names_no_file_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(InvalidUrl, match=complaint):
        App(url)


async def good(context: Context, value: Any = None) -> None:
    """Take what a run function takes."""


async def no_parameters() -> None: ...


async def three_parameters(context: Context, one: int, two: int) -> None: ...


async def needs_a_keyword(context: Context, *, key: int) -> None: ...


def not_async(context: Context) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "complaint"),
    [
        (not_async, {}, "'not_async' must be declared with async def"),
        (no_parameters, {}, "not 0 parameters"),
        (three_parameters, {}, "not 3 parameters; put several values into one input object"),
        (needs_a_keyword, {}, "needs 'key', which nobody passes"),
        (good, {"version": 0}, "a whole number from 1, not 0"),
        (good, {"version": True}, "a whole number from 1, not True"),
        (good, {"version": "1"}, "a whole number from 1, not '1'"),
        (good, {"name": "a b"}, "'a b' is not an identifier.*; pass name="),
        (good, {"name": "taken"}, "taken@1 is registered already; raise its version"),
    ],
)
def test_a_function_that_cannot_be_a_run_is_refused(
    tmp_path: Path, function: Any, options: dict[str, Any], complaint: str
) -> None:
    app = app_on(tmp_path)
    app.run(version=1, name="taken")(good)
    app.run(version=2, name="taken")(good)
    with pytest.raises(InvalidFunction, match=complaint):
        app.run(**{"version": 1, **options})(function)
    assert list(app.functions) == [("taken", 1), ("taken", 2)]


def test_an_app_is_open_once_and_only_inside_its_block(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    app = app_on(tmp_path)
    app.run(version=1)(good)
    closed = "the App is not open: use it inside `async with app:`"

    async def opened() -> str:
        async with app:
            await asyncio.sleep(0)
        return "closed again"

    async def main() -> None:
        with pytest.raises(EngineClosed, match=closed):
            await app.start(good, None)
        async with app:
            handle = await app.start(good, None)
            with pytest.raises(EngineClosed, match="open already"):
                async with app.connect():
                    pass
            assert await handle.result() is None
        store = handle._runs.store
        with pytest.raises(EngineClosed, match=closed):
            _ = app.store
        with pytest.raises(EngineClosed, match="the store is closed"):
            await store.request_cancel(RUN)
        outcomes = await asyncio.gather(opened(), opened(), return_exceptions=True)
        assert [*map(type, outcomes)] == [str, EngineClosed]

    run(main())
    assert set(threading.enumerate()) <= before


def test_connecting_executes_nothing_and_can_insist_on_a_store(tmp_path: Path) -> None:
    app = app_on(tmp_path)
    app.run(version=1)(good)

    async def main() -> None:
        with pytest.raises(StorageMissing, match="there is no database at"):
            async with app.connect(create=False):
                pass
        async with app.connect():
            await app.start(good, None, run_id=RUN)
            assert list(await app.store.list_workers()) == []
        async with app.connect(create=False):
            assert (await app.find(RUN)).state == RunState.PENDING

    run(main())
    assert run(finish(app)) is None


def test_a_program_without_a_loop_runs_to_the_result(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context, numbers: list[int]) -> int:
        if not numbers:
            raise ValueError("nothing to add")
        return await context.call(sum, numbers)

    assert app.run_sync(work, [1, 2], run_id=RUN) == 3
    assert app.run_sync("work", [1, 2], run_id=RUN, version=1) == 3
    with pytest.raises(RunFailed, match="nothing to add"):
        app.run_sync(work, [])
    assert app.observer.counts["perdure_run_started_total"] == 2


def test_an_interrupt_closes_the_app_and_the_run_goes_on_later(tmp_path: Path) -> None:
    app = app_on(tmp_path)
    interrupted = False
    main_thread = threading.main_thread().ident

    @app.run(version=1)
    async def work(context: Context) -> str:
        if not interrupted:
            signal.pthread_kill(main_thread, signal.SIGINT)
            await asyncio.Event().wait()
        return "done"

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        app.run_sync(work, run_id=RUN)
    assert set(threading.enumerate()) <= before
    interrupted = True
    assert app.run_sync(work, run_id=RUN) == "done"
    assert [entry.ending for entry in run(attempts(app))] == ["released", "completed"]


def test_a_bridge_ends_what_its_block_left_behind() -> None:
    ends: list[str] = []

    async def left(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(name)

    async def leave() -> asyncio.Task[None]:
        task = asyncio.create_task(left("task"))
        await asyncio.sleep(0)
        return task

    with Bridge() as bridge:
        bridge.call(leave())
        assert ends == []
    assert ends == ["task"]
