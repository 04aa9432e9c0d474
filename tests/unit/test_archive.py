"""A run that is exported from one store and goes on, or stays as it ended, in another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import Context, OperationIdentity, ReceiptStore, current, effect
from perdure.effects.answer import NeverWill, SendAgain
from perdure.effects.receipt import ReceiptState
from perdure.encryption import Keyring
from perdure.engine.archive import RunArchive, decode_archive, encode_archive
from perdure.engine.retention import Retention
from perdure.engine.store import RunState
from perdure.errors import (
    InvalidRecord,
    KeyUnavailable,
    RunCancelled,
    RunConflict,
    RunErased,
    RunFailed,
    RunNeedsAttention,
    UnknownRun,
    UnsupportedRecordVersion,
)
from perdure.receipts import guard
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, app_on, in_time, run, until
from tests.storages import kept_on_server, look, url_of

TEXT = "a long answer, of which nothing is to be lost \x00 \U0001f980 " * 20


@pytest.fixture(params=["sqlite", "postgres"])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Name a folder with a store of its own, of each kind."""
    folder = tmp_path / "there"
    folder.mkdir()
    if request.param == "sqlite":
        yield folder
        return
    with kept_on_server(folder, request.getfixturevalue("postgres")):
        yield folder


class Shop:
    """A program whose runs do all that leaves something in a store."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.clock = ManualClock()
        self.app = app_on(folder, clock=self.clock, **options)
        self.sent: list[int] = []

        @effect(target="bank")
        async def pay(operation: OperationIdentity, cents: int) -> dict[str, int]:
            self.sent.append(cents)
            if cents == 0:
                raise ConnectionResetError("no reply")
            return {"paid": cents}

        async def grow(history: list[str]) -> str:
            return f"{len(history)} {TEXT}"

        @self.app.run(version=1)
        async def talk(context: Context, history: list[str]) -> list[str]:
            async def outer() -> str:
                return await current().call(grow, ["below another one"])

            for _ in range(4):
                history = [*history, await context.call(grow, history)]
            await context.call(pay, 5)
            await context.branch("aside").call(outer)
            return history

        @self.app.run(version=3)
        async def fail(context: Context, history: list[str]) -> None:
            await context.call(pay, 5)
            raise ValueError(TEXT)

        @self.app.run(version=1)
        async def doubt(context: Context, history: list[str]) -> Any:
            return await context.call(pay, 0)

        @self.app.run(version=1)
        async def wait(context: Context, history: list[str]) -> list[int]:
            await context.call(pay, 7)
            await context.sleep(60)
            await context.call(pay, 8)
            return [7, 8]

    async def play(self, function: str, run_id: str = RUN) -> None:
        """Run a function to whatever comes of it; `wait` until it sleeps."""
        async with self.app as app:
            handle = await app.start(function, [TEXT] * 12, run_id=run_id)
            if function == "wait":
                await until(lambda: bool(self.clock.sleeping))
                return
            with suppress(RunFailed, RunNeedsAttention):
                await handle.result()


async def exported(folder: Path, run_id: str = RUN, **options: Any) -> bytes:
    async with app_on(folder, **options).connect() as app:
        return await app.export(run_id)


async def imported(folder: Path, data: bytes, **options: Any) -> Any:
    async with app_on(folder, **options).connect() as app:
        return await app.import_run(data)


def counts(folder: Path) -> list[int]:
    names = ("runs", "attempts", "records", "timers", "receipts", "decisions", "pieces", "workers")
    return [look(folder, f"SELECT count(*) FROM {name}")[0][0] for name in names]


@pytest.mark.parametrize("function", ["talk", "fail", "doubt"])
def test_what_is_imported_and_exported_again_is_the_same_to_the_byte(
    tmp_path: Path, there: Path, function: str
) -> None:
    back = tmp_path / "back"
    back.mkdir()

    async def main() -> None:
        await Shop(tmp_path).play(function)
        if function == "doubt":
            # Another attempt after a decision, so that there is one, and doubt again.
            async with ReceiptStore(url_of(tmp_path)) as store:
                (receipt,) = await store.list()
                key, version = receipt.operation_key, receipt.version
                await store.settle(key, SendAgain(), by="ada", why="so", expect_version=version)
            async with Shop(tmp_path).app as app:
                with pytest.raises(RunNeedsAttention):
                    await app.handle(RUN).result()
        data = await exported(tmp_path)
        await imported(there, data)
        assert await exported(there) == data
        async with app_on(there).connect() as app:
            archive = decode_archive(data)
            assert [r.nested for r in archive.records].count(True) == (function == "talk")
            assert await app.store.read_run_input(RUN) == archive.input
            for record in archive.records:
                key = (record.operation.step_id, record.operation.sequence)
                assert await app.store.read_input(RUN, *key) == record.input
                assert await app.store.read_payload(RUN, *key) == record.payload
        await imported(back, await exported(there))
        assert await exported(back) == data

    run(main())
    # The workers of both executions are known by name, and nothing is in it twice.
    assert counts(back) == counts(tmp_path) == counts(there)


def test_a_conversation_stands_in_a_file_once(tmp_path: Path) -> None:
    async def main() -> None:
        await Shop(tmp_path).play("talk")
        data = await exported(tmp_path)
        archive = decode_archive(data)
        whole = len(archive.run.output_json or b"")
        assert sum(len(record.input) for record in archive.records) > 3 * whole
        # What the run was given, what its first request was, what it came to, and a little more.
        assert len(data) < 3 * whole * 4 / 3 + 12_000

    run(main())


def test_a_run_that_waited_goes_on_where_a_person_lets_it_and_repeats_nothing(
    tmp_path: Path, there: Path
) -> None:
    async def main() -> None:
        source = Shop(tmp_path)
        await source.play("wait")
        data = await exported(tmp_path)
        target = Shop(there)
        async with target.app as app:
            row = await app.import_run(data)
            assert row.state is RunState.NEEDS_ATTENTION
            with pytest.raises(RunNeedsAttention, match="cancel it there first") as parked:
                await app.handle(RUN).result()
            assert parked.value.code == "Imported"
            # The same file again, and what it was made of in its own store, change nothing.
            assert await app.import_run(data) == row
            await app.resume(RUN)
            assert await in_time(target.clock, app.handle(RUN).result()) == [7, 8]
            assert (source.sent, target.sent) == ([7], [8])
            assert [a.replayed for a in await app.store.list_attempts(RUN)][-1] == 1
            with pytest.raises(RunConflict, match="holds something else"):
                await app.import_run(data)
        async with source.app.connect() as app:
            assert (await app.import_run(data)).state is RunState.PENDING

    run(main())


def test_a_run_is_moved_by_cancelling_it_first(tmp_path: Path, there: Path) -> None:
    async def main() -> None:
        source = Shop(tmp_path)
        await source.play("wait")
        async with source.app.connect() as app:
            assert (await app.cancel(RUN)).state is RunState.CANCELLED
        data = await exported(tmp_path)
        target = Shop(there)
        async with target.app as app:
            row = await app.import_run(data, go_on=True)
            assert (row.state, row.problem and row.problem.code) == ("needs_attention", "Imported")
            assert (await app.resume(RUN)).problem is None
            assert await in_time(target.clock, app.handle(RUN).result()) == [7, 8]
        assert (source.sent, target.sent) == ([7], [8])

    run(main())


def test_a_run_that_goes_while_it_is_exported_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        shop = Shop(tmp_path)
        await shop.play("talk")
        later = Shop(tmp_path)
        later.clock.advance(60)
        async with shop.app.connect() as app, later.app.connect() as other:
            listing = app.store.list_attempts

            async def forgotten_meanwhile(run_id: str) -> Any:
                await other.collect(Retention(runs_days=0))
                return await listing(run_id)

            app.store.list_attempts = forgotten_meanwhile
            with pytest.raises(RunConflict, match="changed while it was read"):
                await app.export(RUN)

    run(main())


def test_the_rest_of_a_delay_is_waited_for_after_an_import(tmp_path: Path, there: Path) -> None:
    async def main() -> None:
        await Shop(tmp_path).play("wait")
        await imported(there, await exported(tmp_path))
        assert counts(there)[3] == 1
        (before,) = (await opened(tmp_path)).timers
        (after,) = (await opened(there)).timers
        assert after == before

    run(main())


async def opened(folder: Path) -> RunArchive:
    return decode_archive(await exported(folder))


def test_what_is_in_flight_is_ambiguous_after_an_import(tmp_path: Path, there: Path) -> None:
    async def main() -> None:
        await Shop(tmp_path).play("wait")
        look(tmp_path, "UPDATE receipts SET state = 'in_flight', payload = NULL")
        data = await exported(tmp_path)
        assert decode_archive(data).receipts[0].state is ReceiptState.IN_FLIGHT
        await imported(there, data)
        (receipt,) = (await opened(there)).receipts
        assert (receipt.state, receipt.version) == (ReceiptState.AMBIGUOUS, 3)
        assert receipt.problem == "it was in flight when its run was exported"
        async with ReceiptStore(url_of(there)) as store:
            settled = await store.settle(
                receipt.operation_key, NeverWill(), by="ada", why="asked", expect_version=3
            )
        assert settled.state is ReceiptState.FAILED

    run(main())


def test_a_receipt_that_is_there_as_another_one_lets_nothing_in(
    tmp_path: Path, there: Path
) -> None:
    async def main() -> None:
        await Shop(tmp_path).play("talk")
        data = await exported(tmp_path)
        receipt = decode_archive(data).receipts[-2]
        identity = OperationIdentity(RUN, receipt.idempotency_key, receipt.target, receipt.ordinal)

        async def send(_: OperationIdentity) -> str:
            return "sent by somebody else"

        async with ReceiptStore(url_of(there)) as store:
            await guard(store, identity, send)
        before = counts(there)
        with pytest.raises(RunConflict, match=receipt.operation_key):
            await imported(there, data)
        async with ReceiptStore(url_of(there)) as store:
            await store.erase(RUN, by="ada", why="asked")
        with pytest.raises(RunConflict, match="was erased here"):
            await imported(there, data)
        assert counts(there)[:4] == before[:4] == [0, 0, 0, 0]
        assert counts(there)[4:] == [0, 0, 0, 1]

    run(main())


def test_receipts_that_outlived_their_run_are_taken_for_what_they_are(
    tmp_path: Path, there: Path
) -> None:
    async def main() -> None:
        await Shop(tmp_path).play("talk")
        data = await exported(tmp_path)
        await imported(there, data)
        async with app_on(there).connect() as app:
            gone = await app.collect(Retention(runs_days=0, receipts_days=None))
            assert gone["runs"] == 1
            await app.import_run(data)
            assert await app.export(RUN) == data
            # Who claimed it once is forgotten at some time, and it is the same run all the same.
            assert (
                await app.collect(Retention(runs_days=None, receipts_days=None, workers_days=0))
            )["workers"] == 1
            await app.import_run(data)

    run(main())


def test_what_cannot_be_exported_or_imported_says_so(tmp_path: Path, there: Path) -> None:
    async def main() -> None:
        shop = Shop(tmp_path)
        async with shop.app as app:
            await app.start("wait", [TEXT], run_id=RUN)
            await until(lambda: bool(shop.clock.sleeping))
            with pytest.raises(RunConflict, match="being executed"):
                await app.export(RUN)
            with pytest.raises(UnknownRun):
                await app.export("another")
        data = await exported(tmp_path)
        async with shop.app as app:
            await until(lambda: bool(shop.clock.sleeping))
            with pytest.raises(RunConflict, match="holds something else"):
                await app.import_run(data)
            await app.cancel(RUN)
            with suppress(RunCancelled):
                await app.handle(RUN).result()
            await app.erase(RUN, by="ada", why="asked")
            with pytest.raises(RunErased):
                await app.export(RUN)
            with pytest.raises(RunErased):
                await app.import_run(data)

    run(main())


def test_what_is_no_exported_run_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        await Shop(tmp_path).play("talk")
        data = await exported(tmp_path)
        there = tmp_path / "there"
        there.mkdir()
        for broken in (b"", b"{", b"[1]", b'{"a": 1}', b'"\xff"', b"[" * 9999, data[:-9]):
            with pytest.raises(InvalidRecord, match="no exported run"):
                await imported(there, broken)
        newer = data.replace(b'"perdure_run":3', b'"perdure_run":4')
        with pytest.raises(UnsupportedRecordVersion, match="upgrade perdure"):
            await imported(there, newer)
        with pytest.raises(InvalidRecord, match="does not have the digest"):
            await imported(there, data.replace(b'"generation":1', b'"generation":2'))
        # Whole in its digest, and yet nothing that a store would have written.
        archive = decode_archive(data)
        for changes in (
            {"input": b"[]"},
            {"records": [*archive.records, archive.records[0]]},
            {"records": [msgspec.structs.replace(archive.records[0], input=b"[1]")]},
            {"records": [msgspec.structs.replace(archive.records[0], payload=b"")]},
            {"records": [msgspec.structs.replace(archive.records[0], beginning=(0, 9))]},
            {"receipts": [*archive.receipts] * 2},
            {"receipts": [msgspec.structs.replace(archive.receipts[0], ordinal=99)]},
            {"run": msgspec.structs.replace(archive.run, run_id="an other")},
            {"run": msgspec.structs.replace(archive.run, state=RunState.RUNNING)},
        ):
            with pytest.raises(InvalidRecord, match="damaged"):
                await imported(there, encode_archive(msgspec.structs.replace(archive, **changes)))
        assert counts(there)[:1] == [0]

    run(main())


def test_an_encrypted_store_exports_plaintext_and_imports_under_its_own_key(
    tmp_path: Path, there: Path
) -> None:
    def ring(key_id: str) -> Keyring:
        return Keyring(current=key_id, keys={key_id: Keyring.generate_key()})

    async def main() -> None:
        mine, theirs = ring("mine"), ring("theirs")
        await Shop(tmp_path, encryption=mine).play("talk")
        data = await exported(tmp_path, encryption=mine)
        assert decode_archive(data).input == msgspec.json.encode([TEXT] * 12)
        await imported(there, data, encryption=theirs)
        assert await exported(there, encryption=theirs) == data
        with pytest.raises(KeyUnavailable):
            await exported(there, encryption=mine)
        for table, column in (("runs", "input"), ("records", "payload"), ("pieces", "data")):
            for (stored,) in look(there, f"SELECT {column} FROM {table}"):
                assert bytes(stored).startswith(b"\x00sealed\x00atheirs:")

    run(main())
