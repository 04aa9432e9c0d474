from __future__ import annotations

import asyncio
import random
import sqlite3
from base64 import b64encode
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from perdure import App, Context, RunState
from perdure.engine.store import NewRun, RunEnd
from perdure.errors import (
    RunConflict,
    RunErased,
)
from perdure.storage.postgres import erasure as postgres_erasure
from perdure.storage.queries import load_queries
from perdure.storage.sqlite import erasure
from tests.erasing import WHO, bytes_of, filled
from tests.harness import RUN, app_on, once, run, sql, stored
from tests.storages import SQLITE_ONLY, on_server, schema_of

pytestmark = pytest.mark.usefixtures("storage")


def columns(folder: Path) -> list[tuple[str, str]]:
    """Return every table of a store with each of its columns."""
    if on_server(folder):
        return sql(
            folder,
            "SELECT table_name, column_name FROM information_schema.columns JOIN"
            " information_schema.tables USING (table_schema, table_name)"
            " WHERE table_schema = ? AND table_type = 'BASE TABLE'",
            schema_of(folder),
        )
    return [
        (table, column)
        for (table,) in sql(folder, "SELECT name FROM sqlite_master WHERE type = 'table'")
        for (_, column, *_) in sql(folder, f"PRAGMA table_info({table})")
    ]


def test_every_table_that_names_a_run_is_empty_of_an_erased_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            await filled(it, "done", "MARK")
            await it.store.erase_run("done", **WHO)

    run(main())
    keys = {"run_id": "done", "run_number": 2}
    left = {
        table
        for table, column in columns(tmp_path)
        if column in keys
        and sql(tmp_path, f"SELECT 1 FROM {table} WHERE {column} = ?", keys[column])
    }
    assert left == {"runs", "attempts"}


def pieces_of(folder: Path) -> tuple[set[object], set[object]]:
    """Return what names the pieces that are there, and those that somebody needs."""
    name = "digest" if on_server(folder) else "piece_number"
    needed = sql(
        folder,
        "WITH RECURSIVE needed (name) AS (SELECT input_piece FROM records UNION"
        f" SELECT parent FROM pieces JOIN needed ON {name} = name)"
        " SELECT name FROM needed WHERE name IS NOT NULL",
    )
    there = sql(folder, f"SELECT {name} FROM pieces")
    return {piece for (piece,) in there}, {piece for (piece,) in needed}


@pytest.mark.parametrize("rows", [3, 200])
@pytest.mark.parametrize("seed", range(3))
def test_beginnings_that_others_share_stay_until_the_last_goes(
    tmp_path: Path, seed: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conversations that fork from one another are erased in any order, in parts of any size."""
    for driver in (erasure, postgres_erasure):
        monkeypatch.setattr(driver, "_ROWS", rows)
        monkeypatch.setattr(driver, "_PAUSE_SECONDS", 0.0)
    dice = random.Random(seed)

    async def main() -> None:
        async with stored(tmp_path) as it:
            talks: list[list[bytes]] = [[]]
            inputs: dict[str, list[bytes]] = {}
            for number in range(6):
                run_id = f"run-{number + 2}"
                fence = await it.begin(run_id)
                base = dice.choice(talks)
                talk = base[: dice.randint(0, len(base))]
                inputs[run_id] = []
                for step in range(dice.randint(1, 5)):
                    talk = [*talk, f"{number}.{step}, ".encode()]
                    cuts = [len(b"".join(talk[: end + 1])) for end in range(len(talk))]
                    await it.append("m", step, b"".join(talk) + b"tail", (*cuts,), fence=fence)
                    inputs[run_id].append(b"".join(talk) + b"tail")
                talks.append(talk)
                await it.store.end_run(fence, RunEnd(RunState.COMPLETED, b"1"))
            order = [*inputs]
            dice.shuffle(order)
            for run_id in order:
                await it.store.erase_run(run_id, **WHO)
                del inputs[run_id]
                pieces, needed = pieces_of(tmp_path)
                assert pieces == needed
                for other, documents in inputs.items():
                    for step, document in enumerate(documents):
                        assert await it.store.read_input(other, "m", step) == document
            assert pieces == set()

    run(main())


@SQLITE_ONLY
@pytest.mark.parametrize(
    ("count", "size", "parts"), [(50, 10, 1), (450, 10, 3), (8, 1_600_000, 3), (2, 6_000_000, 2)]
)
def test_a_large_run_is_erased_in_parts_and_others_write_in_between(
    tmp_path: Path, count: int, size: int, parts: int
) -> None:
    dice = random.Random(1)

    async def main() -> None:
        async with stored(tmp_path) as it:
            for number in range(count):
                await it.append("tool", number, b64encode(dice.randbytes(size)))
            await it.store.end_run(it.fence, RunEnd(RunState.COMPLETED, b"1"))
            points: list[str] = []
            it.store._db._writer._probe = points.append
            erasing = asyncio.create_task(it.store.erase_run(RUN, **WHO))
            while not erasing.done():
                await it.store.start_run(NewRun(f"new-{len(points)}", "f", 1, b"1", 1.0), None)
            await erasing
            done = [point for point in points if point.startswith("commit.done")]
            erased = [index for index, point in enumerate(done) if point.endswith("erase_run")]
            assert len(erased) == parts
            assert all(after - before > 1 for before, after in pairwise(erased))
            assert sql(tmp_path, "SELECT * FROM records") == []

    run(main())


def test_erasing_that_was_cut_short_says_so_and_is_finished_by_erasing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for driver in (erasure, postgres_erasure):
        monkeypatch.setattr(driver, "_ROWS", 4)

    def fail_second(point: str) -> None:
        points.append(point)
        if points.count("commit.begin erase_run") >= 2:
            raise RuntimeError("the power fails")

    points: list[str] = []

    async def main() -> None:
        async with stored(tmp_path) as it:
            await filled(it, "done", "MARK")
        app = app_on(tmp_path, probe=fail_second)
        async with app.connect():
            with pytest.raises(RuntimeError, match="the power fails"):
                await app.erase("done", **WHO)
            row = await app.find("done")
            assert row.tombstone is not None
            assert (row.tombstone.by, row.tombstone.whole) == ("ada", False)
            with pytest.raises(RunErased):
                await app.handle("done").result()
            assert sql(tmp_path, "SELECT count(*) FROM records") != [(0,)]
        assert on_server(tmp_path) or b"MARK-answer" in bytes_of(tmp_path)
        app = app_on(tmp_path)
        async with app.connect():
            again = await app.erase("done", by="bob", why="the rest")
            assert again.tombstone is not None
            assert (again.tombstone.by, again.tombstone.whole) == ("ada", True)
        assert b"MARK" not in bytes_of(tmp_path)

    run(main())


async def _work(context: Context, value: str) -> str:
    if value == "bad":
        raise ValueError(value)
    return value * 2


def _app(folder: Path, seen: list[str]) -> App:
    app = app_on(folder)

    @app.run(version=1)
    async def work(context: Context, value: str) -> str:
        seen.append(context.run_id)
        return await _work(context, value)

    return app


def test_starting_an_erased_run_finds_it_and_executes_nothing(tmp_path: Path) -> None:
    seen: list[str] = []

    async def main() -> None:
        assert await once(_app(tmp_path, seen), "work", "a") == "aa"
        app = _app(tmp_path, seen)
        async with app:
            erased = await app.erase(RUN, **WHO)
            assert (erased.state, erased.input_sha256 != b"") == (RunState.COMPLETED, True)
            handle = await app.start("work", "a", run_id=RUN)
            with pytest.raises(RunErased, match=r"run-1 was erased by ada \(request 17\)"):
                await handle.result()
            assert await handle.status() is RunState.COMPLETED
            assert await handle.cancel() is RunState.COMPLETED
            with pytest.raises(RunConflict):
                await app.start("work", "b", run_id=RUN)
        assert seen == [RUN]

    run(main())


def test_an_erased_run_that_failed_is_not_resumed(tmp_path: Path) -> None:
    seen: list[str] = []

    async def main() -> None:
        app = _app(tmp_path, seen)
        async with app:
            with pytest.raises(Exception, match="bad"):
                await (await app.start("work", "bad", run_id=RUN)).result()
            await app.erase(RUN, **WHO)
            with pytest.raises(RunErased):
                await app.resume(RUN)
            assert (await app.find(RUN)).state is RunState.FAILED

    run(main())


def test_who_waits_for_a_run_that_is_erased_meanwhile_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        app = _app(tmp_path, [])
        async with app.connect():
            handle = await app.start("work", "a", run_id=RUN)
            waiting = asyncio.create_task(handle.result())
            await asyncio.sleep(0)
            sql(
                tmp_path,
                "UPDATE runs SET state = 'completed', erased_at = 1, erased_by = 'x',"
                " erased_why = 'y'",
            )
            with pytest.raises(RunErased):
                await waiting

    run(main())


PLANS = {
    "insert_receipt": ["SEARCH tombstones USING PRIMARY KEY (operation_key=?)"],
    "records_to_erase": ["SEARCH records USING INDEX records_key (run_number=?)"],
    "receipts_to_erase": ["SEARCH receipts USING INDEX receipts_run (run_id=?)"],
    "open_keys_of": ["SEARCH receipts USING INDEX receipts_open (state=?)"],
    "erase_piece": [
        "SEARCH child USING COVERING INDEX pieces_parent (parent=?)",
        "SEARCH records USING COVERING INDEX records_piece (input_piece=?)",
    ],
}


@SQLITE_ONLY
@pytest.mark.parametrize("name", PLANS)
def test_no_statement_of_an_erasure_looks_at_a_whole_table(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with stored(tmp_path):
            pass

    run(main())
    connection = sqlite3.connect(tmp_path / "runs.db")
    query = load_queries("sqlite")[name]
    anything = defaultdict[str, int](lambda: 1)
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", anything)]
    connection.close()
    assert [step for step in plan if step in PLANS[name]] == PLANS[name]
    assert [step for step in plan if "SCAN" in step and "CONSTANT" not in step] == []
