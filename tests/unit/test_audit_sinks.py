"""Where audit records are kept: a file of lines and a table."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure.audit import AuditFile, AuditTable
from perdure.effects.audit import AUDIT_KEYS
from perdure.errors import EngineClosed, InvalidUrl, StorageError, StorageFull, StorageReadOnly
from perdure.storage.sqlite.database import connect
from perdure.testing.manual_clock import ManualClock
from tests.harness import run, sql, until
from tests.receipts import KEY, Bank, shop
from tests.storages import exists, url_of

AT = "2023-11-14T22:13:20.000000Z"
FULL = {key: kind(key) for key, kind in AUDIT_KEYS.items()}
FOREIGN: dict[str, Any] = {"arguments": "4111", "operation_support": 1, "operation_state": b"x"}


def numbered(number: int) -> dict[str, Any]:
    return {**FULL, "operation_key": f"op-{number}"}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


class Log:
    """A file of audit records in a folder, and what is known of its fsyncs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "audit.jsonl"
        self.sink = AuditFile(self.path, clock=ManualClock())
        self.synced: list[tuple[int, int]] = []
        self.threads: set[threading.Thread] = set()
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, file: int) -> None:
        os.fdatasync(file)
        status = os.fstat(file)
        self.synced.append((status.st_ino, status.st_size))
        self.threads.add(threading.current_thread())

    def syncs(self) -> list[int]:
        """How large the file was at each of its fsyncs."""
        return [size for inode, size in self.synced if inode == self.path.stat().st_ino]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(tmp_path, monkeypatch)


# --- a file --------------------------------------------------------------------------------------


def test_a_record_is_a_line_with_its_time_and_the_allowed_keys(log: Log) -> None:
    async def main() -> None:
        await log.sink.write(FULL)
        await log.sink.write({**FOREIGN, "operation_key": "two\nlines ä"})
        await log.sink.close()

    run(main())
    assert lines(log.path) == [{"at": AT, **FULL}, {"at": AT, "operation_key": "two\nlines ä"}]
    assert [*lines(log.path)[0]] == ["at", *AUDIT_KEYS]
    assert log.path.stat().st_mode & 0o777 == 0o600


def test_a_record_is_on_the_disk_when_write_returns_and_the_loop_did_not_wait(log: Log) -> None:
    async def main() -> None:
        await log.sink.write(FULL)
        assert log.syncs() == [log.path.stat().st_size]
        # The name of the file too.
        assert log.path.parent.stat().st_ino in {inode for inode, _ in log.synced}
        assert threading.current_thread() not in log.threads
        await log.sink.close()

    run(main())


def test_records_that_wait_together_share_an_fsync(log: Log) -> None:
    async def main() -> None:
        with log.sink._lock:
            writes = [asyncio.create_task(log.sink.write(numbered(n))) for n in range(5)]
            await asyncio.sleep(0)
        await asyncio.gather(*writes)
        assert log.syncs() == [log.path.stat().st_size]
        await log.sink.close()

    run(main())
    assert [line["operation_key"] for line in lines(log.path)] == [f"op-{n}" for n in range(5)]


def test_two_sinks_append_whole_lines_to_one_file(log: Log) -> None:
    other = AuditFile(log.path, clock=ManualClock())

    async def main() -> None:
        await asyncio.gather(
            *(sink.write(numbered(n)) for n in range(40) for sink in (log.sink, other))
        )
        await log.sink.close()
        await other.close()

    run(main())
    found = sorted(line["operation_key"] for line in lines(log.path))
    assert found == sorted(2 * [f"op-{n}" for n in range(40)])


@pytest.mark.parametrize("removed", [False, True])
def test_a_file_that_was_rotated_away_is_made_again(log: Log, removed: bool) -> None:
    old = log.path.with_suffix(".1")

    async def main() -> None:
        await log.sink.write(numbered(1))
        log.path.rename(old)
        if not removed:
            await AuditFile(log.path, clock=ManualClock()).write(numbered(2))
        await log.sink.write(numbered(3))
        await log.sink.close()

    run(main())
    assert lines(old) == [{"at": AT, **numbered(1)}]
    assert lines(log.path) == [{"at": AT, **numbered(n)} for n in ([3] if removed else [2, 3])]


def test_half_a_line_that_was_left_behind_spoils_no_other(log: Log) -> None:
    log.path.write_text('{"at": "20')

    async def main() -> None:
        await log.sink.write(FULL)
        await log.sink.close()

    run(main())
    first, *rest = log.path.read_text().splitlines()
    assert (first, [json.loads(line) for line in rest]) == ('{"at": "20', [{"at": AT, **FULL}])


def test_a_full_disk_is_an_error_and_the_next_record_stands_alone(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    async def main() -> None:
        monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:9]))
        with pytest.raises(StorageFull, match=r"audit\.jsonl cannot be written .*: make room"):
            await log.sink.write(numbered(1))
        monkeypatch.setattr(os, "write", write)
        await log.sink.write(numbered(2))
        await log.sink.close()

    run(main())
    torn, whole = log.path.read_text().splitlines()
    assert (torn, json.loads(whole)) == ('{"at":"20', {"at": AT, **numbered(2)})


def test_what_can_not_be_synced_is_an_error(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        run(log.sink.write(FULL))


def test_the_folder_must_be_there(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    with pytest.raises(StorageReadOnly, match=f"create the folder {folder}, or fix the path"):
        AuditFile(folder / "audit.jsonl")
    folder.mkdir()
    sink = AuditFile(folder / "audit.jsonl")
    folder.rmdir()
    with pytest.raises(StorageReadOnly, match=f"create the folder {folder}"):
        run(sink.write(FULL))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StorageReadOnly, match="must be writable by this user"):
        run(AuditFile(tmp_path).write(FULL))


def test_the_record_of_a_cancelled_caller_is_written_all_the_same(log: Log) -> None:
    async def main() -> None:
        loop, free = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, free.wait)
        write = asyncio.create_task(log.sink.write(FULL))
        await asyncio.sleep(0)
        write.cancel()
        await asyncio.wait([write])
        free.set()
        await busy
        await until(lambda: log.path.exists() and bool(log.syncs()))

    run(main())
    assert lines(log.path) == [{"at": AT, **FULL}]


def test_an_effect_is_applied_although_its_record_can_not_be_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    sink = AuditFile(folder / "audit.jsonl")
    folder.rmdir()

    async def main() -> None:
        async with shop(tmp_path, audit=sink) as it:
            assert await it.pay(Bank("done")) == "done"

    run(main())
    (message,) = caplog.messages
    assert message.startswith(f"the audit record of {KEY} is dropped: StorageReadOnly: the audit")


# --- a table -------------------------------------------------------------------------------------


def table(folder: Path) -> AuditTable:
    return AuditTable(url_of(folder), clock=ManualClock())


@pytest.mark.usefixtures("storage")
def test_records_are_read_newest_first_and_hold_the_allowed_keys(tmp_path: Path) -> None:
    async def main() -> None:
        it = table(tmp_path)
        first, third = numbered(1), {**numbered(1), "operation_replay_suppressed": False}
        second = {"operation_key": "op-2", "operation_first_execution": False}
        for record in (first, {**FOREIGN, **second}, third):
            await it.write(record)
        first, second, third = ({"at": AT, **record} for record in (first, second, third))
        assert await it.read() == [third, second, first]
        assert await it.read("op-1") == [third, first]
        assert await it.read("op-2") == [second]
        assert await it.read(limit=2) == [third, second]
        assert await it.read("op-1", limit=1) == [third]
        (newest, *_) = await it.read()
        assert {key: type(newest[key]) for key in AUDIT_KEYS} == AUDIT_KEYS
        await it.close()

    run(main())


def test_there_is_a_column_for_each_key_and_its_type_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        it = table(tmp_path)
        await it.write(FULL)
        await it.close()

    run(main())
    kinds = {str: "TEXT", bool: "INTEGER"}
    columns = sql(tmp_path, "SELECT name, type FROM pragma_table_info('audit')")
    assert dict(columns) == {
        "audit_number": "INTEGER",
        "at": "REAL",
        **{key: kinds[kind] for key, kind in AUDIT_KEYS.items()},
    }
    with closing(connect(tmp_path / "runs.db", 1)) as database:
        for wrong in ("operation_first_execution = 2", "operation_first_execution = 'yes'"):
            with pytest.raises(Exception, match=r"CHECK|cannot store TEXT"):
                database.execute(f"UPDATE audit SET {wrong}")


@pytest.mark.usefixtures("storage")
def test_the_table_may_stand_in_the_file_of_the_receipts(tmp_path: Path) -> None:
    async def main() -> None:
        it = table(tmp_path)
        async with shop(tmp_path, audit=it) as paying:
            bank = Bank("done")
            for _ in range(2):
                await paying.pay(bank)
        replayed, applied = await it.read(KEY)
        assert (applied["operation_state"], applied["operation_first_execution"]) == (
            "completed",
            True,
        )
        assert replayed["operation_replay_suppressed"] is True
        await it.close()

    run(main())


@pytest.mark.usefixtures("storage")
def test_a_table_belongs_to_the_loop_that_opened_it_until_it_is_closed(tmp_path: Path) -> None:
    it = table(tmp_path)
    assert not exists(tmp_path, "audit")

    async def use() -> None:
        await it.write(FULL)
        with pytest.raises(EngineClosed, match="another event loop"):
            await asyncio.to_thread(asyncio.run, it.read())
        await it.close()
        await it.close()

    for _ in range(2):
        run(use())
    assert sql(tmp_path, "SELECT count(*) FROM audit") == [(2,)]


def test_a_url_that_names_no_file_is_refused_at_once() -> None:
    with pytest.raises(InvalidUrl):
        AuditTable("audit.db")
