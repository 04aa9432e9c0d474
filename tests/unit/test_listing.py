from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunFailed, RunState
from perdure.blobs import FileBlobs
from perdure.cli import main
from perdure.engine.rehearsal import Verdict
from perdure.errors import BlobsUnavailable, KeyUnavailable, StorageCorrupt
from tests.encrypting import keyring, store_value, stored_value
from tests.harness import app_on, run, sql
from tests.storages import SQLITE_ONLY, url_of

pytestmark = pytest.mark.usefixtures("storage")

NAMES = ("a", "b", "c")


def turns(number: int, count: int = 20) -> list[str]:
    """Return a conversation that begins as every other one, and is stored in pieces."""
    return [f"turn {each} {chr(97 + each) * 600}" for each in range(count)] + [f"end {number}"]


def noise(count: int) -> str:
    """Return a text that nothing makes shorter."""
    return random.Random(1).randbytes(count).hex()


def saying(folder: Path, **options: Any) -> App:
    app = app_on(folder, **options)

    @app.run(version=1)
    async def say(context: Context, value: Any) -> Any:
        if value == "fail":
            raise ValueError("no luck")
        return value

    return app


async def said(app: App, values: dict[str, Any]) -> None:
    async with app:
        for run_id, value in values.items():
            handle = await app.start("say", value, run_id=run_id)
            if value == "fail":
                with pytest.raises(RunFailed):
                    await handle.result()
            else:
                await handle.result()


def test_a_list_is_read_in_two_statements_whatever_it_holds(tmp_path: Path) -> None:
    async def main() -> None:
        values = {name: turns(number, 12 + number) for number, name in enumerate("abcdef")}
        await said(saying(tmp_path), values)
        async with saying(tmp_path).connect() as app:
            reads = counted(app)
            rows = await app.list()
            assert len(reads) == 2, reads
            got = {row.run_id: json.loads(row.output_json or b"") for row in rows}
            assert got == values
            assert all(row.unreadable is None for row in rows)
            assert rows == [await app.find(row.run_id) for row in rows]

    run(main())


def counted(app: App) -> list[str]:
    """Have an App note the queries that it reads with."""
    database: Any = app.store
    database = database._db
    read: Callable[..., Any] = database.read
    names: list[str] = []

    def noting(name: str, **parameters: Any) -> Any:
        names.append(name)
        return read(name, **parameters)

    database.read = noting
    return names


@pytest.mark.parametrize(
    ("damage", "error", "lost"),
    [
        ("UPDATE runs SET output_piece = NULL WHERE run_id = 'b'", StorageCorrupt, "pieces of"),
        ("UPDATE runs SET problem = CAST('?' AS BLOB) WHERE run_id = 'f'", StorageCorrupt, "prob"),
    ],
)
@SQLITE_ONLY
def test_what_is_damaged_is_listed_with_the_reason(
    tmp_path: Path, damage: str, error: type[Exception], lost: str
) -> None:
    async def main() -> None:
        values = {name: turns(number) for number, name in enumerate(NAMES)} | {"f": "fail"}
        await said(saying(tmp_path), values)
        sql(tmp_path, damage)
        async with saying(tmp_path).connect() as app:
            rows = {row.run_id: row for row in await app.list()}
            broken = [row for row in rows.values() if row.unreadable is not None]
            assert (len(rows), len(broken)) == (4, 1)
            assert isinstance(broken[0].unreadable, error)
            assert (broken[0].output_json, broken[0].problem) == (None, None)
            assert lost in str(broken[0].unreadable)
            assert broken[0].input_sha256
            with pytest.raises(error, match=lost):
                await app.find(broken[0].run_id)
            assert json.loads(rows["c"].output_json or b"") == turns(2)

    run(main())


def test_chains_that_run_in_circles_end(tmp_path: Path) -> None:
    async def main() -> None:
        await said(saying(tmp_path), {"a": turns(0), "b": 1})
        last = stored_value(tmp_path, "runs", "output_piece", "run_id = 'a'")
        column = "piece_number" if isinstance(last, int) else "digest"
        where = f"parent IS NULL AND {column} IS NOT NULL"
        store_value(tmp_path, "pieces", "parent", last, where)
        async with saying(tmp_path).connect() as app:
            rows = await app.list()
            assert [(row.run_id, row.unreadable is None) for row in rows] == [
                ("b", True),
                ("a", True),
            ]

    run(main())


def test_what_another_key_sealed_is_listed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def leave() -> None:
        await said(saying(tmp_path, encryption=keyring("a")), {"old": turns(1), "f": "fail"})
        await said(saying(tmp_path, encryption=keyring("b", only=False)), {"new": turns(2)})

    async def look() -> None:
        app = saying(tmp_path, encryption=keyring("b"))
        async with app.connect():
            new, *old = await app.list()
            assert json.loads(new.output_json or b"") == turns(2)
            assert all(isinstance(row.unreadable, KeyUnavailable) for row in old)
            assert [row.state for row in old] == [RunState.FAILED, RunState.COMPLETED]
            assert {row.input_sha256 for row in old} == {b""}

    run(leave())
    # Otherwise the store is not opened without the key.
    sql(tmp_path, "DELETE FROM keys WHERE key_id = 'a'")
    run(look())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys.json").write_text(
        json.dumps({"current": "b", "keys": {"b": "YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmI="}})
    )
    place = ("--url", url_of(tmp_path), "--key-file", "keys.json")
    assert main(["runs", *place, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["runs"]
    assert [(row["run_id"], row["unreadable"] is None) for row in listed] == [
        ("new", True),
        ("f", False),
        ("old", False),
    ]
    assert (listed[1]["input_sha256"], listed[2]["result"]) == (None, None)
    assert main(["runs", *place]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["unreadable" in line for line in lines] == [False, False, True, True]
    assert listed[2]["unreadable"] in lines[3]


@SQLITE_ONLY
def test_a_result_that_is_no_json_any_more_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(said(saying(tmp_path), {"a": 1, "b": 2}))
    sql(tmp_path, "UPDATE runs SET output = CAST('{' AS BLOB) WHERE run_id = 'a'")
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "--url", "sqlite:///runs.db", "--json"]) == 0
    b, a = json.loads(capsys.readouterr().out)["runs"]
    assert (b["result"], b["unreadable"], a["result"]) == (2, None, None)
    assert a["unreadable"].startswith("the output of run a is damaged")


def test_results_in_a_blob_store_that_is_not_there_are_listed(tmp_path: Path) -> None:
    async def main() -> None:
        blobs = FileBlobs(tmp_path / "blobs", over_bytes=4096)
        await said(saying(tmp_path, blobs=blobs), {"large": noise(9000), "small": 1})
        async with saying(tmp_path).connect() as app:
            small, large = await app.list()
            assert (small.output_json, type(large.unreadable)) == (b"1", BlobsUnavailable)
        async with saying(tmp_path, blobs=blobs).connect() as app:
            assert [row.unreadable for row in await app.list()] == [None, None]

    run(main())


PROGRAM = """
from perdure import App, Context

app = App("sqlite:///runs.db")


@app.run(version=1)
async def say(context: Context, value: object) -> object:
    return value
"""


@SQLITE_ONLY
def test_a_check_goes_on_past_a_run_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(said(saying(tmp_path), {"a": turns(0), "b": turns(1)}))
    sql(tmp_path, "UPDATE runs SET output_piece = NULL WHERE run_id = 'a'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "listing_shop.py").write_text(PROGRAM)
    assert main(["check", "listing_shop:app", "--json"]) == 0
    b, a = json.loads(capsys.readouterr().out)["runs"]
    assert (b["verdict"], a["verdict"]) == (Verdict.MATCHES, Verdict.UNREADABLE)
    assert "has the pieces of another one" in a["reason"]
    main(["check", "listing_shop:app"])
    assert capsys.readouterr().out.endswith(
        "1 matches, 0 match and would go on, 0 differ, 0 are not served, 1 cannot be read\n"
    )
    sql(tmp_path, "UPDATE runs SET state = 'needs_attention' WHERE run_id = 'a'")
    assert main(["check", "listing_shop:app"]) == 1
