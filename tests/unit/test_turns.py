from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunFailed
from perdure.errors import InvalidFunction, InvalidPayload, NotInRun, OperationFailed
from perdure.session.attempts import StepStatus
from perdure.turn import Turn
from tests.harness import Pause, app_on, attempts, run
from tests.storages import SQLITE_ONLY
from tests.turning import (
    ROOM,
    Watcher,
    asked,
    begun,
    ends,
    joined,
    messages,
    names,
    never_doubled,
    posted,
    runs,
    settled,
    shown,
    view,
)

pytestmark = pytest.mark.usefixtures("storage")

ANSWER = "You said hi"


async def answer(text: str) -> AsyncIterator[str]:
    for word in ("You", " said ", text):
        yield word
        await asyncio.sleep(0)


def echo(app: App) -> App:
    """Register a turn that says what was said."""

    @app.turn(version=1)
    async def echo(context: Context, turn: Turn) -> Any:
        del context
        return await turn.stream(answer, await turn.text())

    return app


def broken_off(folder: Path, pause: Pause, **options: Any) -> App:
    """Return an App whose turn streams up to a pause, and in the next execution all of it."""
    app = app_on(folder, **options)

    async def words() -> AsyncIterator[str]:
        yield "You"
        yield " said " if pause.open else " were"
        await pause()
        yield "hi"

    @app.turn(version=1)
    async def echo(context: Context, turn: Turn) -> Any:
        del context
        return await turn.stream(words)

    return app


@pytest.mark.parametrize("memory", [False, True])
def test_what_is_shown_is_what_is_returned(tmp_path: Path, memory: bool) -> None:
    app = echo(App("memory:") if memory else app_on(tmp_path))

    async def main() -> None:
        async with app:
            watcher = Watcher()
            watching = asyncio.create_task(watcher.until(app))
            handle = await begun(app)
            assert await handle.result() == ANSWER
            await watching
            never_doubled(watcher, ANSWER)
            (info,) = await runs(app)
            assert (info.run_id, info.client_id) == (handle.run_id, "alice")
            assert [step.attempt_count for step in info.steps] == [1]
            assert (await app.rehearse(handle.run_id)).verdict == "matches"
            assert await asked(app, "more") == "You said more"
            assert shown(await view(app)) == [ANSWER, "You said more"]
            assert list((await ends(app)).values()) == [["complete"]] * 2

    run(main())


def test_chunks_are_shown_as_they_are_and_other_things_are_refused(tmp_path: Path) -> None:
    app = app_on(tmp_path)
    data = {"type": "data-chart", "id": "c", "data": [1, 2]}

    async def chunks(bad: bool) -> AsyncIterator[Any]:
        yield "See: "
        yield data
        if bad:
            yield 7

    @app.turn(version=1)
    async def draw(context: Context, turn: Turn) -> Any:
        return await turn.stream(chunks, await turn.text() == "bad")

    async def main() -> None:
        async with app:
            assert await asked(app) == ["See: ", data]
            parts = (await view(app)).view.messages[-1].message["parts"]
            assert parts == [{"type": "step-start"}, {"type": "text", "text": "See: "}, data]
            handle = await begun(app, "bad")
            with pytest.raises(RunFailed) as caught:
                await handle.result()
            assert InvalidPayload.__name__ in str(caught.value.args)
            await settled(app)
            assert (await runs(app))[-1].steps[0].status is StepStatus.FAILED

    run(main())


def test_an_execution_that_was_cut_short_is_superseded_by_the_next(tmp_path: Path) -> None:
    """T49 (a): the next process replaces what this one had streamed, for whoever watches."""
    pause, watcher = Pause(), Watcher()

    async def main() -> None:
        async with broken_off(tmp_path, pause) as app:
            handle = await begun(app)
            await pause.reached.wait()
            await watcher.until_shown(app, "You were")
        pause.open = True
        async with broken_off(tmp_path, pause) as app:
            watching = asyncio.create_task(watcher.until(app))
            assert await app.handle(handle.run_id).result() == ANSWER
            await watching
            (info,) = await runs(app)
            assert [(s.attempt_count, s.status) for s in info.steps] == [(2, StepStatus.COMPLETE)]
            late = Watcher()
            await late.until(app)
            assert watcher.texts == late.texts == shown(await view(app)) == [ANSWER]
            assert all(len(texts) <= 1 for texts in watcher.seen)
            # The dead attempt was on the screen, and was wiped before anything new was.
            assert watcher.seen[watcher.seen.index(["You were"]) + 1] == []
            assert await ends(app) == {handle.run_id: ["complete"]}

    run(main())


def test_an_empty_second_attempt_wipes_the_first(tmp_path: Path) -> None:
    """T49 (b): the step is blank from its second start on, until something is put out."""
    pause, again = Pause(), Pause()
    app = app_on(tmp_path)

    async def words() -> AsyncIterator[str]:
        if pause.open:
            await again()
        yield "half"
        await pause()

    @app.turn(version=1)
    async def stutter(context: Context, turn: Turn) -> Any:
        return await turn.stream(words)

    async def main() -> None:
        watcher = Watcher()
        async with app:
            await begun(app)
            await watcher.until_shown(app, "half")
        pause.open = True
        async with app:
            await again.reached.wait()
            assert shown(await view(app)) == []
        again.open = True
        async with app:
            await watcher.until(app)
            never_doubled(watcher, "half")
            assert (await runs(app))[0].steps[0].attempt_count == 3

    run(main())


def test_a_replay_publishes_nothing_again(tmp_path: Path) -> None:
    pause = Pause()
    app = app_on(tmp_path)

    @app.turn(version=1)
    async def twice(context: Context, turn: Turn) -> Any:
        said = [await turn.stream(answer, "one"), await turn.stream(answer, "two")]
        await context.call(fetch)
        await pause()
        return said

    async def fetch() -> str:
        return "x"

    async def main() -> None:
        async with app:
            handle = await begun(app)
            await pause.reached.wait()
            before = await messages(app)
        pause.open = True
        async with app:
            assert await app.handle(handle.run_id).result() == ["You said one", "You said two"]
            await settled(app)
            after = await messages(app)
            assert after[: len(before)] == before
            assert [each.name for each in after[len(before) :]] == ["ai-run-end"]
        assert len(await attempts(app, handle.run_id)) == 2

    run(main())


def test_what_is_to_be_answered_has_nothing_of_what_was_shown(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.turn(version=1)
    async def echo(context: Context, turn: Turn) -> Any:
        del context
        await turn.stream(answer, "so far")
        return [await turn.text(), [one["role"] for one in await turn.messages()]]

    async def main() -> None:
        async with app, joined(app) as client:
            for number in range(2):
                roles = ["user", "assistant"] * number + ["user"]
                assert await asked(app, f"hi {number}") == [f"hi {number}", roles]
            answered = client.view.messages[-1].codec_message_id
            again = await client.regenerate(answered)
            assert (await (await posted(app, again)).result())[0] == "hi 1"

    run(main())


def test_what_was_half_done_is_no_part_of_the_next_conversation(tmp_path: Path) -> None:
    """T50: what another turn said is there once, under the same id, however often it is read."""
    pause = Pause()
    app = app_on(tmp_path)
    heard: list[list[tuple[str, str]]] = []

    @app.turn(version=1)
    async def listen(context: Context, turn: Turn) -> Any:
        said = await turn.messages()
        heard.append([(m["id"], m["parts"][-1]["text"]) for m in said])
        if len(said) > 1:
            await pause()
        return await turn.stream(answer, await turn.text())

    async def main() -> None:
        async with app:
            await asked(app, "one")
            handle = await begun(app, "two")
            await pause.reached.wait()
        pause.open = True
        async with app:
            await app.handle(handle.run_id).result()
            await settled(app)
            (first,), (*_, last), again = heard
            assert again == heard[1]
            assert [text for _, text in again] == ["one", "You said one", "two"]
            assert first == again[0]
            shown_now = [(m.message["id"], m.message) for m in (await view(app)).view.messages]
            assert [key for key, _ in shown_now[:3]] == [key for key, _ in again]
            assert last == again[-1]
            assert len(shown_now) == 4

    run(main())


def test_what_is_streamed_inside_of_an_operation_is_part_of_that(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.turn(version=1)
    async def outer(context: Context, turn: Turn) -> Any:
        async def inside() -> str:
            return await turn.stream(answer, "deep")

        async def around() -> AsyncIterator[str]:
            yield "around: "
            yield await turn.stream(answer, "deeper")

        return [await context.call(inside), await turn.stream(around)]

    async def main() -> None:
        async with app:
            assert await asked(app) == ["You said deep", "around: You said deeper"]
            assert shown(await view(app)) == ["around: You said deeper"]
            (info,) = await runs(app)
            assert (await app.rehearse(info.run_id)).verdict == "matches"

    run(main())


def test_branches_take_turns(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.turn(version=1)
    async def both(context: Context, turn: Turn) -> Any:
        async def one(branch: Context, name: str) -> Any:
            branch.enter()
            return await turn.stream(answer, name)

        branches = [context.branch(name) for name in "ab"]
        return await asyncio.gather(*map(one, branches, "ab"))

    async def main() -> None:
        async with app:
            assert await asked(app) == ["You said a", "You said b"]
            assert sorted(shown(await view(app))) == ["You said a", "You said b"]
            wanted = ["ai-step-start", "ai-step-end"]
            assert await names(app, *wanted) == wanted * 2

    run(main())


def test_a_run_that_nobody_watches_streams_unseen_and_has_nothing_to_read(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def alone(context: Context) -> Any:
        turn = Turn(context, ROOM, "e")
        made = await turn.stream(answer, "hi")
        with pytest.raises(OperationFailed, match=NotInRun.__name__):
            await turn.messages()
        return made

    async def main() -> None:
        async with app:
            assert await (await app.start(alone)).result() == "You said hi"
            assert await names(app) == []

    run(main())


def test_a_text_that_is_only_returned_is_shown(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.turn(version=1)
    async def plain(context: Context, turn: Turn) -> str:
        return f"Just so: {await turn.text()}"

    async def main() -> None:
        async with app:
            assert await asked(app, "hi") == "Just so: hi"
            assert await asked(app, "again") == "Just so: again"
            assert shown(await view(app)) == ["Just so: hi", "Just so: again"]

    run(main())


def test_what_is_streamed_is_made_by_a_function(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @app.turn(version=1)
    async def odd(context: Context, turn: Turn) -> Any:
        with pytest.raises(InvalidFunction, match=r"turn.stream\(words, text\)"):
            await turn.stream("text")  # type: ignore[arg-type]

    async def main() -> None:
        async with app:
            assert await asked(app) is None

    run(main())


@SQLITE_ONLY
def test_several_people_and_rooms_are_apart(tmp_path: Path) -> None:
    app = echo(app_on(tmp_path))

    async def main() -> None:
        async with app, joined(app) as alice, joined(app, "bob") as bob:
            sent = [await alice.send("from alice"), await bob.send("from bob", parent="")]
            handles = [await posted(app, each) for each in sent]
            found = [await handle.result() for handle in handles]
            assert found == ["You said from alice", "You said from bob"]
            assert await asked(app, "there", room="other") == "You said there"
            await settled(app)
            assert {info.client_id for info in await runs(app)} == {"alice", "bob"}
            assert len(await runs(app, "other")) == 1

    run(main())
