from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import RunState
from perdure.engine.store import NewRun, RunEnd, RunProblem
from perdure.errors import LeaseLost, StorageReadOnly
from perdure.fence import Fence
from perdure.journal import Failure, Invocation, OperationKind
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, Stored, app_on, run, sql, stored

PROBLEM = RunProblem("Code", "Type", "message")


def snapshot(folder: Path) -> list[list[Any]]:
    return [sql(folder, f"SELECT * FROM {table}") for table in ("runs", "records", "timers")]


def delay(fence: Fence, sequence: int = 1) -> tuple[Invocation, bytes]:
    kind = OperationKind.RETRY_DELAY
    invocation = Invocation(fence.run_id, "sleep", sequence, kind, "perdure.sleep", b"{}")
    return invocation, hashlib.sha256(b"{}").digest()


@pytest.mark.parametrize("stale", [{"holder": "w.1.dead"}, {"generation": 2}, {"run_id": "no"}])
def test_what_stands_under_another_fence_is_not_written(
    tmp_path: Path, stale: dict[str, Any]
) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            fence = msgspec.structs.replace(it.fence, **stale)
            before = snapshot(tmp_path)
            writes = [
                it.append("tool", 1, b"1", fence=fence),
                it.append("tool", 1, b"123456", (3,), fence=fence),
                it.store.begin_timer(fence, *delay(fence), 5.0),
                it.store.end_run(fence, RunEnd(RunState.FAILED, problem=PROBLEM)),
            ]
            for write in writes:
                with pytest.raises(LeaseLost):
                    await write
            await it.store.release_run(fence)
            assert it.observer.counts["perdure_lease_fencing_rejected_total"] == len(writes)
            assert snapshot(tmp_path) == before
            assert sql(tmp_path, "SELECT * FROM pieces") == []

    run(main())


@pytest.mark.parametrize("sequence", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_every_sequence_of_64_bits_is_kept(tmp_path: Path, sequence: int) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            await it.append("tool", sequence, b"1", outcome=Failure("Code"))
            await it.store.begin_timer(it.fence, *delay(it.fence, sequence), 5.0)
            journal = await it.store.read_journal(RUN)
            assert [row.sequence for row in journal.rows] == [sequence]
            assert [timer.sequence for timer in journal.timers] == [sequence]
            assert [row.sequence for row in await it.store.list_operations(RUN)] == [sequence]
            assert await it.store.read_input(RUN, "tool", sequence) == b"1"
            assert b"Code" in await it.store.read_payload(RUN, "tool", sequence)

    run(main())


def test_the_record_of_a_delay_ends_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            for sequence in (1, 2):
                await it.store.begin_timer(it.fence, *delay(it.fence, sequence), 5.0)
            (timer, _) = sorted((await it.store.read_journal(RUN)).timers, key=lambda t: t.sequence)
            assert (timer.wake_at, timer.input_json, timer.kind) == (5.0, b"{}", "retry_delay")
            sql(tmp_path, "UPDATE timers SET step_id = 'x' WHERE sequence = 2")
            await it.append("sleep", 1, b"{}")
            assert len((await it.store.read_journal(RUN)).timers) == 2, "not a delay's record"

    run(main())


async def claimed(it: Stored, limit: int, *served: tuple[str, int]) -> list[str]:
    claims = await it.store.claim_runs(it.fence.holder, served, limit)
    return [claim.fence.run_id for claim in claims]


def test_waiting_runs_are_claimed_oldest_first_and_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            for number, version in enumerate([1, 1, 2, 1]):
                new = NewRun(f"wait-{number}", "work", version, b"1", 0.0)
                started = await it.store.start_run(new, None)
                assert (started.created, started.claimed) == (True, None)
            assert await claimed(it, 9, ("work", 3), ("wor", 11)) == []
            assert await claimed(it, 2, ("work", 1)) == ["wait-0", "wait-1"]
            served = [("work", 1), ("work", 2)]
            both = await asyncio.gather(claimed(it, 9, *served), claimed(it, 9, *served))
            assert sorted(both) == [[], ["wait-2", "wait-3"]]
            counts = await it.store.count_runs()
            assert (counts[RunState.RUNNING], counts[RunState.PENDING]) == (5, 0)

    run(main())


def test_a_worker_that_was_found_gone_claims_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            sql(tmp_path, "UPDATE workers SET gone = 1")
            started = await it.store.start_run(NewRun("new", "work", 1, b"1", 0.0), it.fence.holder)
            assert (started.row.state, started.claimed) == (RunState.PENDING, None)
            assert await claimed(it, 9, ("work", 1)) == []
            with pytest.raises(LeaseLost):
                it.store.renew_worker(it.fence.holder, 60)

    run(main())


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


def test_a_renewal_extends_the_lease_and_tells_what_is_owned(tmp_path: Path) -> None:
    clock = ManualClock()

    async def main() -> None:
        async with stored(tmp_path, clock) as it:
            sweeper = await it.store.register_worker("sweeper", 3600.0)
            await it.begin("run-2")
            await it.store.request_cancel(RUN)
            clock.advance(59)
            news = it.store.renew_worker(it.fence.holder, 60.0)
            assert news.owned == {(RUN, 1), ("run-2", 1)}
            assert news.cancelled == {RUN}
            assert list(await it.store.read_cancels(it.fence.holder)) == [RUN]
            clock.advance(59)
            assert await it.store.sweep(sweeper) == 0

    run(main())


def test_a_run_whose_end_was_asked_for_is_cancelled_when_it_is_given_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            other = await it.begin("run-2")
            for run_id in (RUN, "run-2"):
                row = await it.store.request_cancel(run_id)
                assert row is not None
                assert (row.state, row.cancel_requested) == (RunState.RUNNING, True)
            await it.store.release_run(other)
            await it.store.retire_worker(it.fence.holder)
            settled = await it.store.read_settled([RUN, "run-2", "unknown"])
            assert [row.state for row in settled] == [RunState.CANCELLED] * 2
            assert all(row.finished_at for row in settled)

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
