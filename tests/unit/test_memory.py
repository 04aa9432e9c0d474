"""Stores in the memory of a process, for tests."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunState
from perdure.audit import AuditTable
from perdure.errors import InvalidUrl, StorageMissing
from perdure.receipts import ReceiptStore
from tests.harness import RUN, run


def app_at(url: str) -> App:
    app = App(url)

    @app.run(version=1)
    async def double(context: Context, number: int) -> int:
        async def twice() -> int:
            return 2 * number

        return await context.call(twice)

    return app


async def states(app: App, **options: Any) -> list[RunState]:
    async with app.connect(**options):
        return [row.state for row in await app.list()]


def test_each_app_has_a_place_of_its_own_for_as_long_as_it_exists() -> None:
    one, other = app_at("memory:"), app_at("memory:")
    assert one.run_sync("double", 4, run_id=RUN) == 8
    assert one.run_sync("double", 4, run_id=RUN) == 8, "it is there after the App was closed"
    assert run(states(one)) == [RunState.COMPLETED]
    assert run(states(other)) == []


def test_all_that_name_one_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = "memory:shop"

    async def main() -> None:
        async with app_at(url) as app, app_at(url).connect() as other:
            handle = await other.start("double", 4)
            assert await handle.result() == 8
            async with ReceiptStore(url) as store:
                assert len(await store.list()) == 1
            audit = AuditTable(url)
            assert await audit.read() == []
            await audit.close()
            assert (await app.store.examine()).faults == []
            await app.erase(handle.run_id, by="ada", why="so", rewrite=True)

    run(main())
    assert list(tmp_path.iterdir()) == []


def test_it_is_gone_with_the_last_that_names_it() -> None:
    assert app_at("memory:gone").run_sync("double", 4) == 8
    gc.collect()
    assert run(states(app_at("memory:gone"))) == []


def test_looking_makes_nothing() -> None:
    app = app_at("memory:")
    with pytest.raises(StorageMissing, match=r"there is nothing in memory:.* use a file"):
        run(states(app, create=False))
    app.run_sync("double", 4)
    assert len(run(states(app, create=False))) == 1


@pytest.mark.parametrize("url", ["memory:a b", "memory:a?b", "memory:/x"])
def test_a_name_is_an_identifier(url: str) -> None:
    with pytest.raises(InvalidUrl, match="write memory: or memory:name"):
        App(url)
