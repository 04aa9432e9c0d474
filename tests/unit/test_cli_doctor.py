from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, PerdureError, ReplayMismatch, RunParked
from perdure.cli import main
from perdure.storage.queries import load_migrations
from perdure.storage.sqlite import health
from tests.harness import app_on, once, run, sql

Doctor = Callable[..., tuple[int, Any]]
MODULE = "from perdure import App\napp = App('sqlite:///runs.db')"


@pytest.fixture
def doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Doctor:
    """Run doctor on the file of the folder; returns the exit code and the document."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, Any]:
        code = main(["doctor", "--json", *(words or ("--url", "sqlite:///runs.db"))])
        return code, json.loads(capsys.readouterr().out)

    return call


def _app(folder: Path) -> App:
    app = app_on(folder)

    @app.run(version=1)
    async def double(context: Context, number: int) -> int:
        del context
        return 2 * number

    @app.run(version=3)
    async def stuck(context: Context) -> None:
        raise RunParked(PerdureError("the price changed"))

    return app


async def _start_only(app: App, function: str, value: Any = None) -> None:
    async with app.connect():
        await app.start(function, value, run_id="run-1")


def test_all_is_well_where_nothing_waits(tmp_path: Path, doctor: Doctor) -> None:
    run(once(_app(tmp_path), "double", 1))
    code, found = doctor()
    assert (code, found["well"], found["findings"], found["unserved"]) == (0, True, [], None)
    store = found["store"]
    newest = load_migrations("sqlite")[-1][0]
    assert (store["schema_version"], store["integrity"]) == (newest, "ok")
    assert store["journal_mode"] == "wal"
    assert store["synchronous"] == "full"
    assert store["driver"].startswith("SQLite 3.")
    assert store["disk_free_bytes"] > 0 < store["file_bytes"]
    assert found["runs"]["completed"] == 1
    assert sum(found["runs"].values()) == 1


def test_failed_runs_are_counted_with_the_command_that_lists_them(
    tmp_path: Path, doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    app = _app(tmp_path)

    @app.run(version=1)
    async def broken(context: Context) -> None:
        raise ValueError("no luck")

    with pytest.raises(PerdureError, match="`perdure resume run-1`"):
        run(once(app, broken))
    code, found = doctor()
    assert (code, found["well"], found["findings"]) == (0, True, [])
    (note,) = found["notes"]
    assert (note["code"], note["message"][:18]) == ("failed", "1 run has failed: ")
    assert main(["doctor", "--url", "sqlite:///runs.db"]) == 0
    shown = capsys.readouterr().out
    assert (
        "\n- 1 run has failed: `perdure runs --state failed --url sqlite:///runs.db` lists them"
        in shown
    )
    assert shown.endswith(
        "all else is well, as far as the tables tell; `perdure check MODULE:APP` reads what the"
        " runs hold\n"
    )


def test_a_run_that_waits_for_a_worker_is_found(tmp_path: Path, doctor: Doctor) -> None:
    run(_start_only(_app(tmp_path), "double", 1))
    code, found = doctor()
    assert code == 1
    (finding,) = found["findings"]
    assert finding["code"] == "no_worker"
    assert finding["message"].startswith("1 run waits and no worker is alive")


def test_a_parked_run_is_found_with_its_reason_and_the_two_ways_on(
    tmp_path: Path, doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    async def whole() -> None:
        async with (app := _app(tmp_path)):
            await app.start("stuck", run_id="run-1")
            with pytest.raises(PerdureError):
                await app.handle("run-1").result()

    run(whole())
    code, found = doctor()
    (finding,) = found["findings"]
    assert (code, finding["code"], finding["run_id"]) == (1, "needs_attention", "run-1")
    assert "the price changed" in finding["message"]
    assert main(["doctor", "--url", "sqlite:///runs.db"]) == 1
    shown = capsys.readouterr().out
    assert (
        "! run run-1 of stuck@3 is parked: the price changed (`perdure resume run-1 --url sqlite:///runs.db`"
        in shown
    )
    assert "`perdure cancel run-1 --url sqlite:///runs.db`" in shown


def test_advice_is_given_once_and_digests_are_cut_for_people(
    tmp_path: Path, doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded, asked = "0123456789ab" + "0" * 52, "ba9876543210" + "1" * 52
    mismatch = ReplayMismatch(
        "run-1/call/1",
        recorded=("tool_call", "price", recorded),
        asked=("tool_call", "price", asked),
    )
    app = _app(tmp_path)

    @app.run(version=1)
    async def changed(context: Context) -> None:
        raise RunParked(mismatch)

    with pytest.raises(PerdureError):
        run(once(app, "changed"))
    code, found = doctor()
    (finding,) = found["findings"]
    assert (code, recorded in finding["message"], asked in finding["message"]) == (1, True, True)
    for line in ("doctor", "show run-1"):
        main([*line.split(), "--url", "sqlite:///runs.db"])
        shown = capsys.readouterr().out
        assert shown.count("Deploy the code") == 1
        assert "input 0123456789ab…, and" in shown
        assert "input ba9876543210…;" in shown


def test_a_run_that_no_function_serves_is_found_with_the_app(
    tmp_path: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(_start_only(_app(tmp_path), "stuck"))
    (tmp_path / "doctored.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    code, found = doctor("--app", "doctored:app")
    assert (code, found["unserved"]) == (1, ["run-1"])
    assert [finding["code"] for finding in found["findings"]] == ["unserved", "no_worker"]
    assert "waits for stuck@3" in found["findings"][0]["message"]


def test_a_living_worker_is_shown_and_trusted_with_what_waits(
    tmp_path: Path, doctor: Doctor
) -> None:
    run(_start_only(_app(tmp_path), "double", 1))

    async def whole() -> tuple[int, Any]:
        async with app_on(tmp_path, name="idle"):
            return await asyncio.to_thread(doctor)

    code, found = run(whole())
    (worker,) = found["workers"]
    assert (code, worker["name"], worker["alive"], worker["runs"]) == (0, "idle", True, 0)


@pytest.mark.parametrize(
    ("limit", "value", "code"),
    [("_WAL_LIMIT_BYTES", -1, "wal_size"), ("_FREE_LIMIT_BYTES", 1 << 62, "disk_space")],
)
def test_what_will_soon_stop_the_store_is_found(
    tmp_path: Path,
    doctor: Doctor,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: int,
    code: str,
) -> None:
    run(once(_app(tmp_path), "double", 1))
    monkeypatch.setattr(health, limit, value)
    ended, found = doctor()
    assert (ended, [finding["code"] for finding in found["findings"]]) == (1, [code])


def test_a_damaged_file_is_found(tmp_path: Path, doctor: Doctor) -> None:
    run(once(_app(tmp_path), "double", 1))
    asked = "SELECT rootpage FROM sqlite_schema WHERE name = 'records'"
    ((page,),) = sql(tmp_path, asked)
    file = tmp_path / "runs.db"
    data = bytearray(file.read_bytes())
    data[(page - 1) * 4096 : (page - 1) * 4096 + 16] = b"\xff" * 16
    file.write_bytes(data)
    code, found = doctor()
    assert code == 1
    assert found["findings"][0]["code"] == "integrity"
    assert "restore it from a backup" in found["findings"][0]["message"]
