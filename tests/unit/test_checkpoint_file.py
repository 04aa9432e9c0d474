"""Checkpoints in a file: what is written, what is refused, and what hostile files come to."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.checkpoints import Checkpoint, CheckpointKind, FileStore, Saved
from perdure.errors import (
    CheckpointConflict,
    CheckpointTooLarge,
    InvalidCheckpoint,
    InvalidOptions,
    PerdureError,
    StorageBusy,
    StorageError,
    StorageFull,
    StorageReadOnly,
    UnsupportedCheckpointVersion,
)
from perdure.journal import checkpoint_snapshot
from perdure.journal.checkpoint_snapshot import (
    SNAPSHOT_LIMIT_BYTES,
    encode_snapshot,
    parse_snapshot,
)
from perdure.testing.crash import CrashPoints
from tests.harness import run

FIRST = Checkpoint("run-1", "stream-1", CheckpointKind.STREAM, 1, 0, b'{"version":1}')
ENTRY = json.dumps(
    {
        "run_id": "run-1",
        "checkpoint_id": "stream-1",
        "kind": "stream",
        "revision": 1,
        "cursor": 0,
        "state_json": '{"version":1}',
    },
    separators=(",", ":"),
)
FILE = f'{{"version":2,"checkpoints":[{ENTRY}]}}'.encode()


def later(**changes: Any) -> Checkpoint:
    return msgspec.structs.replace(FIRST, **changes)


def named(folder: Path) -> Path:
    return folder / "checkpoints.json"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_made_with_its_folders_for_its_owner_alone(tmp_path: Path) -> None:
    path = named(tmp_path / "a" / "b")
    store = FileStore(str(path))

    async def main() -> None:
        assert await store.load_checkpoint("run-1", "stream-1") is None
        await store.remove_checkpoint("run-1", "stream-1")
        assert names(tmp_path) == []
        assert await store.save_checkpoint(FIRST) is Saved.CREATED
        assert await FileStore(path).load_checkpoint("run-1", "stream-1") == FIRST

    run(main())
    assert path.read_bytes() == FILE
    assert names(path.parent) == ["checkpoints.json", "checkpoints.json.lock"]
    for name in names(path.parent):
        assert (path.parent / name).stat().st_mode & 0o777 == 0o600


def test_what_advances_keeps_its_place_and_what_is_new_comes_last(tmp_path: Path) -> None:
    store = FileStore(named(tmp_path))

    async def main() -> None:
        for name in ("b", "a", "c"):
            await store.save_checkpoint(later(checkpoint_id=name))
        assert await store.save_checkpoint(later(checkpoint_id="b", revision=2)) is Saved.ADVANCED
        await store.remove_checkpoint("run-1", "a")
        await store.save_checkpoint(later(checkpoint_id="a"))

    run(main())
    entries = json.loads(store.path.read_bytes())["checkpoints"]
    assert [(each["checkpoint_id"], each["revision"]) for each in entries] == [
        ("b", 2),
        ("c", 1),
        ("a", 1),
    ]


def test_what_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    points = CrashPoints()
    store = FileStore(named(tmp_path), probe=points)

    async def main() -> None:
        await store.save_checkpoint(FIRST)
        written = [*points.passed]
        assert await store.save_checkpoint(FIRST) is Saved.DUPLICATE
        with pytest.raises(CheckpointConflict, match="saved at revision 1 with something else"):
            await store.save_checkpoint(later(cursor=1))
        await store.remove_checkpoint("run-1", "other")
        assert points.passed == written

    run(main())
    assert points.passed == [
        f"checkpoint.{name}" for name in ("write", "sync", "replace", "replaced", "done")
    ]


def test_a_file_is_synced_before_it_takes_its_place_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        passed.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    store = FileStore(named(tmp_path / "a" / "b"), probe=passed.append)
    run(store.save_checkpoint(FIRST))
    assert passed == [
        "folder",
        "folder",
        "checkpoint.write",
        "checkpoint.sync",
        "file",
        "checkpoint.replace",
        "checkpoint.replaced",
        "folder",
        "checkpoint.done",
    ]
    passed.clear()
    # Whoever wrote it may have died before its name was synced.
    assert run(store.save_checkpoint(FIRST)) is Saved.DUPLICATE
    assert passed == ["folder"]
    run(store.remove_checkpoint("run-1", "stream-1"))
    assert passed[-2:] == ["folder", "checkpoint.done"]


def test_whatever_was_written_can_be_read(tmp_path: Path) -> None:
    """The limit itself is too much, for a file that is written and for one that is there."""
    store = FileStore(named(tmp_path), limit_bytes=1000)

    def of(size: int) -> Checkpoint:
        return later(state_json=b"9" * (size - len(FILE) + len(r"{\"version\":1}")))

    async def main() -> None:
        with pytest.raises(CheckpointTooLarge, match=r"checkpoints.json has 1000 bytes or more"):
            await store.save_checkpoint(of(1000))
        assert names(tmp_path) == ["checkpoints.json.lock"]
        assert await store.save_checkpoint(of(999)) is Saved.CREATED
        assert store.path.stat().st_size == 999
        assert await store.load_checkpoint("run-1", "stream-1") == of(999)
        store.path.write_bytes(FILE + b" " * (1000 - len(FILE)))
        with pytest.raises(CheckpointTooLarge, match="1000 bytes or more"):
            await store.load_checkpoint("run-1", "stream-1")

    run(main())


@pytest.mark.parametrize("limit", [0, -1, SNAPSHOT_LIMIT_BYTES + 1])
def test_a_limit_that_nothing_could_keep_is_refused(tmp_path: Path, limit: int) -> None:
    with pytest.raises(InvalidOptions, match="from 1 to 33554432"):
        FileStore(named(tmp_path), limit_bytes=limit)


def test_a_snapshot_holds_no_more_checkpoints_than_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_snapshot, "MOST_CHECKPOINTS", 3)
    many = [later(checkpoint_id=f"c-{number}") for number in range(4)]
    with pytest.raises(CheckpointTooLarge, match="would hold 4 checkpoints, and 3 are the most"):
        encode_snapshot(many, what="it")
    data = encode_snapshot(many[1:], what="it")
    assert len(parse_snapshot(data, what="it")) == 3
    with pytest.raises(InvalidCheckpoint, match="holds more than 3"):
        parse_snapshot(data.replace(b"[", b"[" + ENTRY.encode() + b",", 1), what="it")


def test_version_1_is_read_and_version_2_is_written(tmp_path: Path) -> None:
    store = FileStore(named(tmp_path))
    old = FILE.replace(b'"version":2', b'"version":1', 1)
    old = old.replace(b'"cursor"', b'"event_cursor"').replace(b'"state_json"', b'"payload_json"')
    store.path.write_bytes(old)

    async def main() -> None:
        assert await store.load_checkpoint("run-1", "stream-1") == FIRST
        assert await store.save_checkpoint(FIRST) is Saved.DUPLICATE
        assert store.path.read_bytes() == old
        await store.save_checkpoint(later(revision=2))

    run(main())
    assert store.path.read_bytes() == FILE.replace(b'"revision":1', b'"revision":2')


HOSTILE: dict[str, tuple[bytes, type[PerdureError], str]] = {
    "truncated": (FILE[:-9], InvalidCheckpoint, "truncated"),
    "empty": (b"", InvalidCheckpoint, "truncated"),
    "not UTF-8": (FILE.replace(b"stream-1", b"\xff"), InvalidCheckpoint, "does not have the shape"),
    "deep": (b"[" * 2_000_000, InvalidCheckpoint, "does not have the shape"),
    "deep within": (
        b'{"version":2,"checkpoints":%s%s}' % (b"[" * 500_000, b"]" * 500_000),
        InvalidCheckpoint,
        "does not have the shape",
    ),
    "deep and unknown": (
        b'{"version":2,"checkpoints":[],"x":%s%s}' % (b"[" * 500_000, b"]" * 500_000),
        InvalidCheckpoint,
        "does not have the shape",
    ),
    "5 MiB": (FILE + b" " * 5 * 1024 * 1024, CheckpointTooLarge, "4194304 bytes or more"),
    "a member twice": (
        FILE.replace(b'"version":2', b'"version":2,"version":2', 1),
        InvalidCheckpoint,
        "stands twice",
    ),
    "a member twice in an entry": (
        FILE.replace(b'"cursor":0', b'"cursor":0,"c\\u0075rsor":0'),
        InvalidCheckpoint,
        "stands twice",
    ),
    "a key twice": (
        FILE.replace(b"]}", b"," + ENTRY.encode() + b"]}"),
        InvalidCheckpoint,
        "holds the checkpoint run-1/stream-1 twice",
    ),
    "a fraction": (FILE.replace(b'"cursor":0', b'"cursor":0.0'), InvalidCheckpoint, "shape"),
    "too large a number": (
        FILE.replace(b'"cursor":0', b'"cursor":9223372036854775808'),
        InvalidCheckpoint,
        "shape",
    ),
    "a later version": (
        b'{"version":3,"checkpoints":[{"new":1}]}',
        UnsupportedCheckpointVersion,
        "version 3 and this release reads 1 and 2: upgrade",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_by_name_and_left_alone(tmp_path: Path, name: str) -> None:
    data, error, says = HOSTILE[name]
    store = FileStore(named(tmp_path))
    store.path.write_bytes(data)

    async def main() -> None:
        works: list[Callable[[], Any]] = [
            lambda: store.load_checkpoint("run-1", "stream-1"),
            lambda: store.save_checkpoint(later(revision=2)),
            lambda: store.remove_checkpoint("run-1", "stream-1"),
        ]
        for work in works:
            with pytest.raises(error, match=says) as caught:
                await work()
            assert str(store.path) in str(caught.value)

    run(main())
    assert store.path.read_bytes() == data


@pytest.mark.parametrize("place", ["checkpoints.json", "checkpoints.json.lock"])
@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_not_followed(tmp_path: Path, place: str, there: bool) -> None:
    target = tmp_path / "elsewhere"
    if there:
        target.write_bytes(FILE)
    (tmp_path / place).symlink_to(target)
    with pytest.raises(StorageError, match="symbolic link; name the file itself"):
        run(FileStore(named(tmp_path)).save_checkpoint(later(revision=2)))
    assert target.exists() is there
    assert not there or target.read_bytes() == FILE


def test_a_link_in_the_place_of_the_new_file_is_not_written_through(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("precious")
    store = FileStore(named(tmp_path))
    (tmp_path / "checkpoints.json.new").symlink_to(target)
    run(store.save_checkpoint(FIRST))
    assert (target.read_text(), store.path.read_bytes()) == ("precious", FILE)


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = named(tmp_path)
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(StorageError, match="is no file"):
        run(FileStore(path).load_checkpoint("run-1", "stream-1"))


FAULTS = [
    (errno.EACCES, StorageReadOnly, "has to be able to read it and to write its folder"),
    (errno.ENOSPC, StorageFull, "make room; what was saved before is safe"),
    (errno.EIO, StorageError, "cannot be used"),
]


@pytest.mark.parametrize(("number", "error", "says"), FAULTS)
@pytest.mark.parametrize("call", ["open", "fsync"])
def test_what_the_system_refuses_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    error: type[StorageError],
    says: str,
    call: str,
) -> None:
    store = FileStore(named(tmp_path))
    run(store.save_checkpoint(FIRST))

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(error, match=says):
        run(store.save_checkpoint(later(revision=2)))
    if call == "open":
        with pytest.raises(error, match=says):
            run(store.load_checkpoint("run-1", "stream-1"))
    monkeypatch.undo()
    assert run(store.load_checkpoint("run-1", "stream-1")) == FIRST
    assert names(tmp_path) == ["checkpoints.json", "checkpoints.json.lock"]
    assert run(store.save_checkpoint(later(revision=2))) is Saved.ADVANCED


def test_a_lock_that_is_never_released_is_told(tmp_path: Path) -> None:
    store = FileStore(named(tmp_path), busy_seconds=0.01)
    run(store.save_checkpoint(FIRST))
    with (tmp_path / "checkpoints.json.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(
            StorageBusy, match=r"checkpoints.json.lock for longer than 0.01 seconds"
        ):
            run(store.save_checkpoint(later(revision=2)))
        assert run(store.load_checkpoint("run-1", "stream-1")) == FIRST
    assert run(store.save_checkpoint(later(revision=2))) is Saved.ADVANCED


def test_those_that_save_at_once_wait_for_each_other(tmp_path: Path) -> None:
    stores = [FileStore(named(tmp_path)) for _ in range(3)]

    async def main() -> None:
        saves = [
            stores[number % 3].save_checkpoint(later(checkpoint_id=f"c-{number}"))
            for number in range(30)
        ]
        assert set(await asyncio.gather(*saves)) == {Saved.CREATED}

    run(main())
    entries = json.loads(named(tmp_path).read_bytes())["checkpoints"]
    assert sorted(each["checkpoint_id"] for each in entries) == sorted(
        f"c-{number}" for number in range(30)
    )


def test_saving_holds_no_event_loop(tmp_path: Path) -> None:
    """The loop goes on while a save waits within a thread."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        reached, going_on = asyncio.Event(), asyncio.Event()

        def probe(point: str) -> None:
            if point == "checkpoint.sync":
                loop.call_soon_threadsafe(reached.set)
                asyncio.run_coroutine_threadsafe(going_on.wait(), loop).result()

        saving = asyncio.create_task(FileStore(named(tmp_path), probe=probe).save_checkpoint(FIRST))
        await reached.wait()
        there = named(tmp_path).exists()
        going_on.set()
        assert (there, await saving) == (False, Saved.CREATED)

    run(main())


def test_importing_perdure_loads_nothing_of_checkpoints() -> None:
    code = "import sys, perdure; print([name for name in sys.modules if 'checkpoint' in name])"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["c.json.new", "c.json.lock", "c\x00.json"])
def test_a_path_that_another_file_of_checkpoints_writes_is_refused(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(InvalidOptions, match="cannot be kept in"):
        FileStore(tmp_path / name)
