"""Kills an encryption anew at every point where a crash leaves a different state."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import App
from perdure.clock import SystemClock
from perdure.engine.reencryption import reencrypt
from perdure.fence import Fence
from perdure.observe import Observer
from perdure.ports import no_probe
from perdure.storage.postgres import reencryption as on_postgres
from perdure.storage.sqlite import reencryption as on_sqlite
from perdure.testing.crash import CrashAt
from perdure.urls import location_of
from tests.acceptance.children import running
from tests.encrypting import keyring, shows
from tests.erasing import filled
from tests.harness import RUN, Stored, app_on, sql, stored
from tests.storages import url_of

RUNS = ("done", "failed", "other")
OLD = keyring("a", accept_plaintext=True)
NEW = keyring("b", only=False, accept_plaintext=True)
KILLS = 40


def encrypt(folder: Path, point: str, nth: int) -> None:
    """Encrypt what a folder holds with another key, in small parts, up to a crash."""
    for driver in (on_sqlite, on_postgres):
        driver.BATCH_ROWS = 2
    asyncio.run(_encrypt(app_on(folder, encryption=NEW, probe=CrashAt(point, nth))))


async def _encrypt(app: App) -> None:
    async with app.connect():
        async for some in reencrypt(app.store):
            assert some.unreadable == []
        assert not any((await app.store.count_stale()).values())
        await app.store.end_resealing(whole=True, rewrite=False)


async def fill(folder: Path) -> None:
    """Write runs in plaintext and, with another key, more of them that share pieces with those."""
    async with stored(folder) as it:
        await filled(it, "done", "MARK")
        await it.store.retire_worker(it.fence.holder)
    place = location_of(url_of(folder))
    vault = keyring("a", accept_plaintext=True).vault()
    store = await place.open(SystemClock(), Observer(), 20.0, no_probe, create=False, vault=vault)
    holder = await store.register_worker("w", 60.0)
    it = Stored(store, Observer(), Fence(RUN, holder, 1))
    for run_id, mark in (("failed", "MARK"), ("other", "KEEP")):
        await filled(it, run_id, mark)
    await store.retire_worker(holder)
    await store.close()


async def contents(folder: Path, encryption: Any) -> list[Any]:
    """Return all that can be read of the runs of a folder."""
    found: list[Any] = []
    app = app_on(folder, encryption=encryption)
    async with app.connect():
        for run_id in RUNS:
            found += [await app.find(run_id), await app.store.read_run_input(run_id)]
            found.append(await app.store.read_journal(run_id))
            for each in await app.store.list_operations(run_id):
                place = (run_id, each.step_id, each.sequence)
                found += [each, await app.store.read_input(*place)]
                found.append(await app.store.read_payload(*place))
        found.append(await app.store.list_receipts(ambiguous_only=False, limit=99))
    return found


@pytest.mark.usefixtures("storage")
def test_a_reencryption_that_was_killed_anywhere_is_finished_by_another(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path))
    before = asyncio.run(contents(tmp_path, OLD))
    for nth in range(1, KILLS):
        point = ("commit.begin reseal", "commit.done reseal")[nth % 2]
        with running(tmp_path, encrypt, tmp_path, point, nth) as child:
            code = child.wait()
        assert code in {0, -9}, child.said()
        assert asyncio.run(contents(tmp_path, NEW)) == before
        if code == 0:
            break
    assert nth > 8
    assert code == 0
    assert asyncio.run(contents(tmp_path, keyring("b"))) == before
    assert sql(tmp_path, "SELECT key_id FROM keys") == [("b",)]
    assert not shows(tmp_path, "MARK-input")
