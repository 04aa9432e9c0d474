from __future__ import annotations

from pathlib import Path

import pytest

from perdure import RunState
from perdure.engine.store import RunProblem
from perdure.errors import StorageReadOnly
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, app_on, run, sql, stored

PROBLEM = RunProblem("Code", "Type", "message")


@pytest.mark.parametrize(
    ("moment", "taken"),
    [(59.0, False), (61.0, True), (-2.0, True)],
    ids=["stands", "ran out", "from before a reboot"],
)
def test_a_lease_is_taken_when_it_does_not_stand(
    tmp_path: Path, moment: float, taken: bool
) -> None:
    clock = ManualClock(monotonic=1000.0)

    async def main() -> None:
        async with stored(tmp_path, clock) as it:
            sweeper = await it.store.register_worker("sweeper", 3600.0)
            clock.advance(moment)
            assert await it.store.sweep(sweeper) == taken
            assert await it.store.sweep(sweeper) == 0
            row = await it.store.read_run(RUN)
            assert row is not None
            assert row.state == (RunState.PENDING if taken else RunState.RUNNING)
            endings = [entry.ending for entry in await it.store.list_attempts(RUN)]
            assert endings == ["lost" if taken else None]
            names = [entry.name for entry in await it.store.list_workers()]
            assert names == (["sweeper"] if taken else ["w", "sweeper"])

    run(main())


def test_only_writes_count_as_change(tmp_path: Path) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            assert it.store.changed()
            await it.store.read_run(RUN)
            assert not it.store.changed()
            await it.append("tool", 1, b"1")
            assert it.store.changed()
            sql(tmp_path, "UPDATE runs SET version = 2")
            assert it.store.changed()

    run(main())


def test_what_was_awaited_is_on_the_disk(tmp_path: Path) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            it.store.renew_worker(it.fence.holder, 60.0)
            database = it.store._db
            for connection in (database._writing, it.store._renewing):
                assert connection is not None
                assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
                assert connection.execute("PRAGMA synchronous").fetchone() == (2,)

    run(main())


@pytest.mark.parametrize(
    ("blocked", "complaint"),
    [("runs.db.workers", "keeps a lock file"), ("runs.db", "cannot be written")],
)
def test_a_place_that_cannot_be_written_is_told(
    tmp_path: Path, blocked: str, complaint: str
) -> None:
    if blocked == "runs.db":
        (tmp_path / blocked).mkdir()
    else:
        (tmp_path / blocked).touch()

    async def main() -> None:
        async with app_on(tmp_path):
            pass

    with pytest.raises(StorageReadOnly, match=complaint):
        run(main())
    with pytest.raises(StorageReadOnly, match=r"the folder .*nowhere does not exist; create it"):
        run(stored(tmp_path / "nowhere").__aenter__())
