from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, operation
from perdure.cli import main
from perdure.engine.rehearsal import Rehearsed, Verdict
from perdure.engine.strays import Strays
from perdure.errors import RunFailed
from tests.harness import run

Body = Callable[[Context], Awaitable[Any]]
calls: list[str] = []
left: list[asyncio.Task[Any]] = []


@operation(read_only=True)
async def price(of: str) -> int:
    calls.append(of)
    return len(of)


async def pay(amount: int) -> str:
    calls.append(f"pay {amount}")
    return "paid"


async def fail() -> None:
    raise ValueError("no luck")


async def two(context: Context) -> int:
    return await context.call(price, "tea") + await context.call(price, "coffee")


async def other_argument(context: Context) -> int:
    return await context.call(price, "tea") + await context.call(price, "cocoa")


async def one(context: Context) -> int:
    return await context.call(price, "tea")


async def three(context: Context) -> int:
    return await two(context) + await context.call(price, "milk")


async def other_result(context: Context) -> int:
    return -await two(context)


async def failing(context: Context) -> int:
    await two(context)
    raise ValueError("no luck")


async def paying(context: Context) -> str:
    await context.call(price, "tea")
    return await context.call(pay, 3)


async def waiting(context: Context) -> str:
    await context.call(price, "tea")
    await context.sleep(3600)
    return "late"


async def skipping_waiting(context: Context) -> str:
    await context.sleep(3600)
    return "late"


async def broken_waiting(context: Context) -> str:
    raise ZeroDivisionError


async def beside_waiting(context: Context) -> int:
    fresh = context.branch("fresh")

    async def ask() -> int:
        return await fresh.call(price, "milk")

    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(ask())
        await asyncio.sleep(0)  # the new operation comes first
        known = await context.call(price, "tea")
    return known + asked.result()


async def changed_waiting(context: Context) -> str:
    await context.call(price, "milk")
    return "late"


async def leaving_waiting(context: Context) -> int:
    known = await context.call(price, "tea")
    fresh = context.branch("fresh")

    async def ask() -> int:
        return await fresh.call(price, "milk")

    async def fail_at_once() -> None:
        raise ValueError("no luck")

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            left.append(asyncio.create_task(wait_for_good()))

    async def wait_for_good() -> None:
        await asyncio.Event().wait()

    left[:] = [asyncio.create_task(each()) for each in (ask, fail_at_once, wait)]
    await asyncio.sleep(0)
    return known


def app_of(folder: Path, body: Body | None) -> App:
    app = App(f"sqlite:///{folder / 'runs.db'}")
    if body is not None:
        app.run(version=1, name="shop")(body)
    return app


async def recorded(folder: Path, body: Body) -> None:
    async with app_of(folder, body) as app:
        handle = await app.start("shop", run_id="r")
        with contextlib.suppress(RunFailed):
            await handle.result()


async def rehearsed(folder: Path, body: Body | None) -> Rehearsed:
    async with app_of(folder, body).connect() as app:
        before = await app.find("r")
        found = await app.rehearse("r")
        assert await app.find("r") == before
        return found


@pytest.mark.parametrize(
    ("was", "becomes", "verdict", "reason"),
    [
        (two, two, Verdict.MATCHES, ""),
        (failing, failing, Verdict.MATCHES, ""),
        (two, other_argument, Verdict.DIFFERS, "r/call/2"),
        (two, one, Verdict.DIFFERS, "r/call/2"),
        (two, three, Verdict.DIFFERS, "asks for r/call/3"),
        (two, other_result, Verdict.DIFFERS, "returns another result"),
        (two, failing, Verdict.DIFFERS, "it is failed and was completed: no luck"),
        (failing, two, Verdict.DIFFERS, "it is completed and was failed"),
        (paying, paying, Verdict.MATCHES, ""),
        (one, paying, Verdict.DIFFERS, "asks for r/call/2"),
        (two, None, Verdict.UNSERVED, "shop"),
    ],
)
def test_code_that_changed_is_told_from_code_that_did_not(
    tmp_path: Path, was: Body, becomes: Body | None, verdict: Verdict, reason: str
) -> None:
    run(recorded(tmp_path, was))
    calls.clear()
    found = run(rehearsed(tmp_path, becomes))
    assert (found.verdict, calls) == (verdict, [])
    assert reason in found.reason


def test_a_run_that_is_not_over_is_compared_as_far_as_it_came(tmp_path: Path) -> None:
    async def interrupted() -> None:
        app = app_of(tmp_path, waiting)
        async with app:
            handle = await app.start("shop", run_id="r")
            while not (await app.store.read_journal("r")).timers:
                await asyncio.sleep(0.01)
            del handle

    run(interrupted())
    found = run(rehearsed(tmp_path, waiting))
    assert (found.verdict, found.replayed, found.recorded) == (Verdict.GOES_ON, 1, 1)
    assert "r/sleep/1" in found.reason
    for body in (changed_waiting, skipping_waiting, broken_waiting):
        assert run(rehearsed(tmp_path, body)).verdict is Verdict.DIFFERS
    # What runs beside the new operation still asks for what was recorded.
    assert run(rehearsed(tmp_path, beside_waiting)).verdict is Verdict.GOES_ON


@pytest.mark.parametrize("times", [1, 3])
def test_what_a_function_leaves_behind_ends_with_the_rehearsal(tmp_path: Path, times: int) -> None:
    async def main() -> None:
        await recorded(tmp_path, one)
        told: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        before = asyncio.all_tasks()
        async with app_of(tmp_path, leaving_waiting).connect() as app:
            found = await asyncio.gather(*(app.rehearse("r") for _ in range(times)))
            assert {each.verdict for each in found} == {Verdict.DIFFERS}
            assert len(left) > 3
            assert all(task.done() for task in left)
        assert asyncio.all_tasks() == before
        assert loop.get_task_factory() is None
        left.clear()
        gc.collect()
        assert told == []

    run(main())


def test_tasks_are_noticed_for_as_long_as_anybody_looks_for_them() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        told: list[Any] = []
        loop.set_exception_handler(lambda _, context: told.append(context))
        entered, go = asyncio.Event(), asyncio.Event()

        async def later() -> None:
            async with Strays() as strays:
                entered.set()
                await go.wait()
                asyncio.create_task(fail())  # noqa: RUF006
                await strays.end()

        other = asyncio.create_task(later())
        async with Strays():
            await entered.wait()
        go.set()
        await other
        gc.collect()
        assert (told, loop.get_task_factory()) == ([], None)

    run(main())


PROGRAM = """
from perdure import App, operation

app = App("sqlite:///runs.db")

@operation(read_only=True)
async def price(of):
    return len(of)

@app.run(version=1)
async def shop(context):
    return await context.call(price, {argument!r})
"""


def test_the_command_fails_where_a_run_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def check(argument: str, *words: str) -> tuple[int, str]:
        (tmp_path / "rehearsed_shop.py").write_text(PROGRAM.format(argument=argument))
        sys.modules.pop("rehearsed_shop", None)
        code = main(["check", "rehearsed_shop:app", *words])
        return code, capsys.readouterr().out

    async def recorded_here() -> None:
        app = App("sqlite:///runs.db")
        app.run(version=1)(_shop())
        async with app:
            for number in range(3):
                await (await app.start("shop", run_id=f"r{number}")).result()

    run(recorded_here())
    assert check("tea") == (
        0,
        "3 runs: 3 match, 0 match and would go on, 0 differ, 0 are not served\n",
    )
    code, out = check("milk")
    assert (code, out.count("differs")) == (1, 3)
    code, out = check("milk", "--run", "r1", "--json")
    document = json.loads(out)
    assert (code, [one["verdict"] for one in document["runs"]]) == (1, ["differs"])
    with contextlib.closing(sqlite3.connect("runs.db", isolation_level=None)) as connection:
        connection.execute("UPDATE records SET payload = x'00ff', payload_packing = 1")
    code, out = check("tea")
    # What is over is nothing that a deployment changes; which runs these are is told all the same.
    assert (code, out.count("unreadable"), "r1" in out) == (0, 3, True)


def _shop() -> Any:
    namespace: dict[str, Any] = {}
    exec(PROGRAM.format(argument="tea").replace("@app.run(version=1)", ""), namespace)
    return namespace["shop"]
