from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.child import Child, say
from benchmarks.ledger import Ledger
from benchmarks.measure import percentile
from benchmarks.row import Database, Figure, NotDurable, Row, Setting, Target
from benchmarks.storages import POSTGRES, SQLITE, is_file, query
from perdure.channels.stored import StoredChannels
from perdure.clock import SystemClock
from perdure.observe import Observer
from perdure.session import headers
from perdure.session.channel import Channel, Draft
from perdure.session.message import Action, WireMessage
from perdure.session.publisher import Publisher
from perdure.session.stream_writer import StreamWriter
from perdure.urls import location_of

_RUNS: Final = 200
_READERS: Final = 1000
_A_SECOND: Final = 52
"""Deltas of a run: a little more than the 50 of the target, which could only just be reached."""

_TEXT: Final = 250
"""How many deltas an agent writes before it goes on with another text."""

_DIGITS: Final = 20
"""The length of a delta: it says when it was made, in nanoseconds of the clock of all processes."""

_STREAM: Final = {headers.STREAM: headers.TRUE, headers.STATUS: headers.STREAMING}


class _Commits:
    """Counts transactions that write: by the points they pass, or as the server numbers them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._begun = 0
        self._beginning = False

    def pass_point(self, point: str) -> None:
        # Every write of a transaction has its own point, all of them before the commit.
        begins = point.startswith("commit.begin")
        self._begun += begins and not self._beginning
        self._beginning = begins

    def count(self) -> int:
        if is_file(self._url):
            return self._begun
        found = query(self._url, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        return int(found[0][0])


_Deltas = Sequence[tuple[int, int]]
"""When each delta of a run was made, and when its reader had it."""


class _Reader:
    """A subscriber that counts text and notes when each delta came; it folds nothing."""

    def __init__(self, channel: Channel) -> None:
        self.attached = asyncio.Event()
        self.deltas: list[tuple[int, int]] = []
        self._channel = channel
        self._known: Counter[str] = Counter()

    async def follow(self, deltas: int) -> None:
        """Attach, and return when so many deltas have come."""
        async with self._channel.subscribe() as deliveries:
            self.attached.set()
            while len(self.deltas) < deltas:
                self._count(await anext(deliveries))

    def _count(self, delivery: WireMessage) -> None:
        came, made = time.monotonic_ns(), _made(delivery.text)
        if delivery.action is not Action.APPEND:
            # It has all of the text.
            made = made[self._known[delivery.serial] :]
        self._known[delivery.serial] += len(made)
        self.deltas += [(each, came) for each in made]


def measure(setting: Setting) -> list[Figure]:
    """Stream to readers in the same process, in another one, and to very many of one run."""
    deltas = setting.scale(500, 50)
    return [
        *asyncio.run(_many_runs(setting.database("p11-here"), deltas, elsewhere=False)),
        *asyncio.run(_many_runs(setting.database("p11-elsewhere"), deltas, elsewhere=True)),
        *asyncio.run(_many_readers(setting.database("p11-readers"), deltas // 2)),
    ]


async def _many_runs(database: Database, deltas: int, *, elsewhere: bool) -> list[Figure]:
    commits, names = _Commits(database.url), _names(_RUNS)
    async with _opened(database.url, commits) as channels:
        readers = _elsewhere(database.url, deltas) if elsewhere else _here(channels, names, deltas)
        async with readers as runs:
            before = commits.count()
            async with asyncio.TaskGroup() as streams:
                for number, name in enumerate(names):
                    streams.create_task(_stream(channels.channel(name, "agent"), number, deltas))
            written = commits.count() - before
    await _check_stored(database.url, [deltas] * _RUNS)
    began, ended = _together(runs)
    every = [delta for run in runs for delta in run]
    latencies = [(came - made) / 1e6 for made, came in every if began <= made < ended]
    came = sum(began <= came < ended for _, came in every)
    where = "in another process" if elsewhere else "in the same process"
    return [
        Figure(
            label=f"{_RUNS} runs of {_A_SECOND} deltas a second, each with a reader {where}",
            value=came / (ended - began) * 1e9,
            unit="/s",
            targets=[Target(10_000, at_least=True)],
        ),
        _milliseconds("the same: from a delta to its reader, p50", percentile(latencies, 0.5)),
        _milliseconds("the same, p99", percentile(latencies, 0.99), Target(150)),
        Figure(
            label="the same: deltas for each commit",
            value=_RUNS * deltas / written,
            unit="",
            targets=[Target(50, at_least=True)],
        ),
    ]


def _together(runs: Sequence[_Deltas]) -> tuple[int, int]:
    """Return from when to when all runs were streaming, but for the first fifth of it."""
    began, ended = max(run[0][0] for run in runs), min(run[-1][0] for run in runs)
    return began + (ended - began) // 5, ended


async def _many_readers(database: Database, deltas: int) -> list[Figure]:
    async with _opened(database.url, _Commits(database.url)) as channels:
        readers = [_Reader(channels.channel("run-0", "reader")) for _ in range(_READERS)]
        async with _following(readers, deltas):
            await _stream(channels.channel("run-0", "agent"), 0, deltas)
    spreads: list[float] = []
    for each in zip(*(reader.deltas for reader in readers), strict=True):
        came = [came for _, came in each]
        spreads.append((max(came) - min(came)) / 1e6)
    label = f"one run, {_READERS} readers: from the first to the last of them, p50"
    return [
        _milliseconds(label, percentile(spreads, 0.5)),
        _milliseconds("the same, longest", max(spreads), Target(1000)),
    ]


@asynccontextmanager
async def _opened(url: str, commits: _Commits) -> AsyncGenerator[StoredChannels]:
    clock = SystemClock()
    passed = commits.pass_point
    store: Any = await location_of(url).open(clock, Observer(), 20.0, passed, create=True)
    channels = StoredChannels(store, clock)
    await channels.open()
    try:
        yield channels
    finally:
        await channels.close()
        await store.close()


@asynccontextmanager
async def _following(readers: Sequence[_Reader], deltas: int) -> AsyncGenerator[None]:
    """Let readers follow: all are attached, and leaving the block waits for their deltas."""
    async with asyncio.TaskGroup() as following:
        for reader in readers:
            following.create_task(reader.follow(deltas))
        for reader in readers:
            await reader.attached.wait()
        yield


@asynccontextmanager
async def _here(
    channels: StoredChannels, names: Sequence[str], deltas: int
) -> AsyncGenerator[list[_Deltas]]:
    readers = [_Reader(channels.channel(name, "reader")) for name in names]
    runs: list[_Deltas] = []
    async with _following(readers, deltas):
        yield runs
    runs += [reader.deltas for reader in readers]


@asynccontextmanager
async def _elsewhere(url: str, deltas: int) -> AsyncGenerator[list[_Deltas]]:
    runs: list[_Deltas] = []
    with Child("p11_streaming", "read", url, deltas) as child:
        assert await asyncio.to_thread(child.hear) == "attached"
        yield runs
        runs += await asyncio.to_thread(child.hear)


async def _stream(channel: Channel, number: int, deltas: int, ledger: Ledger | None = None) -> None:
    """Write deltas at their pace, text by text as an agent does, and note those that are stored."""
    publisher = Publisher(channel, SystemClock(), lambda: None)
    # Agents do not stream in step, and their texts do not end at once.
    due = time.monotonic() + number / _RUNS / _A_SECOND
    written, ends = 0, 1 + number * _TEXT // _RUNS
    while written < deltas:
        draft = Draft(
            message_id=f"{number}/{written}", name=headers.AI_OUTPUT, transport=_STREAM, data=""
        )
        writer = StreamWriter(publisher, await publisher.publish(draft), _STREAM, {})
        for written in range(written + 1, min(ends, deltas) + 1):  # noqa: B020
            await asyncio.sleep(due - time.monotonic())
            writer.add(f"{time.monotonic_ns():0{_DIGITS}}")
            due += 1 / _A_SECOND
            if ledger is not None:
                await writer.flush()
                ledger.write("stored", number, written)
        await writer.close(headers.COMPLETE)
        ends += _TEXT


def check(setting: Setting) -> None:
    """Kill processes that stream; what they were told is stored has to be there."""
    for kill in range(setting.scale(3, 1)):
        _kill(setting.database(f"p11-durable-{kill}"), 0.5 + kill / 3)


def _kill(database: Database, seconds: float) -> None:
    ledger, runs = Ledger(database.folder / "ledger"), 20
    with Child("p11_streaming", "write", database.url, runs, ledger.path) as child:
        if child.hear() != "begun":
            raise RuntimeError("the process that was to be killed did not begin")
        time.sleep(seconds)
        child.kill()
    stored = {int(number): int(count) for _, number, count in ledger.lines()}
    ledger.close()
    if not stored:
        raise NotDurable("nobody was told of anything that is stored")
    asyncio.run(_check_stored(database.url, [stored.get(number, 0) for number in range(runs)]))


async def _check_stored(url: str, deltas: Sequence[int]) -> None:
    """Raise `NotDurable` unless a fresh process would find at least so many deltas of each run."""
    async with _opened(url, _Commits(url)) as channels:
        for name, wanted in zip(_names(len(deltas)), deltas, strict=True):
            page = await channels.channel(name, "later").history()
            found = sum(len(_made(message.text)) for message in page.messages)
            if found < wanted:
                raise NotDurable(f"{name} has {found} of {wanted} deltas")


def child(what: str, url: str, count: str, *ledger: str) -> None:
    """Read so many deltas of every run, or write to so many runs until it is killed."""
    asyncio.run(_read(url, int(count)) if what == "read" else _write(url, int(count), *ledger))


async def _read(url: str, deltas: int) -> None:
    async with _opened(url, _Commits(url)) as channels:
        async with _here(channels, _names(_RUNS), deltas) as runs:
            say("attached")
        say(runs)


async def _write(url: str, runs: int, ledger_path: str) -> None:
    ledger = Ledger(Path(ledger_path))
    async with _opened(url, _Commits(url)) as channels, asyncio.TaskGroup() as streams:
        for number, name in enumerate(_names(runs)):
            agent = channels.channel(name, "agent")
            streams.create_task(_stream(agent, number, 60 * _A_SECOND, ledger))
        say("begun")


def _names(runs: int) -> list[str]:
    return [f"run-{number}" for number in range(runs)]


def _made(text: str) -> list[int]:
    return [int(text[start : start + _DIGITS]) for start in range(0, len(text), _DIGITS)]


def _milliseconds(label: str, value: float, *targets: Target) -> Figure:
    return Figure(label=label, value=value, unit="ms", targets=targets)


ROW = Row(
    number="P11",
    work="streams through the stored channel",
    floor="",
    measure=measure,
    check=check,
    storages=[SQLITE, POSTGRES],
)
