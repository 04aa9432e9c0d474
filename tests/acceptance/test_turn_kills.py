"""Workers that are killed while they stream: whoever watches ends with what was returned."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

from perdure import App, Context, WorkerOptions
from perdure.engine.store import RunState
from perdure.turn import Turn
from tests.acceptance.children import Child, freeze, running, until
from tests.acceptance.samples import SEED, amount
from tests.storages import app_at
from tests.turning import ENDED, Watcher, ends, joined, messages, posted, runs, settled, shown, view

_KILLS = amount("TURN_KILLS", usual=4, full=20)
_ROOMS = 4
_WORKERS = 2
_PIECES = 12
_FREEZES = 6
_MET = 3
"""Of how many kills at least one has to meet a turn."""
_LEASE_SECONDS = 0.8


def work_on(folder: Path, ready: Path) -> None:
    async def main() -> None:
        async with _app(folder):
            ready.touch()
            await asyncio.Event().wait()

    asyncio.run(main())


def _app(folder: Path) -> App:
    options = WorkerOptions(poll_seconds=0.01, sweep_seconds=0.1, lease_seconds=_LEASE_SECONDS)
    app = app_at(folder, worker=options)

    async def words(said: str) -> AsyncIterator[str]:
        # No two attempts say the same, so that nobody can take one for the other.
        attempt = f"{os.getpid()}-{time.monotonic_ns()}"
        for number in range(_PIECES):
            yield f"{said}/{number}/{attempt} "
            await asyncio.sleep(0.01)

    @app.turn(version=1)
    async def answer(context: Context, turn: Turn) -> list[str]:
        said = await turn.text()
        first = await turn.stream(words, said)
        await context.sleep(0.02)
        return [first, await turn.stream(words, said)]

    return app


class _Sharp(Watcher):
    """A watcher that looks at every change: no text of two attempts is ever shown at once."""

    async def follow(self, app: App, room: str, leaving: random.Random | None = None) -> None:
        """Watch for as long as the task lives; `leaving` says after how many deliveries to go."""
        while True:
            left = leaving.randint(1, 40) if leaving else -1
            async for _ in self.watch(app, room):
                self.look()
                left -= 1
                if left == 0:
                    break

    def look(self) -> None:
        steps: dict[str, int] = {}
        for text in self.texts:
            pieces = [piece.split("/") for piece in text.split()]
            assert len({(said, attempt) for said, _, attempt in pieces}) == 1, text
            assert [int(number) for _, number, _ in pieces] == [*range(len(pieces))], text
            steps[pieces[0][0]] = steps.get(pieces[0][0], 0) + 1
        assert all(count <= 2 for count in steps.values()), self.texts


def _kill(
    folder: Path, chance: random.Random, kills: int, apart: float, again: Callable[[], int]
) -> None:
    """Kill and freeze workers at random moments, and leave some until all is said.

    There are more kills where too few have met a turn that was under way, which `again` tells.
    """
    with ExitStack() as stack:

        def begin(number: int) -> Child:
            ready = folder / f"ready-{number}"
            child = stack.enter_context(running(folder, work_on, folder, ready))
            until(ready.exists, child)
            return child

        workers = [begin(number) for number in range(_WORKERS)]
        number = 0
        while number < kills or (again() < kills // _MET and not (folder / "over").exists()):
            time.sleep(chance.uniform(0.05, 0.35) * apart)
            place = chance.randrange(_WORKERS)
            if number % _FREEZES == 0:
                # Its runs are another's when it wakes, and it goes on to write.
                freeze(workers[place], folder / "runs.db")
                time.sleep(1.5 * _LEASE_SECONDS)
                workers[place].signal(signal.SIGCONT)
            else:
                workers[place].kill()
                workers[place] = begin(_WORKERS + number)
            number += 1
        (folder / "killed").touch()
        until((folder / "over").exists, *workers)


async def _talk(app: App, folder: Path, room: str) -> None:
    """Say one thing after the other, until nobody is killed any more."""
    async with joined(app, room=room) as client:
        while not (folder / "killed").exists():
            sent = await client.send(f"{len(client.view.runs)}")
            handle = await posted(app, sent, room=room)
            run = await sent.ended()
            assert run.run_id == handle.run_id
            assert run.lifecycle.status == "complete"


async def _whole(folder: Path, chance: random.Random, kills: int, apart: float) -> int:
    async with _app(folder).connect() as app:
        rooms = [f"room-{number}" for number in range(_ROOMS)]
        watchers = {room: (_Sharp(), _Sharp()) for room in rooms}
        loop = asyncio.get_running_loop()

        def again() -> int:
            return asyncio.run_coroutine_threadsafe(_again(app), loop).result()

        killing = asyncio.create_task(asyncio.to_thread(_kill, folder, chance, kills, apart, again))
        watching = [
            asyncio.create_task(watcher.follow(app, room, leaving))
            for room in rooms
            for watcher, leaving in zip(watchers[room], (None, chance), strict=True)
        ]
        try:
            async with asyncio.TaskGroup() as talking:
                for room in rooms:
                    talking.create_task(_talk(app, folder, room))
            await settled(app)
            for room in rooms:
                await _check(app, room, watchers[room])
        finally:
            (folder / "over").touch()
            for task in watching:
                task.cancel()
            failed = [t for t in await asyncio.gather(*watching, return_exceptions=True) if t]
            await killing
        assert all(isinstance(error, asyncio.CancelledError) for error in failed), failed
        assert {row.state for row in await app.list(limit=1000)} == {RunState.COMPLETED}
        return await _again(app)


async def _again(app: App) -> int:
    """Return how many executions were begun again."""
    return sum(row.generation - 1 for row in await app.list(limit=1000))


async def _check(app: App, room: str, watchers: tuple[_Sharp, ...]) -> None:
    found = await runs(app, room)
    assert await ends(app, room) == {info.run_id: ["complete"] for info in found}
    returned = [text for info in found for text in await app.handle(info.run_id).result()]
    late = await view(app, room)
    assert shown(late) == returned
    head = (await messages(app, room))[-1].version
    for watcher in watchers:
        while (watcher.reader.cursor or "") < head:
            await asyncio.sleep(0.01)
        assert watcher.texts == returned
        assert all(info.lifecycle.status in ENDED for info in watcher.reader.view.runs)


def test_everybody_sees_exactly_what_was_returned_whoever_is_killed(folder: Path) -> None:
    watch_kills(folder, _KILLS)


def watch_kills(folder: Path, kills: int, apart: float = 1.0) -> None:
    """Kill and freeze so often, and compare what everybody saw with what was returned.

    `apart` is how much longer than usual it is from one to the next.
    """

    async def bounded() -> int:
        async with asyncio.timeout(120.0 + 2.0 * kills):
            return await _whole(folder, random.Random(SEED), kills, apart)

    again = asyncio.run(bounded())
    assert again >= kills // _MET
    print(f"{kills} kills; {again} executions were begun again")
