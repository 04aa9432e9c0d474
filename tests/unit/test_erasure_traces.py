from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import RunState
from perdure.engine.store import RunEnd
from perdure.storage.pieces import pack
from tests.erasing import LONG, WHO, bytes_of, filled
from tests.harness import RUN, app_on, run, stored

PACKED = pack(LONG)[1][:60]
MARKS = (
    *("input", "result", "failure", "traceback", "piece-0", "piece-2", "tail", "message", "wait"),
    *("answer", "refusal", "key", "target"),
)


def test_nothing_of_what_was_erased_can_be_read_in_the_files(tmp_path: Path) -> None:
    async def fill() -> None:
        async with stored(tmp_path) as it:
            for run_id, mark in (("done", "MARK"), ("other", "KEEP"), ("failed", "MARK")):
                await filled(it, run_id, mark)
            await it.store.retire_worker(it.fence.holder)

    async def erase() -> None:
        app = app_on(tmp_path)
        async with app.connect():
            for run_id in ("done", "failed"):
                await app.erase(run_id, **WHO)
            assert b"MARK" not in bytes_of(tmp_path)

    run(fill())
    before = bytes_of(tmp_path)
    assert [mark for mark in MARKS if f"MARK-{mark}".encode() not in before] == []
    assert PACKED in before
    run(erase())
    after = bytes_of(tmp_path)
    assert b"MARK" not in after
    assert PACKED not in after
    kept = [mark for mark in MARKS if f"KEEP-{mark}".encode() in after]
    assert kept == [mark for mark in MARKS if mark not in {"failure", "traceback"}]


def _leave_fragments(folder: Path) -> None:
    """Leave bytes in the file as a page does that was put together anew."""
    connection = sqlite3.connect(folder / "runs.db", isolation_level=None)
    connection.execute("PRAGMA secure_delete = OFF")
    connection.execute("INSERT INTO attempts VALUES (9, 1, 'MARK-fragment', 1.0, NULL, NULL, 0, 0)")
    connection.execute("DELETE FROM attempts WHERE run_number = 9")
    connection.close()


@pytest.mark.parametrize("rewrite", [False, True])
def test_rewriting_leaves_no_fragment_in_what_pages_do_not_use(
    tmp_path: Path, rewrite: bool
) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            await it.store.end_run(it.fence, RunEnd(RunState.COMPLETED, b'"MARK"'))
            _leave_fragments(tmp_path)
            await it.store.erase_run(RUN, rewrite=rewrite, **WHO)
        data = bytes_of(tmp_path)
        assert (b"MARK-fragment" not in data) is rewrite
        assert b'"MARK"' not in data

    run(main())


def test_a_reader_keeps_the_log_for_as_long_as_it_reads(tmp_path: Path) -> None:
    async def main(hold: Callable[[], Any]) -> None:
        async with stored(tmp_path) as it:
            await it.store.end_run(it.fence, RunEnd(RunState.COMPLETED, b'"MARK"'))
            hold()
            await it.store.erase_run(RUN, **WHO)
            assert b"MARK" in (tmp_path / "runs.db-wal").read_bytes()
            reader.close()

    reader = sqlite3.connect(tmp_path / "runs.db", isolation_level=None, check_same_thread=False)
    run(main(lambda: reader.executescript("BEGIN; SELECT count(*) FROM runs;")))
    assert b"MARK" not in bytes_of(tmp_path)
