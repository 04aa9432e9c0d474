"""Processes that are killed while they save, and several that save at once: on one file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoints import Checkpoint, CheckpointedStream, CheckpointKind, FileStore, Saved
from perdure.errors import CheckpointConflict, StaleCheckpoint
from perdure.testing.crash import CrashAt, CrashPoints
from tests.acceptance.children import note, notes, run, running

_PROCESSES = 3
_SAVES = 20


def checkpoint(revision: int) -> Checkpoint:
    state = b'"%s"' % (b"%d" % revision * 200_000)
    return Checkpoint("run-1", "stream-1", CheckpointKind.STREAM, revision, 0, state)


def path_in(folder: Path) -> Path:
    return folder / "checkpoints.json"


def save(folder: Path, revision: int, crash: tuple[str, int] | None) -> None:
    """Save a checkpoint, up to a crash."""
    probe = None if crash is None else CrashAt(*crash)
    asyncio.run(FileStore(path_in(folder), probe=probe).save_checkpoint(checkpoint(revision)))


def load(folder: Path) -> Checkpoint | None:
    return asyncio.run(FileStore(path_in(folder)).load_checkpoint("run-1", "stream-1"))


def points(folder: Path) -> list[tuple[str, int]]:
    passed = CrashPoints()
    store = FileStore(path_in(folder), probe=passed)
    asyncio.run(store.save_checkpoint(checkpoint(1)))
    path_in(folder).unlink()
    return passed.crashes()


@pytest.mark.parametrize("there", [True, False])
def test_a_save_that_was_killed_anywhere_left_the_old_file_or_the_new_one(
    tmp_path: Path, there: bool
) -> None:
    crashes = points(tmp_path)
    assert len(crashes) == 5
    old = checkpoint(1) if there else None
    found: list[bool] = []
    for number, crash in enumerate(crashes):
        folder = tmp_path / str(number)
        folder.mkdir()
        if there:
            save(folder, 1, None)
        with running(folder, save, folder, 2, crash) as child:
            child.die()
        left = load(folder)
        assert left in {old, checkpoint(2)}
        found.append(left == old)
        store = FileStore(path_in(folder))
        saved = asyncio.run(store.save_checkpoint(checkpoint(2)))
        assert (saved is Saved.DUPLICATE) is (left != old)
        assert load(folder) == checkpoint(2)
        assert not path_in(folder).with_name("checkpoints.json.new").exists()
    assert found == [True, True, True, False, False]


def count_up(folder: Path, name: str) -> None:
    """Raise one number that all share, and one of this process's own, again and again."""
    store = FileStore(path_in(folder))

    async def main() -> None:
        own = shared = 0
        while own < _SAVES:
            loaded = await store.load_checkpoint("run-1", "shared")
            revision = 1 if loaded is None else loaded.revision + 1
            state = b"%d" % os.getpid()
            asked = Checkpoint("run-1", "shared", CheckpointKind.APPROVAL, revision, 0, state)
            try:
                await store.save_checkpoint(asked)
            except (CheckpointConflict, StaleCheckpoint):
                continue
            shared += 1
            own += 1
            mine = Checkpoint("run-1", name, CheckpointKind.STREAM, own, own, b"{}")
            assert await store.save_checkpoint(mine) is not Saved.DUPLICATE
        note(folder / "log", name=name, shared=shared)

    asyncio.run(main())


def test_no_save_is_lost_where_processes_save_at_once(tmp_path: Path) -> None:
    names = [f"own-{number}" for number in range(_PROCESSES)]

    def start(left: list[str]) -> None:
        if not left:
            return
        with running(tmp_path, count_up, tmp_path, left[0]) as child:
            start(left[1:])
            child.succeed()

    start(names)
    assert len(notes(tmp_path / "log")) == _PROCESSES

    async def found(name: str) -> int:
        loaded = await FileStore(path_in(tmp_path)).load_checkpoint("run-1", name)
        assert loaded is not None
        return loaded.revision

    assert [asyncio.run(found(name)) for name in names] == [_SAVES] * _PROCESSES
    assert asyncio.run(found("shared")) == _SAVES * _PROCESSES


def show(folder: Path, crash: tuple[str, int] | None) -> None:
    """Deliver five events, up to a crash."""
    probe: Any = None if crash is None else CrashAt(*crash)

    async def deliver(event: int) -> None:
        note(folder / "log", event=event)

    async def main() -> None:
        store = FileStore(path_in(folder), probe=probe)
        stream = await CheckpointedStream.open(store, "run-1", "stream-1", deliver)
        for event in range(5):
            await stream(event)

    asyncio.run(main())


@pytest.mark.parametrize("point", ["replace", "replaced"])
def test_a_stream_that_was_killed_delivers_at_least_once(tmp_path: Path, point: str) -> None:
    with running(tmp_path, show, tmp_path, (f"checkpoint.{point}", 3)) as child:
        child.die()
    run(tmp_path, show, tmp_path, None)
    again = [2] if point == "replace" else []
    events = [line["event"] for line in notes(tmp_path / "log")]
    assert events == [0, 1, 2, *again, 3, 4]
