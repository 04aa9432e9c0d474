"""A full disk: runs wait for room, and lose and repeat nothing that was recorded."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from perdure import StorageError
from perdure.errors import StorageFull
from tests.acceptance.children import Child, note, notes, query, run, running, until
from tests.acceptance.fetching import OPERATIONS, RESULT_BYTES, app_in, fetched_times, finish

_ROOM_BYTES = 600_000


class Disk(Protocol):
    """A folder that has little room until it is given more."""

    folder: Path
    limit_bytes: int | None

    def make_room(self, child: Child) -> None: ...


class Mounted:
    """A file system of its own."""

    limit_bytes = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make_room(self, child: Child) -> None:
        subprocess.run(["mount", "-o", "remount,size=8m", str(self.folder)], check=True)


class Limited:
    """A limit on the size of each file that the process writes."""

    limit_bytes = _ROOM_BYTES

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make_room(self, child: Child) -> None:
        hard = resource.prlimit(child.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (hard, hard))


@pytest.fixture(params=["limited", "mounted"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if request.param == "limited":
        yield Limited(folder)
        return
    options = ["-t", "tmpfs", "-o", f"size={_ROOM_BYTES // 1024}k", "tmpfs", str(folder)]
    if subprocess.run(["mount", *options], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield Mounted(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fetch_on(
    folder: Path,
    limit_bytes: int | None,
    log: Path,
    lease_seconds: float,
    function: str = "fetching",
) -> None:
    """Run until the disk is full, try to start another, and go on when there is room."""
    if limit_bytes is not None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    logging.getLogger("perdure").addHandler(_Noting(log))
    app = app_in(folder, lease_seconds=lease_seconds)

    async def start_another() -> None:
        while not _said(log, "is full", "make room"):
            await asyncio.sleep(0.01)
        try:
            await app.start("storing", os.urandom(5 * RESULT_BYTES).hex(), run_id="run-2")
        except StorageFull as error:
            note(log, refused=str(error))

    async def main() -> None:
        async with app:
            handle = await app.start(function, str(log), run_id="run-1")
            await start_another()
            note(log, result=await handle.result())

    asyncio.run(main())


class _Noting(logging.Handler):
    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        note(self._log, said=record.getMessage())


def _said(log: Path, *words: str) -> list[str]:
    said = [line["said"] for line in notes(log) if "said" in line]
    return [line for line in said if all(word in line for word in words)]


@pytest.mark.parametrize("function", ["fetching", "buying"])
def test_a_run_waits_on_a_full_disk_and_loses_and_repeats_nothing(
    disk: Disk, tmp_path: Path, function: str
) -> None:
    log = tmp_path / "log"
    with running(tmp_path, fetch_on, disk.folder, disk.limit_bytes, log, 15.0, function) as child:
        until(lambda: [line for line in notes(log) if "refused" in line], child)
        assert query(disk.folder / "runs.db", "SELECT run_id, state FROM runs") == [
            ("run-1", "running")
        ]
        disk.make_room(child)
        child.succeed()
    assert fetched_times(log) == Counter(range(OPERATIONS))
    assert [line["result"] for line in notes(log) if "result" in line] == [
        OPERATIONS * RESULT_BYTES
    ]
    assert query(disk.folder / "runs.db", "SELECT ending FROM attempts") == [("completed",)]


def test_a_disk_that_stays_full_costs_the_lease_and_never_what_was_recorded(
    disk: Disk, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with running(tmp_path, fetch_on, disk.folder, disk.limit_bytes, log, 0.6) as child:
        until(lambda: _said(log, "lost its lease"), child)
        ((recorded,),) = query(disk.folder / "runs.db", "SELECT count(*) FROM records")
        before = fetched_times(log)
        disk.make_room(child)
        child.succeed()
    fetched = fetched_times(log)
    assert set(fetched) == set(range(OPERATIONS))
    assert 0 < recorded < OPERATIONS
    assert all(fetched[number] == before[number] for number in range(recorded))
    # Each attempt that lost its lease had one operation without a record.
    ((attempts,),) = query(disk.folder / "runs.db", "SELECT count(*) FROM attempts")
    assert fetched.total() - OPERATIONS <= attempts - 1


def test_a_worker_killed_on_a_full_disk_leaves_all_that_it_recorded(
    disk: Disk, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with running(tmp_path, fetch_on, disk.folder, disk.limit_bytes, log, 15.0) as child:
        until(lambda: [line for line in notes(log) if "refused" in line], child)
        child.signal(signal.SIGSTOP)  # or it might end before it is killed
        disk.make_room(child)
        child.signal(signal.SIGKILL)
        child.die()
    before = fetched_times(log)
    ((recorded,),) = query(disk.folder / "runs.db", "SELECT count(*) FROM records")
    assert 0 < recorded < OPERATIONS
    run(tmp_path, finish, disk.folder, log)
    after = fetched_times(log)
    assert set(after) == set(range(OPERATIONS))
    assert all(after[number] == before[number] == 1 for number in range(recorded))
    assert max(after.values()) <= 2


def open_without_room(folder: Path, log: Path, limit_bytes: int) -> None:
    """Open an App on a full disk, and again when there is room."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        app_in(folder).run_sync("fetching", str(log))
    except StorageError as error:
        refused = (type(error).__name__, str(error))
    else:
        refused = ("", "")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    note(log, error=refused[0], message=refused[1])
    finish(folder, log)


@pytest.mark.parametrize("limit_bytes", [0, 2_000, 10_000, 40_000])
def test_a_file_that_there_is_no_room_for_is_made_when_there_is(
    tmp_path: Path, limit_bytes: int
) -> None:
    log = tmp_path / "log"
    run(tmp_path, open_without_room, tmp_path, log, limit_bytes)
    (error,) = [line for line in notes(log) if "error" in line]
    assert error["error"] == "StorageFull"
    assert "make room" in error["message"]
    assert fetched_times(log) == Counter(range(OPERATIONS))
