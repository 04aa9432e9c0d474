"""Kills an erasure at every point where a crash leaves a different state, and erases again."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from perdure.engine.store import RunEnd, RunState
from perdure.errors import RunErased
from perdure.journal import Success
from perdure.storage.sqlite import erasure
from perdure.testing.crash import CrashAt, CrashPoints
from tests.acceptance.children import running
from tests.harness import RUN, app_on, stored


def erase(folder: Path, crash: tuple[str, int] | None) -> None:
    """Erase the run of a folder in small parts, up to a crash."""
    erasure._ROWS = 5
    erasure._PAUSE_SECONDS = 0.0

    async def main() -> None:
        app = app_on(folder, probe=None if crash is None else CrashAt(*crash))
        async with app.connect():
            await app.erase(RUN, by="ada", why="request 17")

    asyncio.run(main())


async def fill(folder: Path) -> None:
    """Write a run whose conversation grows, so that its pieces outlast its first records."""
    async with stored(folder) as it:
        document, cuts = b"", list[int]()
        for number in range(6):
            document += b"MARK-%d, " % number
            cuts.append(len(document))
            await it.append("m", number, document, (*cuts,), Success(b'"MARK-answer"'))
        await it.store.end_run(it.fence, RunEnd(RunState.COMPLETED, b'"MARK-result"'))


async def points(folder: Path) -> list[tuple[str, int]]:
    passed = CrashPoints()
    app = app_on(folder, probe=passed)
    async with app.connect():
        await app.erase(RUN, by="ada", why="request 17")
    return [crash for crash in passed.crashes() if "erase_run" in crash[0]]


async def result(folder: Path) -> object:
    app = app_on(folder)
    async with app.connect():
        try:
            return await app.handle(RUN).result()
        except RunErased:
            return RunErased


def marked(folder: Path) -> bool:
    return any(b"MARK" in path.read_bytes() for path in folder.glob("runs.db*") if path.is_file())


def test_an_erasure_that_was_killed_anywhere_is_finished_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "_ROWS", 5)
    whole = tmp_path / "whole"
    whole.mkdir()
    asyncio.run(fill(whole))
    shutil.copytree(whole, tmp_path / "tried")
    crashes = asyncio.run(points(tmp_path / "tried"))
    assert len(crashes) > 4
    for number, crash in enumerate(crashes):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        with running(folder, erase, folder, crash) as child:
            child.die()
        expected = "MARK-result" if number == 0 else RunErased
        assert asyncio.run(result(folder)) == expected, crash
        with running(folder, erase, folder, None) as child:
            child.succeed()
        assert not marked(folder), crash
