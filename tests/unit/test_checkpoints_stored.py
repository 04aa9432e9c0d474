"""Checkpoints in a store of runs: hidden, encrypted anew, and gone without a trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.checkpoints import Checkpoint, CheckpointKind, Saved
from perdure.engine.archive import decode_archive, encode_archive, export_run
from perdure.engine.reencryption import reencrypt
from perdure.engine.retention import Retention
from perdure.engine.store import RunEnd, RunState
from perdure.errors import InvalidRecord, StorageCorrupt
from tests.encrypting import keyring, shows, store_value, stored_value
from tests.harness import RUN, Stored, app_on, run, sql, stored

MARK = "MARK-seen"
FIRST = Checkpoint(RUN, "stream-1", CheckpointKind.STREAM, 2, 1, f'"{MARK}"'.encode())
OTHER = msgspec.structs.replace(FIRST, checkpoint_id="stream-2")
DONE = RunEnd(RunState.COMPLETED, b"1")

pytestmark = pytest.mark.usefixtures("storage")


async def load(it: Stored) -> Checkpoint | None:
    return await it.store.load_checkpoint(RUN, "stream-1")


async def fill(it: Stored) -> None:
    for checkpoint in (FIRST, OTHER):
        assert await it.store.save_checkpoint(checkpoint) is Saved.CREATED


def test_who_has_no_key_sees_nothing_of_a_state(tmp_path: Path) -> None:
    async def main() -> None:
        async with stored(tmp_path, vault=keyring().vault()) as it:
            await fill(it)
            later = msgspec.structs.replace(FIRST, revision=3)
            assert await it.store.save_checkpoint(later) is Saved.ADVANCED
            assert await it.store.save_checkpoint(later) is Saved.DUPLICATE
            assert await load(it) == later

    run(main())
    assert not shows(tmp_path, MARK)
    assert shows(tmp_path, "stream-1")


@pytest.mark.parametrize("first", ["a", None])
def test_states_are_encrypted_anew(tmp_path: Path, first: str | None) -> None:
    async def main() -> None:
        before = None if first is None else keyring(first).vault()
        async with stored(tmp_path, vault=before) as it:
            await fill(it)
            assert shows(tmp_path, MARK) is (first is None)
        both = keyring("b", only=False, accept_plaintext=first is None)
        async with app_on(tmp_path, encryption=both).connect() as app:
            assert (await app.store.count_stale())["checkpoints"] == 2
            done = [some async for some in reencrypt(app.store) if some.name == "checkpoints"]
            assert [(some.count, some.unreadable) for some in done] == [(2, [])]
            assert sum((await app.store.count_stale()).values()) == 0
            assert await app.store.end_resealing(whole=True, rewrite=True)
        async with app_on(tmp_path, encryption=keyring("b")).connect() as app:
            assert [*await app.store.list_checkpoints(RUN)] == [FIRST, OTHER]
        assert not shows(tmp_path, MARK)

    run(main())


TAMPERINGS: dict[str, Callable[[Path], None]] = {
    "swapped": lambda folder: store_value(
        folder,
        "checkpoints",
        "state",
        stored_value(folder, "checkpoints", "state", "checkpoint_id = 'stream-2'"),
        "checkpoint_id = 'stream-1'",
    ),
    "in the open": lambda folder: store_value(folder, "checkpoints", "state", b'"open"'),
    "cursor": lambda folder: store_value(folder, "checkpoints", "cursor", 0),
    "revision": lambda folder: store_value(folder, "checkpoints", "revision", 1),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_what_was_changed_or_moved_is_refused(tmp_path: Path, tampering: str) -> None:
    async def main() -> None:
        async with stored(tmp_path, vault=keyring().vault()) as it:
            await fill(it)
            TAMPERINGS[tampering](tmp_path)
            with pytest.raises(StorageCorrupt, match="the state of checkpoint run-1/stream-1"):
                await load(it)
            with pytest.raises(StorageCorrupt):
                await it.store.save_checkpoint(msgspec.structs.replace(FIRST, revision=9, cursor=9))

    run(main())


@pytest.mark.parametrize("how", ["erased", "collected"])
def test_nothing_of_checkpoints_is_left_without_their_run(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            await fill(it)
            await it.store.end_run(it.fence, DONE)
        async with app_on(tmp_path).connect() as app:
            if how == "erased":
                await app.erase(RUN, by="ada", why="request 17", rewrite=True)
            else:
                store_value(tmp_path, "runs", "finished_at", 0.0)
                gone = await app.collect(Retention(runs_days=1))
                assert gone["runs"] == 1

    run(main())
    assert sql(tmp_path, "SELECT count(*) FROM checkpoints") == [(0,)]
    assert how == "collected" or not shows(tmp_path, MARK)


DAMAGES: list[Callable[[Any], Any]] = [
    lambda each: msgspec.structs.replace(each, run_id="run-2"),
    lambda each: msgspec.structs.replace(each, checkpoint_id="stream-2"),
    lambda each: msgspec.structs.replace(each, state_json=b"{"),
    lambda each: msgspec.structs.replace(each, revision=0),
]


@pytest.mark.parametrize("damage", range(len(DAMAGES)))
def test_an_exported_run_holds_only_checkpoints_that_a_store_would_write(
    tmp_path: Path, damage: int
) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            await fill(it)
            await it.store.end_run(it.fence, DONE)
            archive = await export_run(it.store, RUN)
            assert decode_archive(encode_archive(archive)).checkpoints == [FIRST, OTHER]
            wrong = [DAMAGES[damage](FIRST), OTHER]
            with pytest.raises(InvalidRecord, match="the exported run is damaged"):
                decode_archive(encode_archive(msgspec.structs.replace(archive, checkpoints=wrong)))

    run(main())
