from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import AgentStreamEvent
from pydantic_ai.tools import RunContext

from perdure import Context, RetryPolicy, RunFailed
from perdure.adapters.pydantic_ai import Durable, history_of
from perdure.testing.scripted import Call, Reply, Request, ScriptedModel, Trouble
from perdure.turn import Turn
from tests.answering import ANSWER, Support
from tests.harness import app_on, run
from tests.turning import (
    Watcher,
    asked,
    begun,
    ends,
    names,
    never_doubled,
    runs,
    settled,
    shown,
    tools,
    view,
)

pytestmark = pytest.mark.usefixtures("storage")


def test_what_an_agent_streams_and_does_is_shown(tmp_path: Path) -> None:
    script = [
        Reply(
            thinking="Hm.", text="Let me see. ", calls=[Call("look", {"order": n}) for n in (7, 8)]
        ),
        Reply(text=ANSWER),
    ]

    async def main() -> None:
        desk = Support(tmp_path, script)
        async with desk.app as app:
            watcher = Watcher()
            watching = asyncio.create_task(watcher.until(app))
            assert await asked(app) == ANSWER
            await watching
            assert watcher.texts == shown(await view(app)) == ["Hm.Let me see. ", ANSWER]
            available = "output-available"
            assert tools(watcher.reader) == [
                ("call-1-1", available, "order 7 was late"),
                ("call-1-2", available, "order 8 was late"),
            ]
            assert all(request.streamed for request in desk.requests)
            (info,) = await runs(app)
            assert {step.attempt_count for step in info.steps} == {1}
            assert (await app.rehearse(info.run_id)).verdict == "matches"
            assert await asked(app, "and now?") == ANSWER
            assert desk.heard() == ["hi", "and now?"]
            # What tools came to is part of the conversation, too.
            parts = [p.part_kind for m in desk.requests[-1].messages for p in m.parts]
            assert parts.count("tool-return") == 2

    run(main())


def test_a_stream_that_fails_is_replaced_by_its_retry(tmp_path: Path) -> None:
    """T48: a live, a late and a reconnecting reader see the answer, and none sees both attempts."""
    trouble = Trouble(ModelHTTPError(500, "gone"), after_chunks=3)
    live, gone = Watcher(), Watcher()

    async def main() -> None:
        desk = Support(
            tmp_path,
            [Reply(text=ANSWER, troubles=[trouble])],
            durable={"retry": RetryPolicy(initial_seconds=0)},
        )
        async with desk.app as app:
            watching = asyncio.create_task(live.until(app))
            leaving = asyncio.create_task(gone.until_shown(app, ANSWER[:12]))
            assert await asked(app) == ANSWER
            await asyncio.gather(watching, leaving)
            await gone.until(app)
            late = Watcher()
            await late.until(app)
            for watcher in (live, gone, late):
                never_doubled(watcher, ANSWER)
            assert live.was_wiped()
            (info,) = await runs(app)
            assert [step.attempt_count for step in info.steps] == [2]

    run(main())


def test_a_model_that_fails_for_good_ends_the_run_in_an_error(tmp_path: Path) -> None:
    troubles = [Trouble(ModelHTTPError(500, "1234"), after_chunks=2) for _ in range(2)]

    async def main() -> None:
        policy = RetryPolicy(initial_seconds=0, attempts=2)
        desk = Support(tmp_path, [Reply(text=ANSWER, troubles=troubles)], durable={"retry": policy})
        async with desk.app as app:
            handle = await begun(app)
            with pytest.raises(RunFailed):
                await handle.result()
            await settled(app)
            assert await ends(app) == {handle.run_id: ["error"]}
            (info,) = await runs(app)
            assert info.lifecycle.fault is not None
            assert "1234" not in info.lifecycle.fault.message
            assert [(s.attempt_count, s.status) for s in info.steps] == [(2, "failed")]

    run(main())


def test_a_stream_that_was_cut_short_goes_on_in_another_process(tmp_path: Path) -> None:
    reached = asyncio.Event()
    live = Watcher()

    def stop(request: Request, number: int) -> bool:
        if number == 2 and request.number == 2:
            reached.set()
        return reached.is_set()

    async def main() -> None:
        script = [Reply(calls=[Call("look", {"order": 7})]), Reply(text=ANSWER)]
        desk = Support(tmp_path, script, hangs=stop)
        async with desk.app as app:
            handle = await begun(app)
            await reached.wait()
            await live.until_shown(app, ANSWER[:12])
        again = Support(tmp_path, script)
        async with again.app as app:
            assert await app.handle(handle.run_id).result() == ANSWER
            await live.until(app)
            never_doubled(live, ANSWER)
            assert (desk.calls, again.calls) == (["look 7"], [])
            (info,) = await runs(app)
            assert [step.attempt_count for step in info.steps] == [1, 1, 2]

    run(main())


def test_an_agent_inside_of_a_tool_is_not_shown_and_branches_take_turns(tmp_path: Path) -> None:
    async def main() -> None:
        app = app_on(tmp_path)
        inner = Agent(ScriptedModel(["secret"]), name="inner", capabilities=[Durable()])
        outer = Agent(
            ScriptedModel([Reply(calls=[Call("ask", {})]), "done"]),
            name="outer",
            capabilities=[Durable()],
        )
        twins = [
            Agent(ScriptedModel([f"I am {n}, and not the other"]), name=n, capabilities=[Durable()])
            for n in ("law", "tax")
        ]

        @outer.tool_plain
        async def ask() -> str:
            return (await inner.run("q")).output

        @app.turn(version=1)
        async def work(context: Context, turn: Turn) -> Any:
            async def one(branch: Context, agent: Agent[None, str]) -> str:
                branch.enter()
                return (await agent.run("q")).output

            text = (await outer.run(message_history=await history_of(turn))).output
            branches = [context.branch("a"), context.branch("b")]
            return [text, *await asyncio.gather(*map(one, branches, twins))]

        async with app:
            answers = await asked(app)
            assert answers == ["done", "I am law, and not the other", "I am tax, and not the other"]
            texts = shown(await view(app))
            assert sorted(texts) == sorted(answers)
            steps = await names(app, "ai-step-start", "ai-step-end")
            assert steps == ["ai-step-start", "ai-step-end"] * (len(steps) // 2)

    run(main())


class Verdict(BaseModel):
    """What is decided."""

    refund: bool


def test_structured_output_and_a_handler_of_the_user_are_served(tmp_path: Path) -> None:
    seen: list[str] = []

    async def note(ctx: RunContext[Any], stream: AsyncIterable[AgentStreamEvent]) -> None:
        seen.extend([event.event_kind async for event in stream])

    script = [
        Reply(text="Hm. ", calls=[Call("look", {"order": 7})]),
        Reply(calls=[Call("final_result", {"refund": True})]),
    ]

    async def main() -> None:
        given = {"output": Verdict, "types": [Verdict], "durable": {"event_stream_handler": note}}
        desk = Support(tmp_path, script, **given)
        async with desk.app as app:
            assert await asked(app) == Verdict(refund=True)
            assert shown(await view(app)) == ["Hm. "]
            assert [call for call, *_ in tools(await view(app))] == ["call-1-1", "call-2-1"]
        alone = Support(tmp_path, script, **given)
        in_session, seen[:] = [*seen], []

        @alone.app.run(version=1)
        async def unseen(context: Context) -> Any:
            return (await alone.agent.run("hi")).output

        async with alone.app as app:
            await (await app.start(unseen)).result()
        assert seen == in_session

    run(main())


def test_a_run_can_be_forked_and_taken_elsewhere(tmp_path: Path) -> None:
    script = [Reply(text="See. ", calls=[Call("look", {"order": 7})]), Reply(text=ANSWER)]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    async def main() -> None:
        desk = Support(tmp_path, script)
        async with desk.app as app:
            handle = await begun(app)
            await handle.result()
            await settled(app)
            forked = await app.fork(handle.run_id, "model.stream/2", new_id="fork")
            assert await forked.result() == ANSWER
            await settled(app)
            # What somebody tries out is not seen by the people who were answered.
            assert await ends(app) == {handle.run_id: ["complete"]}
            assert shown(await view(app)) == ["See. ", ANSWER]
            assert len(desk.requests) == 3
            archive = await app.export(handle.run_id)
        other = Support(elsewhere, script)
        async with other.app as app:
            await app.import_run(archive)
            assert await app.handle(handle.run_id).result() == ANSWER
            assert (await app.rehearse(handle.run_id)).verdict == "matches"
            assert await names(app) == []
            assert json.loads(archive)

    run(main())
