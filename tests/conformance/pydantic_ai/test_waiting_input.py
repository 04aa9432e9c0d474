"""Whoever else answers an agent's calls, and who is asked for that: once, and first."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.capabilities import HandleDeferredToolCalls, RequestInput
from pydantic_ai.tools import ToolDenied

from perdure import Context
from perdure.approvals import Approve, Result
from perdure.errors import MessageConflict, RunFailed
from perdure.functions import operation
from perdure.testing.manual_clock import ManualClock
from perdure.testing.scripted import Call
from tests.conformance.pydantic_ai.desk import Desk, asked
from tests.harness import RUN, run
from tests.waiting import later, put_away, waiting_app


def test_whoever_else_answers_is_asked_first(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    async def decide(
        ctx: RunContext[None], requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        return DeferredToolResults(approvals={requests.approvals[0].tool_call_id: ToolDenied("no")})

    async def scenario() -> list[str]:
        async with desk.app(HandleDeferredToolCalls(handler=decide)) as app:
            handle = await app.start("turn", run_id=RUN)
            assert sorted(await asked(app, 2)) == ["3", "4"]
            await app.resolve(RUN, "3", Approve(), by="ada")
            await app.resolve(RUN, "4", Result("shipped"), by="depot")
            return await handle.result()

    assert run(scenario()) == ["looked 2", "no", "refunded 3", "shipped"]


class Asker:
    """Hands the token of a wait to whoever will answer, and counts how often."""

    def __init__(self, answer: DeferredToolResults | None = None) -> None:
        self.tokens: list[str] = []
        self.answer = answer

    async def __call__(
        self, ctx: RunContext[None], requests: DeferredToolRequests, token: str
    ) -> DeferredToolResults | None:
        self.tokens.append(token)
        return self.answer


@pytest.mark.parametrize("how", ["resolve", "fail", "timeout", "at once"])
def test_the_sdks_request_for_input_waits_in_rows_and_asks_once(tmp_path: Path, how: str) -> None:
    clock = ManualClock()
    desk = Desk(tmp_path, Call("refund", {"order": 1}, "c-1"), clock=clock)
    ask = Asker(DeferredToolResults(approvals={"c-1": True}) if how == "at once" else None)
    limit = timedelta(minutes=10)

    async def scenario() -> list[str]:
        async with desk.app(RequestInput(ask=ask, timeout=limit)) as app:
            handle = await app.start("turn", run_id=RUN)
            if how == "at once":
                return await handle.result()
            await put_away(app)
            assert await app.approvals() == []
        async with desk.app(RequestInput(ask=ask, timeout=limit)) as app:
            (token,) = ask.tokens
            match how:
                case "resolve":
                    payload = {"approvals": {"c-1": True}}
                    for _ in range(2):
                        await app.resolve_event(token, payload, by="ada")
                    with pytest.raises(MessageConflict):
                        await app.fail_event(token, "no")
                case "fail":
                    await app.fail_event(token, "nobody is there")
                case _:
                    await later(app, clock, 601)
            return await app.handle(RUN).result()

    arrived = "No decision on this tool call arrived: "
    assert run(scenario()) == [
        {
            "resolve": "refunded 1",
            "at once": "refunded 1",
            "fail": f"{arrived}nobody is there",
            "timeout": f"{arrived}No resolution arrived within 0:10:00.",
        }[how]
    ]
    assert len(ask.tokens) == 1


def test_an_agent_inside_a_tool_asks_nobody_for_input_that_it_cannot_wait_for(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path, Call("refund", {"order": 1}))
    ask = Asker()

    async def scenario() -> Any:
        app = waiting_app(tmp_path)
        inner = desk.agent(RequestInput(ask=ask))

        @operation(read_only=True)
        async def delegate() -> str:
            return (await inner.run("Go.")).output

        @app.run(version=1)
        async def turn(context: Context) -> str:
            return await context.call(delegate)

        async with app:
            with pytest.raises(RunFailed, match="inside of a tool"):
                await (await app.start(turn)).result()

    run(scenario())
    assert ask.tokens == []


def test_an_event_that_fails_for_no_reason_fails(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Call("refund", {"order": 1}, "c-1"))
    ask = Asker()

    async def scenario() -> list[str]:
        async with desk.app(RequestInput(ask=ask)) as app:
            handle = await app.start("turn", run_id=RUN)
            await put_away(app)
            await app.fail_event(ask.tokens[0], "")
            return await handle.result()

    assert run(scenario())[0].startswith("No decision")
