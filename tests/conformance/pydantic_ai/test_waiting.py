"""Agents whose calls wait for people and for systems outside: asked once, answered once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests

from perdure import App, Context, OperationIdentity, RunState, effect
from perdure.adapters.pydantic_ai import Durable
from perdure.approvals import ApprovalKind, Approve, Deny, Result
from perdure.errors import AlreadyResolved, RunFailed
from perdure.functions import operation
from perdure.testing.manual_clock import ManualClock
from perdure.testing.scripted import Call, Reply, ScriptedModel
from tests.conformance.pydantic_ai.desk import FOUR, Desk, asked, told
from tests.harness import RUN, keys, run
from tests.waiting import later, put_away, stands, ticks, waiting_app


def test_two_of_three_calls_and_one_made_elsewhere_are_answered_by_different_processes(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)

    async def scenario() -> list[str]:
        async with desk.app() as app:
            await app.start("turn", run_id=RUN)
            items = await asked(app, 3)
            await put_away(app)
            said = {
                item: (each.name, each.kind, each.arguments_json) for item, each in items.items()
            }
            assert said == {
                "1": ("refund", ApprovalKind.APPROVAL, b'{"order":1}'),
                "3": ("refund", ApprovalKind.APPROVAL, b'{"order":3}'),
                "4": ("ship", ApprovalKind.EXTERNAL, b'{"order":4}'),
            }
        answers = {
            "4": Result({"parcel": 7}),
            "1": Deny("not this one"),
            "3": Approve({"order": 33}),
        }
        for item, answer in answers.items():
            # Partial answers wait for the rest, in whichever order and process they come.
            async with desk.app() as app:
                assert desk.done == {"request": 1, "look 2": 1}
                await app.resolve(RUN, item, answer, by="ada", expect_digest=items[item].digest)
                with pytest.raises(AlreadyResolved) as lost:
                    await app.resolve(RUN, item, Deny(), by="bob")
                assert (lost.value.winner, lost.value.by) == (answer, "ada")
                if item == "3":
                    return await app.handle(RUN).result()
                await ticks(app)
                await put_away(app)
        raise AssertionError

    assert run(scenario()) == ["looked 2", "not this one", "refunded 33", "{'parcel': 7}"]
    assert desk.done == {"request": 2, "look 2": 1, "refund 33": 1}
    places = [
        place for place in run(keys(desk.app())) if place[0] in ("approval.resume", "tool.call")
    ]
    assert sorted(places) == [
        ("approval.resume", 1),
        ("approval.resume", 3),
        ("approval.resume", 4),
        ("tool.call", 2),
        ("tool.call", 3),
    ]


def test_a_denial_without_a_reason_says_so(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Call("refund", {"order": 1}))

    async def scenario() -> list[str]:
        async with desk.app() as app:
            handle = await app.start("turn", run_id=RUN)
            await asked(app, 1)
            await app.resolve(RUN, "1", Deny(), by="ada")
            return await handle.result()

    assert run(scenario()) == ["The tool call was denied."]
    assert desk.done == {"request": 2}


@pytest.mark.parametrize("answer", [Deny("no"), Result("gone", is_error=True)], ids=repr)
def test_a_call_that_is_made_elsewhere_may_fail(tmp_path: Path, answer: Any) -> None:
    desk = Desk(tmp_path, Call("ship"))

    async def scenario() -> list[str]:
        async with desk.app() as app:
            handle = await app.start("turn", run_id=RUN)
            await asked(app, 1)
            await app.resolve(RUN, "1", answer, by="ada")
            return await handle.result()

    (said,) = run(scenario())
    assert said == (answer.message if isinstance(answer, Deny) else answer.value)


def test_a_tool_that_asks_in_its_body_is_called_again_once_it_is_approved(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Call("careful", {"order": 1}), Call("look", {"order": 2}))

    async def scenario() -> list[str]:
        async with desk.app() as app:
            await app.start("turn", run_id=RUN)
            await asked(app, 1)
            await put_away(app)
        async with desk.app() as app:
            await app.resolve(RUN, "1", Approve(), by="ada")
            return await app.handle(RUN).result()

    assert run(scenario()) == ["looked 2", "was careful 1"]
    assert desk.done == {"request": 2, "careful 1": 2, "look 2": 1}


def test_nobody_answers_in_time(tmp_path: Path) -> None:
    clock = ManualClock()
    desk = Desk(tmp_path, *FOUR[2:], clock=clock)

    async def scenario() -> list[str]:
        async with desk.app(durable={"answer_seconds": 600}) as app:
            handle = await app.start("turn", run_id=RUN)
            await asked(app, 2)
            await put_away(app)
            await later(app, clock, 601)
            return await handle.result()

    why = "No decision on this tool call arrived: nobody answered '{}' in 600 s."
    assert run(scenario()) == [why.format("refund"), why.format("ship")]
    assert desk.done == {"request": 2}


@pytest.mark.parametrize("durable", [{}, {"wait_for_answers": False}], ids=repr)
def test_an_agent_that_does_not_wait_ends_with_what_it_asks_for(
    tmp_path: Path, durable: dict[str, Any]
) -> None:
    """It does not by default where it can say so."""
    desk = Desk(tmp_path)

    async def scenario() -> list[str]:
        options: dict[str, Any] = {
            "durable": durable,
            "output_type": [str, DeferredToolRequests],
        }
        async with desk.app(**options) as app:
            return await (await app.start("turn", run_id=RUN)).result()

    assert run(scenario()) == ["deferred 2"]


def test_an_agent_that_could_say_so_waits_where_it_is_to(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Call("refund", {"order": 1}))

    async def scenario() -> list[str]:
        options: dict[str, Any] = {
            "durable": {"wait_for_answers": True},
            "output_type": [str, DeferredToolRequests],
        }
        async with desk.app(**options) as app:
            handle = await app.start("turn", run_id=RUN)
            await asked(app, 1)
            await app.resolve(RUN, "1", Approve(), by="ada")
            return await handle.result()

    assert run(scenario()) == ["refunded 1"]


def test_an_agent_inside_a_tool_does_not_wait(tmp_path: Path) -> None:
    """It would hold its worker; it ends with what it asks for, and says that it must be able to."""
    desk = Desk(tmp_path, Call("refund", {"order": 1}))

    def made(**options: Any) -> App:
        app = waiting_app(tmp_path)
        inner = desk.agent(**options)
        outer = Agent(
            ScriptedModel([Reply(calls=[Call("delegate")]), "Done."]),
            name="outer",
            capabilities=[Durable()],
        )

        @outer.tool_plain
        @operation(read_only=True)
        async def delegate() -> str:
            result = await inner.run("Go.")
            return type(result.output).__name__

        @app.run(version=1, name="turn")
        async def turn(context: Context) -> list[str]:
            return told((await outer.run("Go.")).all_messages())

        return app

    async def scenario(run_id: str, **options: Any) -> list[str]:
        async with made(**options) as app:
            return await (await app.start("turn", run_id=run_id)).result()

    assert run(scenario("able", output_type=[str, DeferredToolRequests])) == [
        "DeferredToolRequests"
    ]
    with pytest.raises(RunFailed, match="DeferredToolRequests"):
        run(scenario("unable"))
    assert desk.done["refund 1"] == 0


def test_agents_in_branches_and_turns_ask_under_ids_of_their_own(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Call("refund", {"order": 1}))

    def made() -> App:
        app = waiting_app(tmp_path)
        agent = desk.agent()

        async def turn(branch: Context) -> list[str]:
            branch.enter()
            return told((await agent.run("Go.")).all_messages())

        @app.run(version=1, name="turn")
        async def turns(context: Context) -> list[list[str]]:
            branches = [context.branch("law"), context.branch("tax")]
            both = await asyncio.gather(*(turn(branch) for branch in branches))
            return [*both, await turn(context), await turn(context)]

        return app

    async def scenario() -> tuple[list[str], list[list[str]]]:
        ids: list[str] = []
        async with made() as app:
            handle = await app.start("turn", run_id=RUN)
            for count in (2, 1, 1):
                items = await asked(app, count)
                for item in reversed(items):
                    await app.resolve(RUN, item, Deny(item), by="ada")
                ids += items
            return ids, await handle.result()

    ids, result = run(scenario())
    assert ids == ["branch.law.1.1", "branch.tax.1.1", "1", "agent.2.1"]
    assert result == [[each] for each in ids]


def test_an_approved_call_that_is_cut_short_is_settled_and_not_made_again(tmp_path: Path) -> None:
    """T28: the approval was given to one call, and a person says what became of that."""
    desk = Desk(tmp_path, Call("refund", {"order": 1}))
    acting = asyncio.Event()

    async def stuck(order: int) -> str:
        desk.done["refund"] += 1
        acting.set()
        await asyncio.Event().wait()
        return "never"

    def made() -> App:
        app = waiting_app(tmp_path)
        agent = Agent[None, str](
            ScriptedModel([Reply(calls=[Call("refund", {"order": 1})]), "Done."]),
            name="desk",
            capabilities=[Durable()],
        )
        agent.tool_plain(requires_approval=True, name="refund")(stuck)

        @app.run(version=1, name="turn")
        async def turn(context: Context) -> list[str]:
            return told((await agent.run("Go.")).all_messages())

        return app

    async def scenario() -> list[Any]:
        async with made() as app:
            await app.start("turn", run_id=RUN)
            await asked(app, 1)
            await app.resolve(RUN, "1", Approve(), by="ada")
            await acting.wait()
        async with made() as app:
            states: list[Any] = [await stands(app, RunState.NEEDS_ATTENTION)]
            with pytest.raises(AlreadyResolved):
                await app.resolve(RUN, "1", Approve(), by="ada")
            (item,) = await app.approvals(RUN, open_only=False)
            return [*states, item.answered_by, desk.done["refund"]]

    assert run(scenario()) == [RunState.NEEDS_ATTENTION, "ada", 1]


def test_an_approved_call_that_a_target_drops_repeats_of_is_sent_again_under_its_key(
    tmp_path: Path,
) -> None:
    """T28: where the second attempt settles the first one, nobody is asked again."""
    keys_sent: list[str] = []
    acting = asyncio.Event()

    @effect(support="idempotent")
    async def refund(order: int, operation: OperationIdentity) -> str:
        keys_sent.append(operation.operation_key)
        if len(keys_sent) == 1:
            acting.set()
            await asyncio.Event().wait()
        return f"refunded {order}"

    def made() -> App:
        app = waiting_app(tmp_path)
        agent = Agent[None, str](
            ScriptedModel([Reply(calls=[Call("refund", {"order": 1})]), "Done."]),
            name="desk",
            capabilities=[Durable()],
        )
        agent.tool_plain(requires_approval=True)(refund)

        @app.run(version=1, name="turn")
        async def turn(context: Context) -> list[str]:
            return told((await agent.run("Go.")).all_messages())

        return app

    async def scenario() -> list[str]:
        async with made() as app:
            await app.start("turn", run_id=RUN)
            await asked(app, 1)
            await app.resolve(RUN, "1", Approve(), by="ada")
            await acting.wait()
        async with made() as app:
            result = await app.handle(RUN).result()
            assert len(await app.approvals(RUN, open_only=False)) == 1
            return result

    assert run(scenario()) == ["refunded 1"]
    assert len(keys_sent) == 2
    assert len({*keys_sent}) == 1


def test_a_streaming_agent_shows_each_call_once(tmp_path: Path) -> None:
    """T59: asked for, answered, begun and ended, once for each call, over all restarts."""
    desk = Desk(tmp_path)
    options = {"durable": {"event_stream_handler": desk.see}}

    async def scenario() -> list[str]:
        async with desk.app(**options) as app:
            await app.start("turn", run_id=RUN)
            await asked(app, 3)
            await put_away(app)
        for item, answer in (("1", Approve()), ("3", Deny("no")), ("4", Result("shipped"))):
            async with desk.app(**options) as app:
                await app.resolve(RUN, item, answer, by="ada")
                await ticks(app)
                await stands(app, RunState.SUSPENDED, RunState.COMPLETED)
        async with desk.app(**options) as app:
            return await app.handle(RUN).result()

    assert run(scenario()) == ["looked 2", "refunded 1", "no", "shipped"]
    assert desk.done == {"request": 2, "look 2": 1, "refund 1": 1}
    shown = Counter(event.event_kind for event in desk.seen)
    assert shown["function_tool_call"] == 4
    assert shown["function_tool_result"] == 4
    assert shown["deferred_tool_requests"] == 1
    assert shown["deferred_tool_results"] == 1
