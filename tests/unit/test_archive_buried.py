"""The tombstones of a run's receipts go with it, so that no store sends an erased effect again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from perdure import OperationIdentity, ReceiptStore, guard
from perdure.engine.archive import RunArchive, decode_archive, encode_archive
from perdure.errors import EffectErased, InvalidRecord, RunConflict
from tests.harness import RUN, run
from tests.storages import kept_on_server, look, url_of
from tests.unit.test_archive import Shop, exported, imported

WHO = {"by": "ada", "why": "asked"}


@pytest.fixture(params=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Name two folders, with a store of one kind and of the other."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    with kept_on_server(here, request.getfixturevalue("postgres")):
        yield (here, there) if request.param == "sqlite" else (there, here)


async def send(_: OperationIdentity) -> str:
    return "sent"


async def send_nothing(_: OperationIdentity) -> NoReturn:
    raise AssertionError("sent again")


async def erased(folder: Path) -> tuple[bytes, OperationIdentity]:
    """Export a run before its receipts are erased, and name the effect of one."""
    await Shop(folder).play("fail")
    before = await exported(folder)
    (receipt,) = decode_archive(before).receipts
    async with ReceiptStore(url_of(folder)) as store:
        assert await store.erase(RUN, **WHO) == 1
    named = (receipt.idempotency_key, receipt.target, receipt.ordinal)
    return before, OperationIdentity(RUN, *named)


def test_an_erased_effect_is_sent_by_no_store_that_its_run_came_to(
    places: tuple[Path, Path],
) -> None:
    here, there = places

    async def main() -> None:
        _, identity = await erased(here)
        data = await exported(here)
        (buried,) = decode_archive(data).buried
        told = (buried.operation_key, buried.state, buried.erased_by, buried.erased_why)
        assert told == (identity.operation_key, "completed", "ada", "asked")
        assert decode_archive(data).receipts == []
        await imported(there, data)
        assert await exported(there) == data
        await imported(there, data)
        async with ReceiptStore(url_of(there)) as store:
            with pytest.raises(EffectErased, match="said 'completed' when ada erased it"):
                await guard(store, identity, send_nothing)

    run(main())
    for folder in places:
        assert look(folder, "SELECT run_sha256 FROM tombstones") == [
            (hashlib.sha256(RUN.encode()).digest(),)
        ]


def test_a_tombstone_never_takes_the_place_of_a_receipt(places: tuple[Path, Path]) -> None:
    here, there = places

    async def main() -> None:
        _, identity = await erased(here)
        data = await exported(here)
        async with ReceiptStore(url_of(there)) as store:
            await guard(store, identity, send)
        with pytest.raises(RunConflict, match=identity.operation_key):
            await imported(there, data)
        assert look(there, "SELECT count(*) FROM runs") == [(0,)]
        async with ReceiptStore(url_of(there)) as store:
            await store.erase(RUN, by="bob", why="asked there")
        await imported(there, data)
        assert look(there, "SELECT erased_by FROM tombstones") == [("bob",)]

    run(main())


def changed(data: bytes, change: Callable[[dict[str, Any]], object], version: int = 1) -> bytes:
    """Return an archive with another content, whole in its digest, of an earlier version."""
    document = msgspec.json.decode(data)
    change(document["content"])
    content = msgspec.json.encode(document["content"])
    digest = hashlib.sha256(content).hexdigest()
    return msgspec.json.encode(
        {"perdure_run": version, "sha256": digest, "content": msgspec.Raw(content)}
    )


def test_archives_from_before_there_were_messages_are_read(tmp_path: Path) -> None:
    def older(content: dict[str, Any]) -> None:
        for name in ("messages", "approvals"):
            assert content.pop(name) == []
        for name in ("wake_at", "deadline_at", "parent"):
            assert content["run"].pop(name) is None

    async def main() -> None:
        before, _ = await erased(tmp_path)
        assert encode_archive(decode_archive(changed(before, older, 2))) == before

    run(main())


def test_archives_of_the_first_version_are_read(tmp_path: Path) -> None:
    async def main() -> RunArchive:
        before, _ = await erased(tmp_path)
        first = changed(before, lambda content: content.pop("buried"))
        archive = decode_archive(first)
        assert encode_archive(archive) == before
        with pytest.raises(RunConflict):
            await imported(tmp_path, first)
        return decode_archive(await exported(tmp_path))

    archive = run(main())
    (buried,) = archive.buried
    receipt = msgspec.structs.replace(buried, state="in_flight")
    for wrong in ([receipt], [buried, buried]):
        with pytest.raises(InvalidRecord, match="tombstone"):
            decode_archive(encode_archive(msgspec.structs.replace(archive, buried=wrong)))
