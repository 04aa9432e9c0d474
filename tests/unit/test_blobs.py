"""Large values in a blob store: where they go, how they are found again, when they are gone."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore, MemoryStore

from perdure import App, Context, OperationIdentity, ReceiptStore, guard, operation
from perdure.blobs import BlobStore, FileBlobs, ObjectBlobs
from perdure.encryption import Keyring
from perdure.engine.reencryption import reencrypt
from perdure.engine.retention import Retention
from perdure.errors import (
    BlobsUnavailable,
    InputDigestMismatch,
    InvalidOptions,
    RunConflict,
    RunFailed,
    RunNeedsAttention,
    StorageBusy,
    StorageCorrupt,
    StorageError,
    StorageMissing,
    StorageReadOnly,
)
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, app_on, run, until
from tests.storages import look, url_of

pytestmark = pytest.mark.usefixtures("storage")

OVER = 4096
HOUR = 3600.0


def noise(seed: int, length: int = 20_000) -> str:
    """Return a text that packing does not make much shorter."""
    return random.Random(seed).randbytes(length // 2).hex()


class Watched:
    """A blob store that counts, and fails when it is told to."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self.over_bytes = store.over_bytes
        self.put_names: list[str] = []
        self.failing: type[Exception] | None = None
        self.before_put: Callable[[], None] = lambda: None

    async def put(self, name: str, data: bytes) -> None:
        self.before_put()
        await self.store.put(name, data)
        self.put_names.append(name)

    async def get(self, name: str) -> bytes | None:
        return await self.store.get(name)

    async def delete(self, name: str) -> None:
        if self.failing is not None:
            raise self.failing("the store is away")
        await self.store.delete(name)

    def place(self, name: str) -> str:
        return self.store.place(name)

    async def there(self) -> list[str]:
        return [name for name in self.put_names if await self.get(name) is not None]


@pytest.fixture(params=["files", "memory", "local"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Watched:
    folder = tmp_path / "blobs"
    if request.param == "files":
        return Watched(FileBlobs(folder, over_bytes=OVER))
    if request.param == "memory":
        return Watched(ObjectBlobs(MemoryStore(), over_bytes=OVER))
    return Watched(ObjectBlobs(LocalStore(str(folder), mkdir=True), over_bytes=OVER))


@pytest.fixture
def files(tmp_path: Path) -> Watched:
    return Watched(FileBlobs(tmp_path / "blobs", over_bytes=OVER))


def talking(folder: Path, blobs: Any, **options: Any) -> App:
    """Return an App whose run gets, records and returns large values."""
    app = app_on(folder, blobs=blobs, **options)

    @operation(read_only=True)
    async def answer(history: list[str]) -> str:
        return noise(len(history))

    @app.run(version=1)
    async def talk(context: Context, history: list[str]) -> list[str]:
        for _ in range(3):
            history = [*history, await context.call(answer, history)]
        if len(history) > 9:
            raise ValueError("too long")
        return history

    return app


async def talked(folder: Path, blobs: Any, run_id: str = RUN, **options: Any) -> list[str]:
    async with talking(folder, blobs, **options) as app:
        return await (await app.start("talk", [noise(100)] * 2, run_id=run_id)).result()


def noted(folder: Path) -> list[float]:
    return [since for (since,) in look(folder, "SELECT since FROM blobs")]


def stored_bytes(folder: Path) -> int:
    columns = {
        "records": ("input_tail", "payload"),
        "runs": ("input", "output"),
        "pieces": ("data",),
    }
    return sum(
        look(folder, f"SELECT COALESCE(sum(length({column})), 0) FROM {table}")[0][0]
        for table, names in columns.items()
        for column in names
    )


@pytest.mark.parametrize("encrypted", [False, True])
def test_large_values_are_found_again_outside_of_the_database(
    tmp_path: Path, blobs: Watched, encrypted: bool
) -> None:
    ring = Keyring(current="k", keys={"k": Keyring.generate_key()}) if encrypted else None

    async def main() -> None:
        expected = [noise(100), noise(100), noise(2), noise(3), noise(4)]
        assert await talked(tmp_path, blobs, encryption=ring) == expected
        # One for each element of the conversation, and the three answers.
        assert len(blobs.put_names) == len(set(blobs.put_names)) == 8
        assert len(await blobs.there()) == 8
        assert noted(tmp_path) == []
        assert stored_bytes(tmp_path) < OVER
        for name in blobs.put_names:
            kept = await blobs.get(name)
            assert kept is not None
            assert len(kept) > OVER
            assert encrypted or kept.find(b"x\x01") == 16  # packed, behind what tells it apart
        async with talking(tmp_path, blobs, encryption=ring).connect() as app:
            assert await app.handle(RUN).result() == expected
            assert json.loads(await app.store.read_run_input(RUN)) == expected[:2]
            rows = await app.store.list_operations(RUN)
            for number, row in enumerate(rows, 2):
                key = (RUN, row.step_id, row.sequence)
                assert json.loads(await app.store.read_input(*key))["args"] == [expected[:number]]
                assert json.loads(await app.store.read_payload(*key)) == expected[number]
            assert (await app.rehearse(RUN)).verdict.value == "matches"
        # Another run gets the same, and only what is its own is put again.
        await talked(tmp_path, blobs, "run-2", encryption=ring)
        assert len(blobs.put_names) == 11

    run(main())


def test_what_packs_well_stays_in_the_database(tmp_path: Path, files: Watched) -> None:
    async def main() -> None:
        app = app_on(tmp_path, blobs=files)

        @app.run(version=1)
        async def echo(context: Context, text: str) -> str:
            return text

        async with app:
            assert await (await app.start(echo, "x" * 100_000)).result() == "x" * 100_000
        assert files.put_names == []

    run(main())


def test_what_is_no_record_stays_in_the_database_whatever_its_size(
    tmp_path: Path, files: Watched
) -> None:
    """What a message said is in a blob, too, once a run has taken it, and its record with it."""
    app = app_on(tmp_path, blobs=files)

    @app.run(version=1)
    async def listen(context: Context) -> int:
        return len(await context.wait_for("word"))

    async def main() -> None:
        charged = OperationIdentity("invoice", "charge", "payments")
        async with app.connect(), ReceiptStore(url_of(tmp_path)) as receipts:
            assert await guard(receipts, charged, lambda _: answered()) == noise(1)
            assert await guard(receipts, charged, lambda _: answered()) == noise(1)
            await app.start("listen", run_id=RUN)
            await app.send(RUN, "word", noise(2))
        assert files.put_names == []
        async with app:
            assert await app.handle(RUN).result() == len(noise(2))
        assert len(files.put_names) == 1

    async def answered() -> str:
        return noise(1)

    run(main())


def test_an_erasure_deletes_the_blobs_that_nobody_else_needs(
    tmp_path: Path, blobs: Watched
) -> None:
    async def main() -> None:
        await talked(tmp_path, blobs)
        await talked(tmp_path, blobs, "run-2")
        async with talking(tmp_path, blobs).connect() as app:
            row = await app.erase(RUN, by="ada", why="asked")
            assert row.tombstone is not None
            assert row.tombstone.whole
            assert len(await blobs.there()) == 8
            assert (await app.handle("run-2").result())[-1] == noise(4)
            await app.erase("run-2", by="ada", why="asked")
            assert await blobs.there() == []
        assert noted(tmp_path) == []

    run(main())
    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []


def test_a_collection_deletes_blobs(tmp_path: Path, files: Watched) -> None:
    async def main() -> None:
        clock = ManualClock()
        await talked(tmp_path, files, clock=clock)
        # Long ago, by the clock of this one.
        async with talking(tmp_path, files).connect() as app:
            assert (await app.collect(Retention()))["runs"] == 1
        assert await files.there() == []
        assert noted(tmp_path) == []

    run(main())


def test_a_collection_deletes_nothing_where_the_blobs_stand_elsewhere(
    tmp_path: Path, files: Watched
) -> None:
    async def main() -> None:
        await talked(tmp_path, files, clock=ManualClock())
        async with talking(tmp_path, FileBlobs(tmp_path / "other")).connect() as app:
            with pytest.raises(BlobsUnavailable, match=r"none of the large values .*/other/"):
                await app.collect(Retention())
        async with talking(tmp_path, files).connect() as app:
            assert (await app.collect(Retention()))["runs"] == 1
        assert await files.there() == []

    run(main())


def test_of_many_blobs_a_few_are_looked_for(tmp_path: Path, files: Watched) -> None:
    async def main() -> None:
        for number in range(3):
            await talked(tmp_path, files, run_id=f"run-{number}")
        assert len(files.put_names) > 8
        async with talking(tmp_path, files).connect() as app:
            found = await app.store.look_for_blobs()
            assert (found.looked_for, found.missing) == (8, [])
            # One that is lost keeps nobody from collecting.
            await files.delete(files.put_names[-1])
            assert len((await app.store.look_for_blobs()).missing) == 1
            await app.collect(Retention())

    run(main())


def test_an_erasure_that_cannot_delete_a_blob_is_not_whole_until_it_can(
    tmp_path: Path, files: Watched
) -> None:
    async def main() -> None:
        await talked(tmp_path, files)
        for store, error in ((files, StorageBusy), (None, StorageMissing)):
            files.failing = StorageBusy
            async with talking(tmp_path, store).connect() as app:
                with pytest.raises(error):
                    await app.erase(RUN, by="ada", why="asked")
                gone = (await app.find(RUN)).tombstone
                assert gone is not None
                assert not gone.whole
                with pytest.raises(error):
                    await app.collect(Retention())
        assert len(await files.there()) == 8
        assert noted(tmp_path) == [0.0] * 8
        files.failing = None
        async with talking(tmp_path, files).connect() as app:
            gone = (await app.erase(RUN, by="ada", why="asked")).tombstone
            assert gone is not None
            assert gone.whole
        assert await files.there() == []

    run(main())


def test_blobs_of_what_was_never_written_are_collected_after_an_hour(
    tmp_path: Path, files: Watched
) -> None:
    async def main() -> None:
        await talked(tmp_path, files)
        # The same run under the same id: what it was given is put, and then it is there already.
        await talked(tmp_path, files)
        assert len(files.put_names) == 8
        text = noise(7)
        app = talking(tmp_path, files)

        @app.run(version=1)
        async def note(context: Context, text: str) -> str:
            return "noted"

        async with app:
            for _ in range(2):
                await (await app.start(note, text, run_id="note")).result()
            assert len(files.put_names) == 10
            before = look(tmp_path, "SELECT count(*) FROM pieces")
            with pytest.raises(RunConflict):
                await app.start("talk", [noise(8), noise(9)], run_id=RUN)
            assert len(files.put_names) == 12
            keeping = Retention(runs_days=None, receipts_days=None)
            await app.collect(keeping)
            assert look(tmp_path, "SELECT count(*) FROM pieces") == before
            assert 0 < len(noted(tmp_path)) <= 3
            look(tmp_path, "UPDATE blobs SET since = since - ?", HOUR + 1)
            # One of them may still come to be needed.
            now = time.time()
            look(tmp_path, "INSERT INTO blobs (name, since) VALUES (?, ?)", b"f" * 32, now)
            await app.collect(keeping)
            assert noted(tmp_path) == [now]
            assert len(await files.there()) == 9
            assert json.loads(await app.store.read_run_input("note")) == text

    run(main())


def test_a_row_that_comes_more_than_an_hour_after_its_blob_is_refused(
    tmp_path: Path, files: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    early = [0, 5]

    def condemn() -> None:
        if len(files.put_names) in early:
            early.remove(len(files.put_names))
            look(tmp_path, "UPDATE blobs SET since = 0")

    async def main() -> None:
        files.before_put = condemn
        expected = [noise(100), noise(100), noise(2), noise(3), noise(4)]
        with pytest.raises(StorageError, match="more than an hour went by"):
            await talked(tmp_path, files)
        assert await talked(tmp_path, files) == expected
        assert "to go on later: more than an hour" in caplog.text
        assert 0.0 in noted(tmp_path)
        async with talking(tmp_path, files).connect() as app:
            await app.collect(Retention())
            assert await app.handle(RUN).result() == expected
        assert len(await files.there()) < len(files.put_names)

    run(main())


@pytest.mark.parametrize("harm", ["missing", "damaged", "no store"])
def test_a_blob_that_is_not_there_is_named_and_parks_the_run(
    tmp_path: Path, files: Watched, harm: str
) -> None:
    async def main() -> None:
        app = talking(tmp_path, files)
        async with app:
            with pytest.raises(RunFailed):
                await (await app.start("talk", [noise(1)] * 9, run_id=RUN)).result()
        paths = [Path(files.place(name)) for name in files.put_names]
        for path in paths:
            if harm == "missing":
                path.unlink()
            elif harm == "damaged":
                path.write_bytes(path.read_bytes()[:-1] + b"!")
        store = None if harm == "no store" else files
        error, said = {
            "missing": (StorageCorrupt, "is not there: restore it from a backup"),
            "damaged": (StorageCorrupt, "was changed: restore it from a backup"),
            "no store": (StorageMissing, "open the store with blobs="),
        }[harm]
        async with talking(tmp_path, store).connect() as app:
            with pytest.raises(error, match=said) as caught:
                await app.store.read_run_input(RUN)
            assert harm == "no store" or any(str(path) in str(caught.value) for path in paths)
            row, *_ = await app.store.list_operations(RUN)
            with pytest.raises((InputDigestMismatch, StorageMissing), match=said):
                await app.store.read_input(RUN, row.step_id, row.sequence)
            await app.resume(RUN)
        if harm != "no store":
            async with talking(tmp_path, store) as app:
                with pytest.raises(RunNeedsAttention, match=said):
                    await app.handle(RUN).result()

    run(main())


def test_a_worker_without_the_store_gives_back_what_it_cannot_read(
    tmp_path: Path, files: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with talking(tmp_path, files).connect() as app:
            await app.start("talk", [noise(1)] * 2, run_id=RUN)
        async with talking(tmp_path, None):
            await until(lambda: "to go on later" in caplog.text)
        assert "open the store with blobs=" in caplog.text
        # Who waits for it there is told, too.
        async with talking(tmp_path, None).connect() as blind:
            waiting = asyncio.ensure_future(blind.handle(RUN).result())
            async with talking(tmp_path, files) as app:
                assert len(await app.handle(RUN).result()) == 5
            with pytest.raises(StorageMissing, match="the output of run run-1 stands in a blob"):
                await waiting

    run(main())


def test_a_run_is_exported_with_its_large_values_and_imported_into_another_store(
    tmp_path: Path, files: Watched
) -> None:
    there = tmp_path / "there"
    there.mkdir()

    async def main() -> None:
        expected = await talked(tmp_path, files)
        async with talking(tmp_path, files).connect() as app:
            data = await app.export(RUN)
        theirs = Watched(FileBlobs(there / "blobs", over_bytes=OVER))
        async with talking(there, theirs).connect() as app:
            await app.import_run(data)
            assert len(theirs.put_names) == 8
            assert await app.handle(RUN).result() == expected
            assert await app.export(RUN) == data

    run(main())


@pytest.mark.parametrize("first", ["old", None])
def test_what_is_encrypted_anew_is_read_with_the_new_key_alone(
    tmp_path: Path, files: Watched, first: str | None
) -> None:
    old, new = Keyring.generate_key(), Keyring.generate_key()

    async def main() -> None:
        before = None if first is None else Keyring(current="old", keys={"old": old})
        expected = await talked(tmp_path, files, encryption=before)
        both = Keyring(current="new", keys={"old": old, "new": new}, accept_plaintext=first is None)
        async with talking(tmp_path, files, encryption=both).connect() as app:
            done = [some async for some in reencrypt(app.store)]
            assert not any(some.unreadable for some in done)
            assert len(done) > 1
            assert sum((await app.store.count_stale()).values()) == 0
            await app.store.end_resealing(whole=True, rewrite=False)
        last = Keyring(current="new", keys={"new": new}, cipher="chacha20-poly1305")
        async with talking(tmp_path, files, encryption=last) as app:
            assert await app.handle(RUN).result() == expected
            assert (await app.rehearse(RUN)).verdict.value == "matches"
            await (await app.start("talk", [noise(100)] * 2, run_id="run-2")).result()
        # Each blob has a key of its own in its row; those that had none were put again.
        assert len(files.put_names) == (11 if first else 19)
        assert len(await files.there()) == 11
        for name in await files.there():
            data = await files.get(name) or b""
            with pytest.raises(zlib.error):
                zlib.decompress(data[16:])  # where the packed bytes of one in plaintext begin

    run(main())


def test_files_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("fsync", "replace", "unlink"):
        does = getattr(os, name)

        def noting(*arguments: Any, name: str = name, does: Any = does) -> None:
            done.append(name)
            does(*arguments)

        monkeypatch.setattr(os, name, noting)

    async def main() -> None:
        store = FileBlobs(tmp_path / "deep" / "blobs")
        name = "ab" * 32
        assert await store.get(name) is None
        await store.delete(name)
        done.clear()
        await store.put(name, b"data")
        # The folders that are new, what the file holds, and its name.
        assert done == ["fsync", "fsync", "fsync", "fsync", "replace", "fsync"]
        await store.put(name, b"data")
        path = Path(store.place(name))
        assert (await store.get(name), path.stat().st_mode & 0o777) == (b"data", 0o600)
        # What a crash in the middle of a write leaves goes with it.
        path.with_name(f"{path.name}.new").write_bytes(b"da")
        done.clear()
        await store.delete(name)
        assert done == ["unlink", "unlink", "fsync"]
        assert [*path.parent.iterdir()] == []
        (tmp_path / "file").write_text("")
        with pytest.raises(StorageError, match="cannot be used"):
            await FileBlobs(tmp_path / "file").put(name, b"data")

    run(main())


def test_whoever_puts_the_same_at_the_same_time_never_names_what_is_not_whole(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        store = FileBlobs(tmp_path)
        name = "ab" * 32
        path = Path(store.place(name))
        path.parent.mkdir()
        # Another process is in the middle of it.
        with path.with_name(f"{path.name}.new").open("wb") as theirs:
            theirs.write(b"da")
            theirs.flush()
            await store.put(name, b"data")
            assert await store.get(name) == b"data"
            theirs.write(b"ta")
        path.with_name(f"{path.name}.new").replace(path)
        assert await store.get(name) == b"data"
        await store.delete(name)
        assert [*path.parent.iterdir()] == []

    run(main())


def test_an_object_store_that_refuses_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "closed").write_text("")
        store = ObjectBlobs(LocalStore(str(tmp_path)), prefix="closed")
        for work in (store.put("ab" * 32, b"data"), store.delete("ab" * 32)):
            with pytest.raises((StorageBusy, StorageReadOnly), match="closed/ab/"):
                await work
        await ObjectBlobs(LocalStore(str(tmp_path))).delete("ab" * 32)

    run(main())
    for over in (0, 4095):
        with pytest.raises(InvalidOptions, match="4096 or more"):
            FileBlobs(tmp_path, over_bytes=over)
