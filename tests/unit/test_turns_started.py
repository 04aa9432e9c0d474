from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunConflict
from perdure.engine.store import RunState
from perdure.engine.turns import turn_id
from perdure.errors import (
    InvalidFunction,
    InvalidPayload,
    InvalidSessionArgument,
    RunEnded,
    RunNotObserved,
    UnknownApproval,
    UnknownFunction,
    UnknownRun,
)
from perdure.session.channel import Draft
from perdure.session.run import SessionInvocation
from perdure.testing.manual_clock import ManualClock
from perdure.turn import Turn
from tests.harness import app_on, in_time, run
from tests.storages import SQLITE_ONLY
from tests.turning import (
    ROOM,
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
    written,
)
from tests.waiting import ticks

pytestmark = pytest.mark.usefixtures("storage")


async def word(text: str) -> AsyncIterator[str]:
    yield text


def answering(folder: Path, *functions: str, **options: Any) -> App:
    """Return an App with turns of these names, each of which says its name."""
    app = app_on(folder, **options)

    def register(name: str) -> None:
        @app.turn(version=1, name=name)
        async def answer(context: Context, turn: Turn) -> Any:
            return await turn.stream(word, f"{name}: {await turn.text()}")

    for name in functions or ("desk",):
        register(name)
    return app


def test_an_input_is_answered_once_however_often_it_is_posted(tmp_path: Path) -> None:
    async def main() -> None:
        async with answering(tmp_path) as app, joined(app) as client:
            sent = await client.send("hi")
            handles = await asyncio.gather(*(posted(app, sent) for _ in range(5)))
            assert len({handle.run_id for handle in handles}) == 1
            assert await handles[0].result() == "desk: hi"
            await settled(app)
            before = await messages(app)
            # Whoever did not hear that it was taken posts it again, long after its end.
            again = await posted(app, sent)
            assert await again.result() == "desk: hi"
            await settled(app)
            assert await messages(app) == before
            assert sent.invocation == SessionInvocation(sent.event_id, ROOM)

    run(main())


def test_the_function_is_named_where_there_are_several(tmp_path: Path) -> None:
    async def main() -> None:
        async with answering(tmp_path, "sales", "support") as app, joined(app) as client:
            sent = await client.send("hi")
            for wrong in (None, "desk"):
                with pytest.raises(UnknownFunction, match="sales, support"):
                    await posted(app, sent, function=wrong)
            handle = await posted(app, sent, function="support")
            assert await handle.result() == "support: hi"
            with pytest.raises(RunConflict):
                await posted(app, sent, function="sales")
        async with app_on(tmp_path) as app, joined(app) as client:
            sent = await client.send("hi")
            with pytest.raises(UnknownFunction, match=r"@app\.turn\(version=1\)"):
                await posted(app, sent)

    run(main())


@SQLITE_ONLY
def test_a_turn_is_declared_as_a_function_of_what_was_said(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    async def deaf(context: Context) -> None: ...

    with pytest.raises(InvalidFunction, match="takes \\(context, turn\\)"):
        app.turn(version=1)(deaf)
    with pytest.raises(InvalidFunction, match="version=1"):
        app.turn(deaf)  # pyright: ignore[reportArgumentType]


@SQLITE_ONLY
def test_an_input_that_is_not_there_is_waited_for_and_then_refused(tmp_path: Path) -> None:
    clock = ManualClock()

    async def main() -> None:
        app = answering(tmp_path, clock=clock)
        async with app.connect(), joined(app) as client:
            sent = await client.send("hi")
            for unseen in (SessionInvocation("none", ROOM), SessionInvocation(sent.event_id, "x")):
                with pytest.raises(RunNotObserved):
                    await in_time(clock, app.start_turn(unseen))
            assert await app.list() == []

    run(main())


def test_rooms_do_not_reach_into_each_other(tmp_path: Path) -> None:
    """The same event id is another input there, and a run is of one session alone."""

    async def main() -> None:
        app = answering(tmp_path)
        async with app, joined(app) as alice, joined(app, "mallory", room="cave") as mallory:
            sent = await alice.send("hi", event_id="e")
            other = await mallory.send("ho", event_id="e")
            handles = [await posted(app, sent), await posted(app, other, room="cave")]
            assert [await handle.result() for handle in handles] == ["desk: hi", "desk: ho"]
            await settled(app)
            before = await messages(app)
            foreign = {"run-id": handles[0].run_id, "event-id": "f", "codec-message-id": "f"}
            said = {"kind": "user-message", "messageId": "f", "partType": "text"}
            await written(app, "ai-input", {**foreign, "role": "user"}, said, "hm", room="cave")
            with pytest.raises(UnknownRun):
                await app.start_turn(SessionInvocation("f", "cave"))
            with pytest.raises(UnknownRun):
                await app.cancel_turn("cave", handles[0].run_id, "mallory")
            left = {"event-id": "g", "codec-message-id": "g", "supersedes": handles[0].run_id}
            await written(app, "ai-input", {**left, "role": "user"}, said, "hm", room="cave")
            with pytest.raises(UnknownRun):
                await app.start_turn(SessionInvocation("g", "cave"))
            assert len(await app.list()) == 2
            assert await messages(app) == before
            assert await names(app, "ai-cancel", room="cave") == []

    run(main())


def test_a_turn_is_started_for_an_input_of_a_session(tmp_path: Path) -> None:
    async def main() -> None:
        async with answering(tmp_path) as app:
            for value in (None, "hi", {"session": "", "event_id": "e"}, {"session": ROOM}):
                with pytest.raises(InvalidPayload, match="start_turn"):
                    await app.start("desk", value)
            assert await app.list() == []

    run(main())


def test_nobody_ends_a_run_in_its_place(tmp_path: Path) -> None:
    """Ids of messages are of their clients: what others call theirs makes no difference."""

    async def main() -> None:
        async with answering(tmp_path) as app, joined(app) as client:
            sent = await client.send("hi")
            run_id = turn_id(ROOM, sent.event_id)
            odd = Draft(message_id=f"{run_id}/ai-run-end", name="note", transport={})
            await app.channel(ROOM, "mallory").publish([odd])
            handle = await posted(app, sent)
            await handle.result()
            await settled(app)
            assert await ends(app) == {run_id: ["complete"]}

    run(main())


def test_what_nobody_asked_for_is_refused(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.turn(version=1)
    async def wait(context: Context, turn: Turn) -> Any:
        return await context.wait_for("never")

    async def main() -> None:
        async with app:
            handle = await begun(app)
            kinds = {
                "tool-approval-response": UnknownApproval,
                "tool-result": UnknownApproval,
                "regenerate": InvalidSessionArgument,
            }
            for kind, refused in kinds.items():
                about = {"run-id": handle.run_id, "event-id": kind, "codec-message-id": kind}
                codec = {"kind": kind, "toolCallId": "c", "approved": "true"}
                await written(app, "ai-input", {**about, "role": "user"}, codec)
                with pytest.raises(refused):
                    await app.start_turn(SessionInvocation(kind, ROOM))
            await app.cancel_turn(ROOM, handle.run_id, "alice")
            await settled(app)
            about = {"run-id": handle.run_id, "event-id": "late", "codec-message-id": "late"}
            said = {"kind": "user-message", "messageId": "late", "partType": "text"}
            await written(app, "ai-input", {**about, "role": "user"}, said, "hm")
            with pytest.raises(RunEnded):
                await app.start_turn(SessionInvocation("late", ROOM))
            assert await handle.status() is RunState.CANCELLED

    run(main())


@pytest.mark.parametrize("number", ["", ".2"])
@pytest.mark.parametrize("name", ["ai-input", "ai-run-suspend"])
def test_what_is_said_of_a_run_before_it_begins_does_not_keep_it_from_its_end(
    tmp_path: Path, name: str, number: str
) -> None:
    async def main() -> None:
        async with answering(tmp_path).connect() as app:
            handle = await begun(app)
            about = {"run-id": handle.run_id + number, "role": "user", "codec-message-id": "x"}
            forged = {**about, "event-id": "x", "run-reason": "error", "invocation-id": "x"}
            said = {"kind": "user-message", "messageId": "x", "partType": "text"}
            await written(app, name, forged, said, "hm")
        async with answering(tmp_path) as app:
            assert await app.handle(handle.run_id).result() == "desk: hi"
            await settled(app)
            assert await ends(app) == {handle.run_id: ["complete"]}
            (info,) = [info for info in await runs(app) if info.run_id == handle.run_id]
            assert info.lifecycle.status == "complete"
            assert shown(await view(app)) == ["desk: hi"]

    run(main())


def test_an_erased_session_is_gone_and_may_begin_anew(tmp_path: Path) -> None:
    app = answering(tmp_path)

    async def main() -> None:
        async with app:
            handle = await begun(app)
            await handle.result()
            await settled(app)
            assert await app.erase_session(ROOM, by="ada", why="asked") == [handle.run_id]
            assert await runs(app) == []
            assert shown(await view(app)) == []
            other = await begun(app, "again")
            assert await other.result() == "desk: again"
            await settled(app)
            assert await ends(app) == {other.run_id: ["complete"]}

    run(main())


@SQLITE_ONLY
def test_an_app_without_turns_looks_after_none(tmp_path: Path) -> None:
    app = app_on(tmp_path)
    looked: list[int] = []

    @app.run(version=1)
    async def work(context: Context) -> int:
        return 1

    async def look(limit: int, after: str) -> list[Any]:
        looked.append(limit)
        return []

    async def main(app: App, *, looks: bool) -> None:
        async with app:
            app.store.ended_turns = look  # pyright: ignore[reportAttributeAccessIssue]
            await ticks(app, 5)
            assert bool(looked) == looks

    run(main(app, looks=False))
    run(main(answering(tmp_path), looks=True))
