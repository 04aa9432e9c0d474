"""Connections and transactions that are lost, freeze or get in one another's way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import psycopg
import pytest

from perdure.clock import SystemClock
from perdure.effects.receipt import Move, ReceiptState
from perdure.engine.retention import Expiry
from perdure.engine.store import NewRun
from perdure.errors import StorageBusy, UnknownRun
from perdure.observe import Observer
from perdure.ports import no_probe
from perdure.storage.postgres import PostgresStorage
from perdure.storage.postgres.address import Address
from perdure.storage.postgres.database import Transaction
from perdure.storage.postgres.server_clock import ServerClock
from perdure.storage.queries import load_queries
from perdure.storage.receipt_rows import next_attempt
from perdure.testing.manual_clock import ManualClock
from perdure.testing.storage.scene import Process, new_run, settlement
from tests.harness import app_on, run, until
from tests.storages import held, kept_on_server, look, schema_of, url_of


@pytest.fixture
def place(postgres: str, tmp_path: Path) -> Iterator[Path]:
    with kept_on_server(tmp_path, postgres):
        yield tmp_path


class SkewedClock(SystemClock):
    """A system clock that is wrong by some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now(self) -> float:
        return super().now() + self.seconds


@asynccontextmanager
async def process(place: Path, skew: float = 0.0) -> AsyncGenerator[Process]:
    clock = SkewedClock(skew)
    store = PostgresStorage(url_of(place), clock, Observer(), busy_seconds=10, probe=no_probe)
    await store.open()
    try:
        yield Process(store, await store.register_worker("worker", 3600.0))
    finally:
        await store.close()


def lock(transaction: Transaction, run_id: str) -> asyncio.Future[object]:
    return asyncio.ensure_future(transaction.run("lock_run", {"run_id": run_id}))


def database(it: Process) -> object:
    return it.store._db  # type: ignore[attr-defined]


def kill_all(place: Path) -> None:
    """End every connection that perdure has to the database of a test."""
    look(
        place,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure'"
        " AND query LIKE ?",
        f"%{schema_of(place)}%",
    )


def test_dead_connections_of_the_pool_are_noticed_and_replaced(place: Path) -> None:
    async def main() -> None:
        async with process(place) as it:
            for number in range(3):
                await asyncio.gather(*(it.start(f"run-{number}-{n}") for n in range(9)))
                await asyncio.gather(*(it.run(f"run-{number}-{n}") for n in range(9)))
                kill_all(place)
            rows = await asyncio.gather(*(it.run(f"run-2-{n}") for n in range(9)))
            assert {row.holder for row in rows} == {it.holder}
            await asyncio.gather(*(it.start(f"last-{n}") for n in range(9)))

    run(main())


def test_a_process_that_froze_in_a_transaction_holds_nobody_up(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = "SET LOCAL idle_in_transaction_session_timeout = '100ms'"
    monkeypatch.setattr("perdure.storage.postgres.database._IDLE_LIMIT", limit)

    async def main() -> None:
        async with process(place) as frozen, process(place) as other:
            fence = await frozen.start()
            locked, thawed = asyncio.Event(), asyncio.Event()
            told: list[bool] = []

            async def job(transaction: Transaction, again: bool) -> int:
                told.append(again)
                await lock(transaction, "run-1")
                locked.set()
                if not again:
                    await thawed.wait()
                return len(told)

            freezing = asyncio.create_task(database(frozen).transact(job, "freeze"))
            await locked.wait()
            await other.store.request_cancel("run-1")
            await frozen.append(fence, "tool", 1)
            thawed.set()
            assert await freezing == len(told) > 1
            assert (told[0], {*told[1:]}) == (False, {True})  # a slow machine may need a third

    run(main())


def test_a_renewal_that_gets_no_answer_is_given_up(place: Path) -> None:
    async def main() -> None:
        async with process(place) as it:
            with held(place), pytest.raises(StorageBusy):
                await asyncio.to_thread(it.store.renew_worker, it.holder, 0.5)
            await asyncio.to_thread(it.store.renew_worker, it.holder, 60.0)

    run(main())


def test_of_two_that_wait_for_each_other_one_begins_anew(place: Path) -> None:
    async def main() -> None:
        async with process(place) as it:
            for run_id in ("one", "two"):
                await it.start(run_id)
            first = {run_id: asyncio.Event() for run_id in ("one", "two")}
            tries: list[str] = []

            async def cross(mine: str, other: str) -> None:
                async def job(transaction: Transaction, again: bool) -> None:
                    tries.append(mine)
                    await lock(transaction, mine)
                    first[mine].set()
                    await first[other].wait()
                    await lock(transaction, other)

                await database(it).transact(job, "cross")

            await asyncio.gather(cross("one", "two"), cross("two", "one"))
            assert len(tries) == 3

    run(main())


@pytest.mark.parametrize("deletion", ["erase", "collect"])
def test_a_receipt_of_what_is_sent_again_at_that_moment_stays(place: Path, deletion: str) -> None:
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"

    async def main() -> None:
        async with process(place) as it:
            refused = await it.attempted(ReceiptState.FAILED)

            async def delete() -> object:
                if deletion == "erase":
                    return await it.store.erase_receipts(refused.run_id, by="ada", why="asked")
                everything = Expiry(None, time.time() + 60, None, None, None)
                return (await it.store.collect_some(everything))["receipts"]  # type: ignore[attr-defined]

            begin = load_queries("postgres")["begin_attempt"].encode()
            with closing(psycopg.connect(url_of(place).partition("?")[0])) as sender:
                claim = it.effect()
                row = {**it.store._db.rows.claim(claim, 1.0), "token": b""}  # type: ignore[attr-defined]
                seen = {**row, **next_attempt(refused, unknown=False, risk=False)}
                sender.execute(Address(url_of(place)).named(begin.decode()).encode(), seen)
                deleting = asyncio.create_task(delete())
                while look(place, waits) == [(0,)]:
                    await asyncio.sleep(0)
                sender.commit()
            assert await deleting == 0
            kept = await it.store.read_receipt(refused.operation_key)
            assert kept is not None
            assert (kept.state, kept.attempt) == (ReceiptState.IN_FLIGHT, 2)

    run(main())


def test_a_read_that_is_cancelled_is_cancelled_at_any_moment(place: Path) -> None:
    async def main() -> None:
        for _ in range(4):
            async with process(place) as it:
                for turns in range(40):

                    async def read_for_ever(it: Process = it) -> None:
                        while True:
                            await it.store.read_run("run-1")

                    reading = asyncio.create_task(read_for_ever())
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    reading.cancel()
                    await asyncio.wait([reading])
                    assert reading.cancelled()

    run(main())


def test_what_cannot_be_stored_spoils_nothing_that_is_written_with_it(place: Path) -> None:
    async def main() -> None:
        async with process(place) as it:
            functions = ["work", "lone \ud800", "work", "nul \x00", "work"]
            starts = [
                it.store.start_run(NewRun(f"run-{number}", function, 1, b"1", 1.0), None)
                for number, function in enumerate(functions)
            ]
            done = await asyncio.gather(*starts, return_exceptions=True)
            failed = [number for number, end in enumerate(done) if isinstance(end, Exception)]
            assert failed == [1, 3]
            assert len(await it.claim()) == 3
            await it.start("after")

    run(main())


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize("run_id", ["a\x00b", "\ud800", "", "a b"])
def test_a_text_that_can_be_no_id_names_no_run(tmp_path: Path, run_id: str) -> None:
    async def main() -> None:
        app = app_on(tmp_path)
        async with app.connect():
            for look_for in (app.find, app.cancel, app.resume, app.handle(run_id).result):
                with pytest.raises(UnknownRun, match="there is no run"):
                    await (look_for() if look_for.__name__ == "result" else look_for(run_id))
            with pytest.raises(UnknownRun):
                await app.erase(run_id, by="ada", why="so")

    run(main())


def test_workers_whose_clocks_differ_agree_on_the_time(place: Path) -> None:
    """T34 on a server: five minutes forth and back."""

    async def main() -> None:
        async with process(place, 300.0) as ahead, process(place, -300.0) as behind:
            # As exactly as the server answers fast.
            assert abs(ahead.store.clock.now() - behind.store.clock.now()) < 60.0
            receipt = await ahead.attempted()
            doubt = settlement(receipt, Move.DOUBT, stopped=True)
            receipt, _ = await behind.store.settle_effect(doubt)
            assert receipt.settled_at is not None
            assert abs(receipt.settled_at - receipt.claimed_at) < 60.0
            assert (await ahead.store.claim_lookup(receipt, ahead.owner, 200.0))[1]
            assert not (await behind.store.claim_lookup(receipt, behind.owner, 200.0))[1]
            assert await behind.store.sweep(behind.holder) == 0
            await ahead.store.start_run(new_run("run-2"), None)
            assert await behind.claim() == ["run-2"]

    run(main())


def test_the_time_of_the_server_goes_on_whatever_becomes_of_this_hosts() -> None:
    manual = ManualClock(now=500.0)
    clock = ServerClock(manual)
    assert clock.now() == 500.0
    clock.hear(1000.0)
    manual.advance(5.0)
    assert clock.now() == 1005.0
    manual.jump(300.0)
    assert clock.now() == 1005.0
    clock.hear(1005.04)  # a reply took its time
    assert clock.now() == 1005.0
    clock.hear(1006.0)
    assert clock.now() == 1006.0
    assert clock.monotonic() == 5.0


def test_hints_reach_others_and_are_tested_now_and_then(place: Path) -> None:
    async def main() -> None:
        async with process(place) as one, process(place) as other:
            hints = other.store.hints  # type: ignore[attr-defined]
            await until(lambda: hints.works)
            await until(lambda: not other.store.changed())
            await one.store.start_run(new_run("run-1"), None)
            await until(hints.changed)

    run(main())
