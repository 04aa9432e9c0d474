"""What the code of a run asks people for, and the one answer that wins."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, RunState
from perdure.approvals import Answer, Approval, ApprovalKind, Approve, Deny, Result
from perdure.errors import (
    AlreadyResolved,
    ApprovalChanged,
    ApprovalClosed,
    InvalidPayload,
    UnknownApproval,
    WaitTimedOut,
)
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, app_on, keys, run
from tests.waiting import later, put_away, stands, waiting_app

pytestmark = pytest.mark.usefixtures("storage")


def asking(folder: Path, **options: Any) -> App:
    """Return an App whose one function asks for a payment and returns the answer."""
    app = waiting_app(folder, **options)

    @app.run(version=1)
    async def pay(context: Context, seconds: float | None) -> tuple[str, Any]:
        try:
            answer = await context.approval("pay", {"cents": 5}, timeout_seconds=seconds)
        except WaitTimedOut as late:
            return "late", str(late)
        return type(answer).__name__, answer

    return app


async def asked(app: App, run_id: str = RUN) -> Approval:
    """Return what a run asks for, as soon as it does."""
    while not (found := await app.approvals(run_id)):
        await asyncio.sleep(0)
    return found[0]


@pytest.mark.parametrize(
    "answer",
    [Approve(), Approve({"cents": 4}), Deny("too much"), Deny()],
    ids=repr,
)
def test_an_answer_from_another_app_reaches_the_run(tmp_path: Path, answer: Answer) -> None:
    async def scenario() -> tuple[Approval, Approval, Any]:
        app, person = asking(tmp_path, types=[Approve, Deny, Result]), app_on(tmp_path)
        async with app, person.connect():
            handle = await app.start("pay", None, run_id=RUN)
            await put_away(app)
            (item,) = await person.approvals()
            told = await person.resolve(
                RUN, item.item_id, answer, by="ada", expect_digest=item.digest
            )
            result = await handle.result()
            assert await person.approvals() == []
            assert [*await person.approvals(open_only=False)] == [told]
            return item, told, result

    item, told, result = run(scenario())
    assert (item.item_id, item.name, item.kind) == ("approval.1", "pay", ApprovalKind.APPROVAL)
    assert (item.arguments_json, item.open, item.answer) == (b'{"cents":5}', True, None)
    assert (item.asked_by, item.expires_at) == (("approval", 1), None)
    assert (told.answer, told.answered_by, told.open) == (answer, "ada", False)
    assert result == (type(answer).__name__, answer)
    assert run(keys(app_on(tmp_path))) == [("approval", 1)]


def test_of_many_answers_one_wins(tmp_path: Path) -> None:
    """T29 within one process; others do it at a barrier."""

    async def scenario() -> tuple[list[Any], Any]:
        app = asking(tmp_path, types=[Approve, Deny, Result])
        async with app:
            handle = await app.start("pay", None, run_id=RUN)
            item = await asked(app)
            answers = [
                app.resolve(RUN, item.item_id, Deny(str(n)), by=f"person {n}") for n in range(8)
            ]
            told = await asyncio.gather(*answers, return_exceptions=True)
            return told, await handle.result()

    answers, result = run(scenario())
    (winner,) = [each for each in answers if isinstance(each, Approval)]
    losers = [each for each in answers if isinstance(each, AlreadyResolved)]
    assert len(losers) == 7
    assert {(each.winner, each.by) for each in losers} == {(winner.answer, winner.answered_by)}
    assert result == ("Deny", winner.answer)


def test_answers_that_are_none_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async def scenario() -> Any:
        app = asking(tmp_path, types=[Approve, Deny, Result])
        async with app:
            handle = await app.start("pay", None, run_id=RUN)
            item = await asked(app)
            for run_id, item_id in (
                (RUN, "2"),
                (RUN, ""),
                ("other", item.item_id),
                ("a b", "\x00"),
            ):
                assert await app.approvals(run_id) in ([], [item])
                with pytest.raises(UnknownApproval):
                    await app.resolve(run_id, item_id, Approve(), by="ada")
            with pytest.raises(ApprovalChanged, match=item.digest):
                await app.resolve(RUN, item.item_id, Approve(), by="ada", expect_digest="0" * 64)
            with pytest.raises(InvalidPayload):
                await app.resolve(RUN, item.item_id, Approve({"cents": object()}), by="ada")
            with pytest.raises(InvalidPayload):
                await app.resolve(RUN, item.item_id, Deny("x" * 3_000_000), by="ada")
            with pytest.raises(InvalidPayload, match="no result yet"):
                await app.resolve(RUN, item.item_id, Result(1), by="ada")
            assert await asked(app) == item
            await app.resolve(RUN, item.item_id, Approve(), by="ada")
            return await handle.result()

    assert run(scenario()) == ("Approve", Approve())


def test_what_is_done_elsewhere_has_a_result_and_is_not_approved(tmp_path: Path) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path)

        @app.run(version=1)
        async def work(context: Context) -> Any:
            answer = await context.approval("ship", {}, kind=ApprovalKind.EXTERNAL)
            assert isinstance(answer, Result)
            return answer.value

        async with app:
            handle = await app.start(work, run_id=RUN)
            item = await asked(app)
            assert item.kind is ApprovalKind.EXTERNAL
            with pytest.raises(InvalidPayload, match="not approved"):
                await app.resolve(RUN, item.item_id, Approve(), by="ada")
            await app.resolve(RUN, item.item_id, Result([1, None]), by="depot")
            return await handle.result()

    assert run(scenario()) == [1, None]


def test_an_approval_is_closed_when_its_time_is_over_or_its_run_ends(tmp_path: Path) -> None:
    async def scenario() -> Any:
        clock = ManualClock()
        app = asking(tmp_path, clock=clock)
        async with app:
            handle = await app.start("pay", 60, run_id=RUN)
            await put_away(app)
            item = await asked(app)
            await later(app, clock, 61)
            result = await handle.result()
            other = await app.start("pay", None, run_id="other")
            await asked(app, "other")
            await put_away(app, "other")
            await other.cancel()
            for run_id in (RUN, "other"):
                assert await app.approvals(run_id) == []
                with pytest.raises(ApprovalClosed):
                    await app.resolve(run_id, item.item_id, Approve(), by="ada")
            assert item.expires_at is not None
            return result, item.expires_at - item.asked_at

    assert run(scenario()) == (("late", "nobody answered 'pay' in 60 s"), 60.0)


def test_an_answer_that_comes_before_the_run_looks_beats_the_end_of_its_time(
    tmp_path: Path,
) -> None:
    async def scenario() -> Any:
        clock = ManualClock()
        app = asking(tmp_path, clock=clock, types=[Approve, Deny, Result])
        async with app:
            await app.start("pay", 60, run_id=RUN)
            await put_away(app)
        clock.advance(61)
        async with app.connect():
            await app.resolve(RUN, "approval.1", Approve(), by="ada")
        async with app:
            return await app.handle(RUN).result()

    assert run(scenario()) == ("Approve", Approve())


def test_an_approval_of_a_failed_run_is_open_again_when_it_is_resumed(tmp_path: Path) -> None:
    async def scenario() -> Any:
        app = waiting_app(tmp_path)
        broken = [True]

        @app.run(version=1)
        async def work(context: Context) -> Any:
            one = asyncio.create_task(context.branch("one").approval("pay", {}))
            await context.wait_for("go")
            if broken:
                raise ValueError("broken")
            return type(await one).__name__

        async with app:
            handle = await app.start(work, run_id=RUN)
            item = await asked(app)
            assert item.item_id == "branch.one.1.approval.1"
            await app.send(RUN, "go")
            await stands(app, RunState.FAILED)
            with pytest.raises(ApprovalClosed):
                await app.resolve(RUN, item.item_id, Approve(), by="ada")
            broken.clear()
            await app.resume(RUN)
            await stands(app, RunState.SUSPENDED)
            await app.resolve(RUN, item.item_id, Approve(), by="ada")
            return await handle.result()

    assert run(scenario()) == "Approve"
