"""Sessions on PostgreSQL: many writers at once, hints, and connections that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from perdure.clock import SystemClock
from perdure.errors import StorageBusy
from perdure.observe import Observer
from perdure.ports import no_probe
from perdure.storage.postgres import PostgresStorage
from perdure.storage.postgres.hints import Hints
from perdure.testing.storage.talking import (
    BEGINNING,
    append,
    draft,
    publication,
    said,
    streamed,
    update,
)
from tests.harness import run
from tests.proxy import Cut, proxy
from tests.storages import kept_on_server, url_of

MOST_REQUESTS = 40


@pytest.fixture
def place(postgres: str, tmp_path: Path) -> Iterator[Path]:
    with kept_on_server(tmp_path, postgres):
        yield tmp_path


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[PostgresStorage]:
    store = PostgresStorage(url, SystemClock(), Observer(), busy_seconds=10, probe=no_probe)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def test_writers_of_the_same_sessions_never_stop_one_another(place: Path) -> None:
    names = [f"s-{number}" for number in range(12)]

    async def write(store: PostgresStorage, order: Sequence[str], mark: str) -> None:
        for number in range(15):
            writes = [publication(name, draft(f"{mark}-{number}")) for name in order]
            for outcome in await store.write_session(writes):
                assert isinstance(outcome, list)

    async def main() -> None:
        async with opened(url_of(place)) as one, opened(url_of(place)) as other:
            await asyncio.gather(
                write(one, names, "a"),
                write(other, names[::-1], "b"),
                write(one, names[6:] + names[:6], "c"),
            )
            assert {*(await other.session_heads(names)).values()} == {f"{45:016}"}

    run(main())


@pytest.mark.parametrize("cut", Cut, ids=lambda cut: cut.value)
def test_what_is_written_as_a_connection_is_lost_is_written_once(
    place: Path, monkeypatch: pytest.MonkeyPatch, cut: Cut
) -> None:
    """Of an append, it may be that nobody knows; then it is there or it is not."""
    monkeypatch.setattr(Hints, "open", lambda hints: None)
    doubts: list[str] = []

    async def lose(store: PostgresStorage, other: PostgresStorage, number: int) -> None:
        session = f"s-{number}"
        (serial, second) = await said(other, streamed("m"), streamed("n"), session=session)
        writes = [
            publication(session, draft("new", data="new")),
            append(serial, "added", session=session),
            update(second, "whole", session=session),
        ]
        published, added, updated = await store.write_session(writes)
        assert isinstance(published, list)
        assert isinstance(updated, list)
        page = await other.session_page(session, None, 9)
        new, whole, text = [each.data for each in page.messages]
        assert (new, whole) == ("new", "whole")
        if isinstance(added, StorageBusy):
            doubts.append(text)
            assert text in {"", "added"}
        else:
            assert text == "added"
        deliveries = await other.session_deliveries(session, BEGINNING, 99)
        assert [each.data for each in deliveries].count("new") == 1

    async def main() -> None:
        async with (
            proxy(url_of(place)) as way,
            opened(way.url) as store,
            opened(url_of(place)) as other,
        ):
            for number in range(MOST_REQUESTS):
                way.lose(cut, number)
                await asyncio.wait_for(lose(store, other, number), 60)
                if way.disarm():
                    break
            assert way.cuts == number > 5

    run(main())
    # Only the commit leaves a doubt.
    assert {*doubts} == {"added" if cut is Cut.AFTER else ""}
