"""Streams that note how far they came, on a file and in a store of runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoints import (
    Checkpoint,
    CheckpointedStream,
    CheckpointKind,
    CheckpointStore,
    FileStore,
    Saved,
)
from perdure.errors import CheckpointConflict, StorageFull
from tests.harness import run, stored

STATE = b'{"version":1}'


@pytest.fixture(params=["file", "memory"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@asynccontextmanager
async def kept(kind: str, folder: Path) -> AsyncIterator[CheckpointStore]:
    if kind == "file":
        yield FileStore(folder / "checkpoints.json")
        return
    async with stored(folder) as it:
        yield it.store


class Screen:
    """Where events are delivered; the one in `fails` cannot be, once."""

    def __init__(self, *fails: str) -> None:
        self.seen: list[str] = []
        self.fails = {*fails}

    async def __call__(self, event: str) -> None:
        if event in self.fails:
            self.fails.remove(event)
            raise ConnectionResetError("no reader")
        self.seen.append(event)


async def opened(store: CheckpointStore, screen: Screen) -> CheckpointedStream[str]:
    return await CheckpointedStream.open(store, "run-1", "stream-1", screen)


async def noted(store: CheckpointStore) -> tuple[int, int, bytes] | None:
    loaded = await store.load_checkpoint("run-1", "stream-1")
    return None if loaded is None else (loaded.revision, loaded.cursor, loaded.state_json)


def test_each_event_is_delivered_and_noted_and_none_of_them_again(
    tmp_path: Path, kind: str
) -> None:
    screen = Screen()

    async def main() -> None:
        async with kept(kind, tmp_path) as store:
            stream = await opened(store, screen)
            assert (stream.cursor, await noted(store)) == (0, None)
            for number, event in enumerate("abc", 1):
                await stream(event)
                assert (stream.cursor, await noted(store)) == (number, (number, number, STATE))
            again = await opened(store, screen)
            for event in "abcde":
                await again(event)
            assert await noted(store) == (5, 5, STATE)

    run(main())
    assert screen.seen == [*"abcde"]


def test_a_stream_that_failed_is_of_no_more_use(tmp_path: Path, kind: str) -> None:
    screen = Screen("b")

    async def main() -> None:
        async with kept(kind, tmp_path) as store:
            stream = await opened(store, screen)
            await stream("a")
            with pytest.raises(ConnectionResetError):
                await stream("b")
            for event in "bc":
                with pytest.raises(CheckpointConflict, match="open the stream again"):
                    await stream(event)
            assert await noted(store) == (1, 1, STATE)
            again = await opened(store, screen)
            for event in "abc":
                await again(event)

    run(main())
    assert screen.seen == [*"abc"]


def test_an_event_that_was_not_noted_is_delivered_again(tmp_path: Path) -> None:
    """At least once: nobody knows whether its note would have come."""

    class Full(FileStore):
        async def save_checkpoint(self, checkpoint: Checkpoint) -> Saved:
            if checkpoint.cursor == 2:
                raise StorageFull("the disk is full")
            return await super().save_checkpoint(checkpoint)

    screen = Screen()

    async def main() -> None:
        path = tmp_path / "checkpoints.json"
        stream = await opened(Full(path), screen)
        await stream("a")
        with pytest.raises(StorageFull):
            await stream("b")
        assert stream.cursor == 1
        with pytest.raises(CheckpointConflict):
            await stream("c")
        again = await opened(FileStore(path), screen)
        for event in "abc":
            await again(event)

    run(main())
    assert screen.seen == [*"abbc"]


def test_events_come_one_at_a_time(tmp_path: Path) -> None:
    going_on = asyncio.Event()
    seen: list[str] = []

    async def deliver(event: str) -> None:
        seen.append(event)
        await going_on.wait()

    async def main() -> None:
        store = FileStore(tmp_path / "checkpoints.json")
        stream = await CheckpointedStream.open(store, "run-1", "stream-1", deliver)
        first = asyncio.create_task(stream("a"))
        while not seen:
            await asyncio.sleep(0)
        with pytest.raises(CheckpointConflict, match="event 1 of the stream run-1/stream-1"):
            await stream("b")
        going_on.set()
        await first

    run(main())
    assert seen == ["a"]


@pytest.mark.parametrize(
    "there",
    [
        (CheckpointKind.APPROVAL, 1, 0, STATE),
        (CheckpointKind.STREAM, 1, 0, b'{"version": 1}'),
        (CheckpointKind.STREAM, 1, 0, b'{"version":2}'),
    ],
)
def test_a_checkpoint_of_something_else_is_left_alone(tmp_path: Path, there: Any) -> None:
    async def main() -> None:
        store = FileStore(tmp_path / "checkpoints.json")
        checkpoint = Checkpoint("run-1", "stream-1", *there)
        await store.save_checkpoint(checkpoint)
        with pytest.raises(CheckpointConflict, match="is not that of a stream"):
            await opened(store, Screen())
        assert await store.load_checkpoint("run-1", "stream-1") == checkpoint

    run(main())


def test_a_stream_goes_on_from_any_revision(tmp_path: Path) -> None:
    screen = Screen()

    async def main() -> None:
        store = FileStore(tmp_path / "checkpoints.json")
        await store.save_checkpoint(
            Checkpoint("run-1", "stream-1", CheckpointKind.STREAM, 9, 2, STATE)
        )
        stream = await opened(store, screen)
        for event in "abc":
            await stream(event)
        assert await noted(store) == (10, 3, STATE)

    run(main())
    assert screen.seen == ["c"]
