"""What a run's code sees again after a crash, and what it does not do again."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    App,
    Context,
    OperationFailed,
    RetryPolicy,
    RunNeedsAttention,
    current,
    effect,
    operation,
)
from perdure.testing.crash import CrashAt, CrashPoints
from tests.acceptance.children import note, notes, query, run, running
from tests.acceptance.samples import SEED, Crash, amount, moment_of, sample

_AT_ONCE = 2 * (os.cpu_count() or 1)
_SEEDS = amount("SEEDS", usual=3, full=10)
_SHUFFLES = amount("SHUFFLES", usual=6, full=32)
_QUICK = RetryPolicy(initial_seconds=0.02, maximum_seconds=0.02)


def _run(app: App, function: Any, folder: Path, value: Any = None) -> None:
    result = app.run_sync(function, value, run_id="run-1")
    (folder / "result.json").write_text(json.dumps(result, sort_keys=True))


def _result(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())


def _app(folder: Path, crash: Crash | None) -> App:
    return App(f"sqlite:///{folder}/runs.db", probe=CrashAt(*crash) if crash else None)


def _die(folder: Path, program: Callable[..., None], *arguments: Any) -> None:
    with running(folder, program, folder, *arguments) as child:
        child.die()


def _keys(folder: Path) -> list[str]:
    rows = query(folder / "runs.db", "SELECT step_id || '/' || sequence FROM records")
    return sorted(key for (key,) in rows)


def _attempts(folder: Path) -> list[tuple[Any, ...]]:
    return query(
        folder / "runs.db", "SELECT ending, executed, replayed FROM attempts ORDER BY generation"
    )


# --- everything that a context offers, killed everywhere -----------------------------------------


def do_errand(folder: Path, crash: Crash | None, found: Path | None = None) -> None:
    points = CrashPoints()
    app = App(f"sqlite:///{folder}/runs.db", probe=CrashAt(*crash) if crash else points)

    @effect(support="idempotent")
    def act(what: str) -> str:
        note(folder / "acts.log", act=what)
        return what.upper()

    @effect(support="idempotent", rejected=LookupError)
    async def refuse(what: str) -> None:
        note(folder / "acts.log", act=what)
        raise LookupError(f"no {what}")

    @effect(support="idempotent", name="flaky", retry=_QUICK)
    async def flaky() -> int:
        note(folder / "acts.log", act="flaky")
        waited = "SELECT count(*) FROM records WHERE handler_id = 'perdure.retry'"
        if query(folder / "runs.db", waited) < [(2,)]:
            raise ConnectionError("try again")
        return 3

    @operation(read_only=True)
    async def nested(what: str) -> list[str]:
        note(folder / "acts.log", act=what)
        inside = current()
        assert inside is not None
        return [what, await inside.call(act, f"{what} inside")]

    async def beside(context: Context, what: str) -> list[str]:
        first = await context.call(act, f"{what} 1")
        return [first, *await context.call(nested, f"{what} 2")]

    @app.run(version=1)
    async def errand(context: Context, name: str) -> dict[str, Any]:
        said = await context.call(act, name)
        both = await asyncio.gather(
            beside(context.branch("left"), "left"), beside(context.branch("right"), "right")
        )
        await context.sleep(0.02)
        try:
            await context.call(refuse, "luck")
        except OperationFailed as failure:
            refused = [failure.code, failure.type_name, failure.message, str(failure)]
        else:
            refused = []
        tries = await context.call(flaky)
        await context.now()
        chance = [str(context.uuid()), context.random().random(), context.random().random()]
        pair = await asyncio.gather(context.call(act, "one"), context.call(act, "two"))
        return {
            "said": said,
            "both": both,
            "refused": refused,
            "tries": tries,
            "chance": chance,
            "pair": pair,
        }

    _run(app, errand, folder, "hello")
    if found is not None:
        found.write_text(json.dumps(points.crashes()))


def test_a_run_killed_at_any_point_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    reference = tmp_path / "reference"
    reference.mkdir()
    run(reference, do_errand, reference, None, reference / "points")
    passed = json.loads((reference / "points").read_text())
    crashes = sample(passed, moment_of)
    identities = _identities(reference)
    acts = Counter(line["act"] for line in notes(reference / "acts.log"))
    assert acts == Counter({**dict.fromkeys(acts, 1), "flaky": 3})

    def survive(index: int) -> None:
        folder = tmp_path / f"at-{index}"
        folder.mkdir()
        _die(folder, do_errand, crashes[index])
        done = _done(folder)
        before = Counter(line["act"] for line in notes(folder / "acts.log"))
        run(folder, do_errand, folder, None)
        assert _result(folder) == _result(reference), crashes[index]
        assert _identities(folder) == identities, crashes[index]
        after = Counter(line["act"] for line in notes(folder / "acts.log"))
        assert set(after) == set(acts)
        for act, count in after.items():
            again = count - acts[act]
            assert 0 <= again <= (act not in done and before[act] > 0), (act, crashes[index])

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(survive, range(len(crashes))))
    print(f"killed at {len(crashes)} of {len(passed)} points of the run")


def _identities(folder: Path) -> list[tuple[Any, ...]]:
    """Return every record but for when and in which attempt it was written."""
    return query(
        folder / "runs.db",
        "SELECT step_id, sequence, kind, handler_id, hex(input_sha256), status,"
        " CASE WHEN handler_id = 'perdure.now' THEN '' ELSE hex(payload) END"
        " FROM records ORDER BY step_id, sequence",
    )


def _done(folder: Path) -> set[str]:
    """Return the acts whose operations are in the journal."""
    if not query(folder / "runs.db", "SELECT 1 FROM sqlite_master WHERE name = 'records'"):
        return set()
    rows = query(folder / "runs.db", "SELECT handler_id, CAST(input_tail AS TEXT) FROM records")
    done = {"flaky"} if any(handler == "flaky" for handler, _ in rows) else set()
    return done | {value for _, document in rows for value in json.loads(document).get("args", ())}


# --- T01: before the record an operation runs again, after it never ------------------------------


def act_once(folder: Path, crash: Crash | None, seed: int) -> None:
    app = _app(folder, crash)

    @operation(read_only=True)
    async def act(number: int) -> None:
        await asyncio.sleep(random.Random(seed + number).random() / 100)
        note(folder / "acts.log", act=number)

    @app.run(version=1)
    async def acting(context: Context) -> None:
        await context.call(act, 1)
        await asyncio.gather(*(context.call(act, number) for number in (2, 3, 4)))

    _run(app, acting, folder)


@pytest.mark.parametrize(
    ("point", "effects"),
    [
        ("operation.call call/3", 1),
        ("operation.called call/3", 2),
        ("commit.begin record call/3", 2),
        ("commit.done record call/3", 1),
    ],
)
def test_how_often_an_effect_happens_depends_on_the_point_alone(
    tmp_path: Path, point: str, effects: int
) -> None:
    """T01: among concurrent operations of any order, with any delays."""

    def crash(seed: int) -> int:
        folder = tmp_path / str(seed)
        folder.mkdir()
        _die(folder, act_once, (point, 1), seed)
        run(folder, act_once, folder, None, seed)
        assert _keys(folder) == ["call/1", "call/2", "call/3", "call/4"]
        return len(notes(folder / "acts.log", act=3))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        assert set(pool.map(crash, range(SEED, SEED + _SEEDS))) == {effects}


# --- T02: parallel operations are known by their place in the code -------------------------------


def call_three(folder: Path, crash: Crash | None, delays: list[float]) -> None:
    app = _app(folder, crash)

    @operation(read_only=True)
    async def tool(number: int) -> int:
        note(folder / "acts.log", act=number)
        await asyncio.sleep(delays[number - 1])
        return number * 10

    @app.run(version=1)
    async def three(context: Context) -> list[int]:
        return await asyncio.gather(*(context.call(tool, number) for number in (1, 2, 3)))

    _run(app, three, folder)


def test_only_the_parallel_call_that_had_not_finished_runs_again(tmp_path: Path) -> None:
    """T02: whichever two of three finish first, and however long they take the second time."""

    def crash(seed: int) -> None:
        folder = tmp_path / str(seed)
        folder.mkdir()
        chance = random.Random(seed)
        slowest = 1 + seed % 3
        delays = [chance.uniform(0, 0.02) for _ in range(3)]
        delays[slowest - 1] = 60.0
        _die(folder, call_three, ("commit.done record", 2), delays)
        assert _keys(folder) == [f"call/{number}" for number in (1, 2, 3) if number != slowest]
        run(folder, call_three, folder, None, [chance.uniform(0, 0.02) for _ in range(3)])
        assert _keys(folder) == ["call/1", "call/2", "call/3"]
        assert _result(folder) == [10, 20, 30]
        acts = Counter(line["act"] for line in notes(folder / "acts.log"))
        assert acts == Counter({1: 1, 2: 1, 3: 1, slowest: 2})
        assert _attempts(folder)[1:] == [("completed", 1, 2)]

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(crash, range(SEED, SEED + _SHUFFLES)))


# --- T04: a fan-out is replayed whole ------------------------------------------------------------


def fan_out(folder: Path, crash: Crash | None) -> None:
    app = _app(folder, crash)

    async def work(child: int, step: int) -> int:
        note(folder / "acts.log", child=child, step=step)
        await asyncio.sleep(0.001 * ((child * 5) % 8))
        return child * 10 + step

    @effect(support="idempotent")
    async def gate() -> str:
        note(folder / "acts.log", child="gate")
        return "open"

    async def child(context: Context, number: int) -> int:
        return sum([await context.call(work, number, step) for step in (1, 2)])

    @app.run(version=1)
    async def parent(context: Context) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(child(context.branch("child"), number)) for number in range(8)
            ]
        return [await context.call(gate), *(task.result() for task in tasks)]

    _run(app, parent, folder)


def test_a_fan_out_before_a_gate_is_not_run_again(tmp_path: Path) -> None:
    """T04: eight children of two operations each, then a gate that crashes."""
    _die(tmp_path, fan_out, ("operation.call call/1", 1))
    run(tmp_path, fan_out, tmp_path, None)
    assert _result(tmp_path) == ["open", *(number * 20 + 3 for number in range(8))]
    acts = Counter((line["child"], line.get("step")) for line in notes(tmp_path / "acts.log"))
    assert len(acts) == 17
    assert set(acts.values()) == {1}
    assert _attempts(tmp_path) == [("lost", 0, 0), ("completed", 1, 16)]


# --- T13: other code than the journal's ----------------------------------------------------------


def change(folder: Path, crash: Crash | None, code: str) -> None:
    """Run what the journal was written with, `old`, or one of its successors."""
    app = _app(folder, crash)

    async def reserve(item: str) -> str:
        note(folder / "acts.log", act="reserve")
        return item

    @effect(support="idempotent")
    async def pay(amount: int) -> int:
        note(folder / "acts.log", act="pay")
        return amount

    version = 2 if code == "other handler" else 1
    reserving = operation(name="reserve", version=version)(reserve)
    steps: dict[str, Callable[[Context], list[Any]]] = {
        "old": lambda context: [context.call(reserving, "lamp"), context.call(pay, 5)],
        "other handler": lambda context: [context.call(reserving, "lamp"), context.call(pay, 5)],
        "other order": lambda context: [context.call(pay, 5), context.call(reserving, "lamp")],
        "other input": lambda context: [context.call(reserving, "rug"), context.call(pay, 5)],
    }

    @app.run(version=1)
    async def order(context: Context) -> list[Any]:
        try:
            return [await step for step in steps[code](context)]
        except Exception:  # noqa: BLE001 - the signal that parks a run passes by
            return ["swallowed"]

    try:
        _run(app, order, folder)
    except RunNeedsAttention as error:
        (folder / "attention.txt").write_text(str(error))


@pytest.mark.parametrize("code", ["other handler", "other order", "other input"])
def test_a_run_whose_code_changed_waits_for_a_person_and_can_be_cancelled(
    tmp_path: Path, code: str
) -> None:
    """T13: on the first attempt, without calling anything, and without trying again."""
    _die(tmp_path, change, ("operation.call call/2", 1), "old")
    run(tmp_path, change, tmp_path, None, code)
    message = (tmp_path / "attention.txt").read_text()
    ((digest,),) = query(tmp_path / "runs.db", "SELECT hex(input_sha256) FROM records")
    for part in ("run-1/call/1", "'reserve'", digest.lower()):
        assert part in message
    assert len(re.findall(r"\b[0-9a-f]{64}\b", message)) == 2
    run(tmp_path, change, tmp_path, None, code)
    assert [ending for ending, _, _ in _attempts(tmp_path)] == ["lost", "needs_attention"]
    assert [line["act"] for line in notes(tmp_path / "acts.log")] == ["reserve"]
    assert _keys(tmp_path) == ["call/1"]

    async def cancel() -> str:
        async with _app(tmp_path, None).connect() as app:
            return await app.handle("run-1").cancel()

    assert asyncio.run(cancel()) == "cancelled"


def test_a_run_that_waited_for_its_code_goes_on_where_it_stopped(tmp_path: Path) -> None:
    _die(tmp_path, change, ("operation.call call/2", 1), "old")
    run(tmp_path, change, tmp_path, None, "other order")

    async def resume() -> str:
        async with _app(tmp_path, None).connect() as app:
            return (await app.resume("run-1")).state

    assert asyncio.run(resume()) == "pending"
    run(tmp_path, change, tmp_path, None, "old")
    assert _result(tmp_path) == ["lamp", 5]
    assert [line["act"] for line in notes(tmp_path / "acts.log")] == ["reserve", "pay"]
