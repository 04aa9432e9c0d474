from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from perdure import EffectAmbiguous
from perdure.cli.follow import Follow
from perdure.cli.screen import Screen
from perdure.effects.answer import SendAgain, Unknown
from tests.commands import LOST, Commands, doubtful
from tests.harness import run, sql
from tests.receipts import KEY, QUERYABLE, Bank, Shop, shop


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Commands:
    monkeypatch.chdir(tmp_path)
    return Commands(capsys)


class Watched:
    """A watch over the shop of a folder, and what it wrote."""

    def __init__(self, it: Shop, capsys: pytest.CaptureFixture[str]) -> None:
        self.follow = Follow(it.store)
        self._capsys = capsys

    async def told(self, *, as_json: bool = False) -> list[str]:
        await self.follow.tell(Screen(as_json=as_json))
        return self._capsys.readouterr().out.splitlines()


def test_every_change_is_told_oldest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with shop(tmp_path) as it:
            watched = Watched(it, capsys)
            assert ": 0 effects in flight, 0 ambiguous; Ctrl-C" in await watched.follow.begin()
            bank = Bank(asyncio.Event(), LOST, answers=[Unknown(), Unknown()])
            arrived = bank.sends[0]
            twice = msgspec.structs.replace(QUERYABLE, reconcile_attempts=2)
            paid = asyncio.create_task(it.pay(bank, twice))
            await bank.reached.wait()
            (line,) = await watched.told()
            start = f"2023-11-14 22:13:20Z  {KEY[:15]}  invoice-17 charge/1 on bank: "
            assert line.startswith(f"{start}claimed by guard.")
            arrived.set()
            await it.clock.until_sleeping()
            doubt, asked = await watched.told()
            assert doubt == f"{start}ambiguous: ConnectionResetError: no\\x1b[31m reply"
            assert "asked, 1 lookup without an answer; next from 2023-11-14 22:13:25Z" in asked
            while not paid.done():
                if it.clock.sleeping:
                    it.clock.advance(it.clock.sleeping[0])
                await asyncio.sleep(0)
            assert isinstance(paid.exception(), EffectAmbiguous)
            (line,) = await watched.told()
            assert "2 lookups without an answer, exhausted: a person has to say" in line
            receipt = await it.receipt()
            await it.store.settle(
                KEY, SendAgain(), by="ada", why="so", expect_version=receipt.version
            )
            (line,) = await watched.told()
            assert line.endswith("failed: ada says that it may be sent again: so")
            await it.pay(Bank("paid"), QUERYABLE)
            begun, done = [json.loads(line) for line in await watched.told(as_json=True)]
            assert [(each["event"], each["decision"]) for each in (begun, done)] == [
                ("claimed", None),
                ("completed", None),
            ]
            assert begun["at"] == begun["receipt"]["claimed_at"]
            assert (done["receipt"]["attempt"], done["receipt"]["result"]) == (2, None)
            sql(tmp_path, "UPDATE receipts SET version = version + 1")
            assert await watched.told() == []

    run(main())


def test_a_watch_ends_when_it_was_told_to(tmp_path: Path, cli: Commands) -> None:
    doubtful(tmp_path)
    code, out, err = cli("watch", "--for", "0.001", "--run", "other")
    assert (code, out) == (0, "")
    assert err == ("watching sqlite:///runs.db: 0 effects in flight, 0 ambiguous; Ctrl-C ends it\n")
    assert cli("watch", "--for", "0.001", "--json") == (0, "", "")
