from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunCancelled, RunFailed, RunNeedsAttention
from perdure.channels.memory import MemoryLog
from perdure.engine.showings import AGENT
from perdure.engine.store import RunState
from perdure.errors import SessionError
from perdure.fence import Fence
from perdure.session.channel import Channel
from perdure.turn import Turn
from tests.harness import Pause, app_on, run, sql
from tests.session_agents import Flaky
from tests.storages import SQLITE_ONLY
from tests.turning import (
    ROOM,
    RUN_EVENTS,
    Watcher,
    begun,
    ends,
    joined,
    messages,
    names,
    posted,
    runs,
    settled,
    shown,
    view,
)
from tests.waiting import put_away, stands, waiting_app

pytestmark = pytest.mark.usefixtures("storage")


class Desk:
    """A turn that streams, up to a pause if it is given one, and then does more."""

    def __init__(self, app: App, pause: Pause | None = None) -> None:
        self.app = app
        self.pause = pause
        self.fails = False
        self.done: list[Any] = []
        app.turn(version=1, name="desk")(self.work)

    async def work(self, context: Context, turn: Turn) -> str:
        if self.fails:
            raise ValueError("the password is 1234")
        said = await turn.stream(self.words)
        self.done.append(said)
        return said

    async def words(self) -> AsyncIterator[str]:
        yield "half "
        if self.pause is not None:
            await self.pause()
        yield "and all"


def failing(app: App) -> Desk:
    desk = Desk(app)
    desk.fails = True
    return desk


def untold(app: App) -> None:
    """Have the worker of an App die, as it were, before it tells a session of an end."""
    worker = app.engine._worker
    assert worker is not None
    worker._beside = ()
    worker._showings.tell = _nothing  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]


async def _nothing(*args: object) -> None:
    del args


async def told(app: App, run_id: str, reason: str) -> None:
    """Check that a session has heard of an end, once."""
    await settled(app)
    assert await ends(app) == {run_id: [reason]}
    (info,) = await runs(app)
    assert info.lifecycle.status == reason
    fault = info.lifecycle.fault
    assert (fault is None) == (reason != "error")
    assert fault is None or "1234" not in fault.message


@pytest.mark.parametrize("dies", [False, True], ids=["told", "swept"])
def test_a_run_that_fails_ends_in_an_error_for_those_who_watch(tmp_path: Path, dies: bool) -> None:
    """T49 (c): no run is left streaming, whether or not its worker lives to say how it ended."""

    async def main() -> None:
        desk = failing(app_on(tmp_path))
        async with desk.app as app:
            if dies:
                async with asyncio.timeout(60):
                    while app.engine._worker is None or app.engine._worker._showings is None:
                        await asyncio.sleep(0)
                untold(app)
            handle = await begun(app)
            with pytest.raises(RunFailed):
                await handle.result()
        if dies:
            async with failing(app_on(tmp_path)).app.connect() as app:
                assert (await runs(app))[0].lifecycle.status == "active"
            desks = [failing(app_on(tmp_path)) for _ in range(2)]
            async with desks[0].app as app, desks[1].app:
                await told(app, handle.run_id, "error")
        async with failing(app_on(tmp_path)).app as app:
            await told(app, handle.run_id, "error")
            (fault,) = [info.lifecycle.fault for info in await runs(app)]
            assert fault is not None
            assert "ValueError" in fault.message

    run(main())


@pytest.mark.parametrize("by_session", [False, True], ids=["app", "session"])
def test_a_run_that_is_cancelled_before_anybody_executes_it(
    tmp_path: Path, by_session: bool
) -> None:
    async def main() -> None:
        async with Desk(app_on(tmp_path)).app.connect() as app:
            handle = await begun(app)
            if by_session:
                await app.cancel_turn(ROOM, handle.run_id, "bob")
            else:
                await app.cancel(handle.run_id)
            assert await handle.status() is RunState.CANCELLED
        async with Desk(app_on(tmp_path)).app as app:
            await told(app, handle.run_id, "cancelled")
            assert await names(app, *RUN_EVENTS) == ["ai-run-start", "ai-run-end"]

    run(main())


def test_a_cancel_that_came_before_the_run_was_begun_counts(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk(app_on(tmp_path), Pause())
        async with desk.app as app, joined(app) as client:
            sent = await client.send("hi")
            await sent.cancel()
            handle = await posted(app, sent)
            with pytest.raises(RunCancelled):
                await handle.result()
            await told(app, handle.run_id, "cancelled")
            assert desk.done == []

    run(main())


@pytest.mark.parametrize("how", ["client", "turn", "app"])
def test_what_was_streamed_before_a_cancel_stays(tmp_path: Path, how: str) -> None:
    """T55: nobody has to watch for a run to go on; a cancel stops it, and the text is kept."""

    async def main() -> None:
        desk = Desk(app_on(tmp_path), Pause())
        async with desk.app as app, joined(app, "bob") as client:
            watcher = Watcher()
            handle = await begun(app)
            await watcher.until_shown(app, "half ")
            # The only reader has left, which is no cancel.
            assert await handle.status() is RunState.RUNNING
            if how == "client":
                await client.cancel(handle.run_id)
            elif how == "turn":
                await app.cancel_turn(ROOM, handle.run_id, "bob")
            else:
                await app.cancel(handle.run_id)
            with pytest.raises(RunCancelled):
                await handle.result()
            await told(app, handle.run_id, "cancelled")
            assert shown(await view(app)) == ["half "]
            assert desk.done == []
            with pytest.raises(RunCancelled):
                await handle.result()

    run(main())


def test_nothing_goes_on_with_what_a_cancel_cut_short(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk(app_on(tmp_path), Pause())
        async with desk.app as app, joined(app, "bob") as client:
            handle = await begun(app)
            assert desk.pause is not None
            await desk.pause.reached.wait()
            request, asked = app.store.request_cancel, asyncio.Event()

            async def slow(run_id: str) -> Any:
                asked.set()
                for _ in range(200):
                    await asyncio.sleep(0.001)
                return await request(run_id)

            app.store.request_cancel = slow  # pyright: ignore[reportAttributeAccessIssue]
            await client.cancel(handle.run_id)
            await asked.wait()
            with pytest.raises(RunCancelled):
                await handle.result()
            assert desk.done == []
            records = [row.step_id for row in await app.store.list_operations(handle.run_id)]
            assert records == []

    run(main())


def test_a_run_that_takes_too_long_ends_in_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk(app_on(tmp_path), Pause())
        async with desk.app as app, joined(app) as client:
            sent = await client.send("hi")
            handle = await app.start_turn(sent.invocation, deadline_seconds=0.05)
            with pytest.raises(RunFailed):
                await handle.result()
            await told(app, handle.run_id, "error")

    run(main())


def test_a_run_that_failed_is_begun_again_once_a_person_resumes_it(tmp_path: Path) -> None:
    async def main() -> None:
        desk = failing(app_on(tmp_path))
        async with desk.app as app:
            handle = await begun(app)
            with pytest.raises(RunFailed):
                await handle.result()
            await settled(app)
            desk.fails = False
            await app.resume(handle.run_id)
            await stands(app, RunState.COMPLETED, run_id=handle.run_id)
            await settled(app)
            again = f"{handle.run_id}.2"
            assert await ends(app) == {handle.run_id: ["error"], again: ["complete"]}
            assert shown(await view(app)) == ["half and all"]

    run(main())


@pytest.mark.parametrize("again", [False, True], ids=["lingers", "put away"])
def test_a_run_that_waits_for_somebody_is_suspended(tmp_path: Path, again: bool) -> None:
    app = waiting_app(tmp_path, **({} if again else {"linger_seconds": 3600.0}))

    @app.turn(version=1)
    async def ask(context: Context, turn: Turn) -> Any:
        async def word(text: str) -> AsyncIterator[str]:
            yield text

        await turn.stream(word, "Your name?")
        return await turn.stream(word, await context.wait_for("name"))

    async def main() -> None:
        async with app:
            handle = await begun(app)
            if again:
                await put_away(app, handle.run_id)
                (info,) = await runs(app)
                assert info.lifecycle.status == "suspended"
            await app.send(handle.run_id, "name", "Ada")
            assert await handle.result() == "Ada"
            await told(app, handle.run_id, "complete")
            said = [d for d in await messages(app) if d.name in RUN_EVENTS]
            ids = [d.header("invocation-id") for d in said]
            if again:
                assert [d.name for d in said] == [*RUN_EVENTS]
                assert ids == [ids[0], ids[0], f"{handle.run_id}~2", f"{handle.run_id}~2"]
            else:
                assert [d.name for d in said] == ["ai-run-start", "ai-run-end"]
            assert shown(await view(app)) == ["Your name?", "Ada"]

    run(main())


@SQLITE_ONLY
@pytest.mark.parametrize("damaged", [False, True], ids=["changed", "unreadable"])
def test_a_run_that_needs_attention_is_suspended(tmp_path: Path, damaged: bool) -> None:
    pause, version = Pause(), ["one"]
    app = app_on(tmp_path)

    async def word(text: str) -> AsyncIterator[str]:
        yield text

    @app.turn(version=1)
    async def change(context: Context, turn: Turn) -> Any:
        await turn.stream(word, version[-1])
        await pause()

    async def main() -> None:
        async with app:
            handle = await begun(app)
            await pause.reached.wait()
        pause.open = True
        (kept,) = sql(tmp_path, "SELECT payload, payload_packing FROM records")
        if damaged:
            sql(tmp_path, "UPDATE records SET payload = x'00ff', payload_packing = 1")
        else:
            version.append("two")
        async with app:
            with pytest.raises(RunNeedsAttention):
                await app.handle(handle.run_id).result()
            (info,) = await runs(app)
            assert info.lifecycle.status == "suspended"
            version.append("one")
            sql(tmp_path, "UPDATE records SET payload = ?, payload_packing = ?", *kept)
            await app.resume(handle.run_id)
            await stands(app, RunState.COMPLETED, run_id=handle.run_id)
            await told(app, handle.run_id, "complete")
            assert await names(app, *RUN_EVENTS) == [*RUN_EVENTS]

    run(main())


def test_a_run_that_waits_can_be_cancelled(tmp_path: Path) -> None:
    app = waiting_app(tmp_path)

    @app.turn(version=1)
    async def wait(context: Context, turn: Turn) -> Any:
        return await context.wait_for("never")

    async def main() -> None:
        async with app:
            handle = await begun(app)
            await put_away(app, handle.run_id)
            await app.cancel_turn(ROOM, handle.run_id, "bob")
            await told(app, handle.run_id, "cancelled")

    run(main())


class Refusing:
    """Channels in memory, of which one client may not write while somebody says so."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.refuses = False

    def channel(self, session: str, client_id: str, fence: Fence | None = None) -> Channel:
        inner = self.log.channel(client_id)
        if client_id != AGENT:
            return inner
        flaky = Flaky(inner)
        flaky._do = self._do  # pyright: ignore[reportAttributeAccessIssue]
        return flaky

    async def _do(self, kind: str, write: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if self.refuses:
            raise SessionError("not allowed")
        return await write()


@SQLITE_ONLY
def test_what_cannot_be_shown_is_done_nevertheless(tmp_path: Path) -> None:
    channels = Refusing()
    app = app_on(tmp_path, channels=channels)

    async def words() -> AsyncIterator[str]:
        yield "half "
        channels.refuses = True
        yield "and all"

    @app.turn(version=1)
    async def desk(context: Context, turn: Turn) -> Any:
        return await turn.stream(words)

    async def main() -> None:
        async with app, joined(app) as client:
            sent = await client.send("hi")
            handle = await posted(app, sent)
            assert await handle.result() == "half and all"
            assert sent.run is None or sent.run.lifecycle.status == "active"
            channels.refuses = False
            assert (await sent.ended()).lifecycle.status == "complete"

    run(main())
