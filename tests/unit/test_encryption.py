from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, ReceiptStore, RunConflict, RunNeedsAttention, RunState
from perdure.encryption import Keyring
from perdure.engine.reencryption import CLASSES, reencrypt
from perdure.errors import KeyUnavailable, RunErased, StorageCorrupt
from tests.encrypting import KEYS, keyring, shows, store_value, stored_value
from tests.harness import Pause, app_on, interrupt, keys, once, run, sql, stored, until
from tests.storages import url_of

TALK = [f"sentence {number} " + "and so on " * 60 for number in range(20)]


def working(folder: Path, encryption: Keyring | None, **options: Any) -> App:
    """Return an App whose run calls two operations and returns what it was given."""
    app = app_on(folder, encryption=encryption, **options)

    @app.run(version=1)
    async def work(context: Context, value: Any) -> Any:
        await context.call(echo, value)
        await context.call(echo, TALK)
        return value

    return app


async def echo(value: Any) -> Any:
    return value


async def whole(app: App, run_id: str) -> tuple[Any, ...]:
    """Return all that can be read of a run."""
    async with app.connect():
        row = await app.find(run_id)
        given = await app.store.read_run_input(run_id)
        operations = await app.store.list_operations(run_id)
        places = [(run_id, each.step_id, each.sequence) for each in operations]
        inputs = [await app.store.read_input(*place) for place in places]
        outputs = [await app.store.read_payload(*place) for place in places]
        receipts = await app.store.list_receipts(ambiguous_only=False, limit=99, run_id=run_id)
        assert [each.input_sha256 for each in operations] == [
            hashlib.sha256(each).digest() for each in inputs
        ]
    return row, given, operations, inputs, outputs, receipts


async def encrypt(app: App) -> dict[str, int]:
    """Encrypt everything anew; return how many rows of each class that took."""
    done = dict.fromkeys(CLASSES, 0)
    async with app.connect():
        async for some in reencrypt(app.store):
            assert some.unreadable == []
            done[some.name] += some.count
        left = await app.store.count_stale()
        await app.store.end_resealing(whole=not any(left.values()), rewrite=False)
    return done


async def opens(folder: Path, encryption: Keyring | None) -> None:
    async with app_on(folder, encryption=encryption).connect():
        pass


@pytest.mark.usefixtures("storage")
def test_a_store_opens_with_the_keys_that_it_was_written_with_and_no_others(tmp_path: Path) -> None:
    async def main() -> None:
        await once(working(tmp_path, keyring("a")), "work", 1)
        await once(working(tmp_path, keyring("b", only=False)), "work", 1)
        with pytest.raises(KeyUnavailable, match=r"encrypted \(with 'a', 'b'\).*--key-file"):
            await opens(tmp_path, None)
        with pytest.raises(KeyUnavailable, match="encrypted with 'a', which the keyring does not"):
            await opens(tmp_path, keyring("b"))
        wrong = Keyring(current="b", keys={**KEYS, "a": bytes(32)})
        with pytest.raises(KeyUnavailable, match="'a' of the keyring is not the one"):
            await opens(tmp_path, wrong)
        receipts = ReceiptStore(url_of(tmp_path))
        with pytest.raises(KeyUnavailable):
            await receipts.list()
        await receipts.close()
        await opens(tmp_path, keyring("a", only=False))

    run(main())


@pytest.mark.usefixtures("storage")
def test_looking_at_a_store_does_not_make_it_an_encrypted_one(tmp_path: Path) -> None:
    async def main() -> None:
        await opens(tmp_path, keyring())
        await once(working(tmp_path, None), "work", 1)
        with pytest.raises(
            StorageCorrupt, match="not encrypted yet: `perdure reencrypt --plaintext`"
        ):
            await opens(tmp_path, keyring())
        await whole(working(tmp_path, keyring(accept_plaintext=True)), "run-1")
        await opens(tmp_path, None)

    run(main())


@pytest.mark.usefixtures("storage")
def test_what_a_run_was_given_is_compared_whatever_key_it_is_sealed_with(tmp_path: Path) -> None:
    async def main() -> None:
        before = working(tmp_path, None)
        await once(before, "work", "MARK")
        for encryption in (keyring(accept_plaintext=True), keyring("b", only=False)):
            await encrypt(working(tmp_path, encryption))
            again = working(tmp_path, encryption)
            assert await once(again, "work", "MARK") == "MARK"
            with pytest.raises(RunConflict, match="another input"):
                await once(again, "work", "other")
        async with again.connect():
            await again.erase("run-1", by="ada", why="request 17")
        last = working(tmp_path, keyring("a", only=False))
        assert (await encrypt(last))["runs"] == 1
        with pytest.raises(RunErased):
            await once(last, "work", "MARK")
        with pytest.raises(RunConflict):
            await once(last, "work", "other")

    run(main())


@pytest.mark.usefixtures("storage")
def test_a_run_that_began_in_plaintext_goes_on_from_what_it_recorded(tmp_path: Path) -> None:
    pause, called = Pause(), list[str]()

    def paused(encryption: Keyring | None) -> App:
        app = app_on(tmp_path, encryption=encryption)

        async def note(what: str) -> str:
            called.append(what)
            return what

        @app.run(version=1)
        async def work(context: Context, value: str) -> list[str]:
            first = await context.call(note, value)
            await pause()
            return [first, await context.call(note, "MARK-second"), *TALK]

        return app

    async def main() -> None:
        await interrupt(paused(None), pause, "work", "MARK-first")
        async with paused(keyring(accept_plaintext=True)) as app:
            assert await app.handle("run-1").result() == ["MARK-first", "MARK-second", *TALK]
        assert called == ["MARK-first", "MARK-second"]
        assert not shows(tmp_path, "MARK-second")
        assert shows(tmp_path, "MARK-first")
        await encrypt(paused(keyring(accept_plaintext=True)))
        assert not shows(tmp_path, "MARK-first")
        assert len(await keys(paused(keyring()))) == 2

    run(main())


@pytest.mark.usefixtures("storage")
def test_a_new_key_takes_over_beside_a_live_worker(tmp_path: Path) -> None:
    def live(current: str) -> App:
        # All of them need both keys for as long as any of them encrypts with the other one.
        return working(tmp_path, keyring(current, only=False), concurrency=4)

    async def keep_busy(app: App, done: asyncio.Event) -> list[str]:
        run_ids: list[str] = []
        while not done.is_set() or len(run_ids) < 8:
            run_ids.append(f"live-{len(run_ids)}")
            handle = await app.start("work", run_ids[-1], run_id=run_ids[-1])
            assert await handle.result() == run_ids[-1]
        return run_ids

    async def main() -> None:
        async with live("a") as old:
            for number in range(40):
                await old.start("work", "MARK", run_id=f"run-{number}")
            for number in range(40):
                await old.handle(f"run-{number}").result()
        done = asyncio.Event()
        async with live("b") as worker:
            busy = asyncio.create_task(keep_busy(worker, done))
            anew = await encrypt(live("b"))
            done.set()
            run_ids = await busy
        assert anew["runs"] == 40
        assert anew["records"] == 80
        assert anew["receipts"] == 80
        # The other key is needed no more.
        alone = working(tmp_path, keyring("b"))
        for run_id in (*run_ids, "run-0", "run-39"):
            await whole(alone, run_id)
        assert sum((await encrypt(alone)).values()) == 0
        assert sql(tmp_path, "SELECT key_id FROM keys") == [("b",)]

    run(main())


@pytest.mark.usefixtures("storage")
def test_encrypting_goes_on_where_it_was_cut_short(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path, keyring("a")) as app:
            for number in range(60):
                await app.start("work", "MARK", run_id=f"run-{number}")
            await until(lambda: app.observer.counts["perdure_run_claimed_total"] == 60)
            for number in range(60):
                await app.handle(f"run-{number}").result()
        before = await whole(working(tmp_path, keyring("a")), "run-7")
        both = working(tmp_path, keyring("b", only=False))
        async with both.connect():
            async for some in reencrypt(both.store):
                if some.name == "records":
                    break
            left = await both.store.count_stale()
        assert (left["runs"], left["records"]) == (0, 70)
        assert await whole(both, "run-7") == before
        with pytest.raises(KeyUnavailable):
            await opens(tmp_path, keyring("b"))
        assert (await encrypt(both))["records"] == 70
        assert await whole(working(tmp_path, keyring("b")), "run-7") == before

    run(main())


@pytest.mark.usefixtures("storage")
def test_what_was_stored_twice_in_the_meantime_is_read_from_both(tmp_path: Path) -> None:
    async def main() -> None:
        before, seen = working(tmp_path, None), list[Any]()
        await once(before, "work", "MARK")
        seen.append(await whole(before, "run-1"))
        both = working(tmp_path, keyring(accept_plaintext=True))
        async with both:
            await (await both.start("work", "MARK", run_id="run-2")).result()
        ((pieces,),) = sql(tmp_path, "SELECT count(*) FROM pieces")
        assert (await encrypt(both))["pieces"] == pieces / 2
        after = working(tmp_path, keyring())
        assert await whole(after, "run-1") == seen[0]
        async with after:
            await (await after.start("work", "MARK", run_id="run-3")).result()
        # What is new shares what is there.
        assert sql(tmp_path, "SELECT count(*) FROM pieces") == [(pieces,)]
        for run_id in ("run-1", "run-2", "run-3"):
            assert (await whole(after, run_id))[3:5] == seen[0][3:5]

    run(main())


@pytest.mark.usefixtures("storage")
def test_what_cannot_be_read_stays_as_it_is_and_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path, keyring("a")) as app:
            for number in range(3):
                await (await app.start("work", 1, run_id=f"run-{number}")).result()
        store_value(tmp_path, "runs", "output", b"damaged", "run_id = 'run-1'")
        both = working(tmp_path, keyring("b", only=False))
        async with both.connect():
            found = [some async for some in reencrypt(both.store)]
            assert found[0].count == 2
            assert "the output of run run-1" in found[0].unreadable[0]
            assert (await both.store.count_stale())["runs"] == 1
            await both.store.end_resealing(whole=False, rewrite=False)
        assert stored_value(tmp_path, "runs", "output", "run_id = 'run-1'") == b"damaged"
        assert sql(tmp_path, "SELECT key_id FROM keys ORDER BY key_id") == [("a",), ("b",)]

    run(main())


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize(
    ("table", "column"), [("runs", "input"), ("records", "payload"), ("records", "input_sha256")]
)
def test_a_run_that_cannot_be_read_waits_for_a_person_and_keeps_nobody_waiting(
    tmp_path: Path, table: str, column: str
) -> None:
    pause = Pause()

    def paused() -> App:
        app = app_on(tmp_path, encryption=keyring())

        @app.run(version=1)
        async def work(context: Context, value: Any) -> Any:
            done = await context.call(echo, value)
            await pause()
            return done

        return app

    async def main() -> None:
        await interrupt(paused(), pause, "work", 17)
        good = stored_value(tmp_path, table, column)
        store_value(tmp_path, table, column, good[:-1] + bytes([good[-1] ^ 1]))
        app = paused()
        async with app:
            other = await app.start("work", 18, run_id="run-2")
            with pytest.raises(RunNeedsAttention, match=r"run-1.* was changed") as caught:
                await app.handle("run-1").result()
            assert caught.value.code == "StorageCorrupt"
            assert await other.result() == 18
            store_value(tmp_path, table, column, good, f"{table[:-1]}_number = 1")
            await app.resume("run-1")
            assert await app.handle("run-1").result() == 17

    run(main())


@pytest.mark.usefixtures("storage")
def test_who_waits_for_a_result_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path, keyring()) as worker:
            await (await worker.start("work", 1, run_id="run-1")).result()
        sql(tmp_path, "UPDATE runs SET state = 'running' WHERE run_id = 'run-1'")
        looking = working(tmp_path, keyring())
        async with looking.connect():
            waiting = asyncio.create_task(looking.handle("run-1").result())
            await until(lambda: bool(looking.engine._ends.awaited))
            store_value(tmp_path, "runs", "output", b"damaged", "run_id = 'run-1'")
            sql(tmp_path, "UPDATE runs SET state = 'completed' WHERE run_id = 'run-1'")
            with pytest.raises(StorageCorrupt, match="the output of run run-1 is not encrypted"):
                await waiting

    run(main())


@pytest.mark.usefixtures("storage")
def test_a_worker_in_plaintext_is_found_out_by_who_encrypts(tmp_path: Path) -> None:
    """One that was started before encryption was turned on goes on writing as it did."""

    async def main() -> None:
        async with stored(tmp_path) as plain:
            encrypting = working(tmp_path, keyring(accept_plaintext=True))
            async with encrypting:
                await (await encrypting.start("work", 1, run_id="run-2")).result()
            await plain.begin("late")
            strict = working(tmp_path, keyring())
            async with strict.connect():
                with pytest.raises(StorageCorrupt, match=r"the .* of run late is not encrypted"):
                    await strict.find("late")
            assert (await encrypt(encrypting))["runs"] == 2
            async with strict.connect():
                assert (await strict.find("late")).state is RunState.RUNNING

    run(main())
