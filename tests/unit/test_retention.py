from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, ReceiptStore
from perdure.cli import main
from perdure.effects.identity import OperationIdentity
from perdure.engine.retention import Retention
from perdure.errors import EffectErased, InvalidOptions, UnknownRun
from perdure.receipts import guard
from perdure.testing.manual_clock import ManualClock
from tests.harness import run

DAY = 86_400
TEXT = "what nobody keeps for ever " * 400


async def note(text: str) -> str:
    return text


async def broken(text: str) -> str:
    raise ConnectionResetError("no reply")


def app_on(folder: Path, clock: ManualClock) -> App:
    app = App(f"sqlite:///{folder / 'runs.db'}", clock=clock)

    @app.run(version=1)
    async def noting(context: Context, text: str) -> list[str]:
        return [await context.call(note, f"{text} {number}") for number in range(3)]

    @app.run(version=1)
    async def doubtful(context: Context) -> str:
        return await context.call(broken, "x")

    return app


def tables(folder: Path, *names: str) -> list[int]:
    with sqlite3.connect(folder / "runs.db") as connection:
        return [connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names]


def test_what_is_over_for_long_enough_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    async def main_() -> None:
        clock = ManualClock()
        async with app_on(tmp_path, clock) as app:
            await (await app.start("noting", TEXT, run_id="old")).result()
            with pytest.raises(Exception, match="may have been applied"):
                await (await app.start("doubtful", run_id="open")).result()
            clock.jump(31 * DAY)
            await (await app.start("noting", TEXT, run_id="new")).result()
            assert await app.count_expired(Retention()) == {
                "runs": 1,
                "receipts": 0,
                "tombstones": 0,
                "audit": 0,
                "workers": 0,
                "sessions": 0,
            }
            gone = await app.collect(Retention())
            assert (gone["runs"], gone["receipts"]) == (1, 0)
            with pytest.raises(UnknownRun):
                await app.find("old")
            assert (await app.find("open")).state.value == "needs_attention"
            assert await app.handle("new").result() == [f"{TEXT} {number}" for number in range(3)]
            assert await app.collect(Retention()) == {}
            # Its effects are still not sent again.
            assert (
                len(await app.store.list_receipts(ambiguous_only=False, limit=9, run_id="old")) == 3
            )
            clock.jump(91 * DAY)
            gone = await app.collect(Retention(runs_days=None))
            assert gone["receipts"] == 6
            assert len(await app.store.list_receipts(ambiguous_only=True, limit=9)) == 1

    run(main_())


def test_a_collection_that_was_cut_short_leaves_no_run_that_can_go_on(tmp_path: Path) -> None:
    async def main_() -> None:
        clock = ManualClock()
        app = app_on(tmp_path, clock)

        @app.run(version=1)
        async def long(context: Context) -> None:
            for number in range(450):
                await context.call(note, str(number))
            raise ValueError("it failed in the end")

        async with app:
            with pytest.raises(Exception, match="failed in the end"):
                await (await app.start(long, run_id="long")).result()
            clock.jump(31 * DAY)
            expiry = Retention().at(clock.now())
            some = await app.store.collect_some(expiry)
            assert (some["runs"], some["parts"]) == (0, 200)
            row = await app.find("long")
            assert row.tombstone is not None
            assert row.tombstone.by == "retention"
            assert (await app.collect(Retention()))["runs"] == 1

    run(main_())
    assert tables(tmp_path, "runs", "records", "attempts") == [0, 0, 0]


def test_pieces_go_with_the_last_run_that_needs_them(tmp_path: Path) -> None:
    history = [f"{number} {TEXT[:600]}" for number in range(20)]

    async def main_() -> None:
        clock = ManualClock()
        app = App(f"sqlite:///{tmp_path / 'runs.db'}", clock=clock)

        @app.run(version=1)
        async def turn(context: Context, history: list[str]) -> list[str]:
            return [*history, "more"]

        async with app:
            await (await app.start(turn, history, run_id="first")).result()
            clock.jump(31 * DAY)
            await (await app.start(turn, history, run_id="second")).result()
            shared = tables(tmp_path, "pieces")
            assert shared > [15]
            await app.collect(Retention())
            assert tables(tmp_path, "pieces") == shared
            assert json.loads(await app.store.read_run_input("second")) == history
            clock.jump(31 * DAY)
            await app.collect(Retention())
            assert tables(tmp_path, "pieces", "runs") == [0, 0]

    run(main_())


def test_tombstones_stay_unless_that_is_asked_for(tmp_path: Path) -> None:
    async def main_() -> None:
        clock = ManualClock()
        identity = OperationIdentity("order-1", "pay", "bank")
        sent: list[int] = []

        async def send(_: Any) -> str:
            sent.append(1)
            return "paid"

        async with ReceiptStore(f"sqlite:///{tmp_path / 'runs.db'}", clock=clock) as store:
            await guard(store, identity, send)
            await store.erase("order-1", by="ada", why="asked")
        clock.jump(1000 * DAY)
        async with app_on(tmp_path, clock) as app:
            await app.collect(Retention())
        async with ReceiptStore(f"sqlite:///{tmp_path / 'runs.db'}", clock=clock) as store:
            with pytest.raises(EffectErased):
                await guard(store, identity, send)
        async with app_on(tmp_path, clock) as app:
            assert (await app.collect(Retention(tombstones_days=365)))["tombstones"] == 1
        assert sent == [1]

    run(main_())


@pytest.mark.parametrize("days", [-1, float("nan")])
def test_odd_days_are_refused(days: float) -> None:
    with pytest.raises(InvalidOptions, match="0 or more days"):
        Retention(runs_days=days)


def test_the_command_says_what_it_would_delete_and_deletes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main_() -> None:
        async with app_on(tmp_path, ManualClock()) as app:  # long ago by the real clock
            await (await app.start("noting", TEXT, run_id="old")).result()

    run(main_())
    url = ("--url", "sqlite:///runs.db")
    assert main(["gc", *url, "--dry-run"]) == 0
    assert "would delete 1 runs, 3 receipts" in capsys.readouterr().out
    assert main(["gc", *url, "--runs-days", "forever", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deleted"]["runs"] == 0
    assert main(["gc", *url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deleted"]["runs"] == 1
    assert main(["gc", *url, "--runs-days", "-1"]) == 2
    assert main(["gc", *url, "--runs-days", "soon"]) == 2
