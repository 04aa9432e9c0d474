from __future__ import annotations

import asyncio

from perdure.app import App
from perdure.approvals import Approval, Approve, Deny, Result
from perdure.context import Context
from perdure.engine.store import RunState
from perdure.errors import (
    AlreadyResolved,
    ApprovalChanged,
    ApprovalClosed,
    InvalidPayload,
    RunCancelled,
    UnknownApproval,
    WaitTimedOut,
)
from perdure.testing.engine.scene import Scene, asked, end_of, stands
from perdure.testing.storage.expecting import ensure, expect, refusal


def _asking(app: App) -> None:
    @app.run(version=1)
    async def ask(context: Context, seconds: float | None = None) -> str:
        try:
            answer = await context.approval("pay", {"amount": 9}, timeout_seconds=seconds)
        except WaitTimedOut:
            return "nobody answered"
        return f"{type(answer).__name__} {getattr(answer, 'message', '')}".strip()


async def of_many_answers_one_wins(scene: Scene) -> None:
    """The run has it, and all others are told whose it was."""
    worker, outsider = await scene.worker(_asking), await scene.outsider(_asking)
    handle = await worker.start("ask", run_id=scene.name())
    item = await asked(outsider, handle.run_id)
    row = await stands(outsider, handle.run_id, RunState.SUSPENDED)
    expect((row.holder, row.wake_at), (None, None), "a run that waits for an answer")
    expect((item.name, item.arguments_json), ("pay", b'{"amount":9}'), "what it asks for")
    answers = [Deny(f"no {number}") for number in range(4)]
    answering = [
        app.resolve(handle.run_id, item.item_id, answer, by=f"person {number}")
        for number, (answer, app) in enumerate(zip(answers, [worker, outsider] * 2, strict=True))
    ]
    told = await asyncio.gather(*answering, return_exceptions=True)
    won = [each for each in told if isinstance(each, Approval)]
    lost = [each for each in told if isinstance(each, AlreadyResolved)]
    expect((len(won), len(lost)), (1, 3), f"how many answers win, and lose: {told}")
    winner = won[0].answer
    ensure(isinstance(winner, Deny), "the winner is an answer that was given")
    expect([each.winner for each in lost], [winner] * 3, "what the others are told")
    expect({each.by for each in lost}, {won[0].answered_by}, "whose it is")
    said = winner.message if isinstance(winner, Deny) else ""
    expect(await end_of(handle), f"Deny {said}", "what the run is told")
    expect(await outsider.approvals(handle.run_id), [], "what is still asked for")


async def what_is_asked_for_is_asked_once(scene: Scene) -> None:
    """It stands over a change of workers, and an answer that comes between them counts."""
    one = await scene.worker(_asking)
    handle = await one.start("ask", run_id=scene.name())
    item = await asked(one, handle.run_id)
    await scene.close(one)
    outsider = await scene.outsider(_asking)
    found = [each.item_id for each in await outsider.approvals()]
    expect(found, [item.item_id], "what is asked for")
    await outsider.resolve(handle.run_id, item.item_id, Approve(), by="ada")
    await scene.worker(_asking)
    expect(await end_of(outsider.handle(handle.run_id)), "Approve", "what the run is told")
    every = await outsider.approvals(handle.run_id, open_only=False)
    expect([each.answered_by for each in every], ["ada"], "what was asked for in all")


async def an_answer_is_one_to_what_was_asked(scene: Scene) -> None:
    """What is none is refused, and the run waits on."""
    worker, outsider = await scene.worker(_asking), await scene.outsider(_asking)
    handle = await worker.start("ask", run_id=scene.name())
    item = await asked(outsider, handle.run_id)
    with refusal(UnknownApproval, "an answer to nothing"):
        await outsider.resolve(handle.run_id, "nothing", Approve(), by="ada")
    with refusal(InvalidPayload, "a result where an approval is asked for"):
        await outsider.resolve(handle.run_id, item.item_id, Result(1), by="ada")
    with refusal(ApprovalChanged, "an answer to something else"):
        await outsider.resolve(
            handle.run_id, item.item_id, Approve(), by="ada", expect_digest="0" * 64
        )
    shown = item.digest
    await outsider.resolve(handle.run_id, item.item_id, Approve(), by="ada", expect_digest=shown)
    expect(await end_of(handle), "Approve", "what the run is told")


async def a_run_does_not_wait_for_an_answer_for_ever(scene: Scene) -> None:
    """When its time is over, or it is cancelled, nobody can answer any more."""
    worker, outsider = await scene.worker(_asking), await scene.outsider(_asking)
    late = await worker.start("ask", 0.2, run_id=scene.name("late"))
    left = await worker.start("ask", run_id=scene.name("left"))
    items = [await asked(outsider, run_id) for run_id in (late.run_id, left.run_id)]
    expect(await end_of(late), "nobody answered", "what the run is told")
    await left.cancel()
    with refusal(RunCancelled, "a run that was cancelled"):
        await end_of(left)
    for item in items:
        with refusal(ApprovalClosed, "an answer that comes too late"):
            await outsider.resolve(item.run_id, item.item_id, Approve(), by="ada")
    expect(await outsider.approvals(), [], "what is still asked for")
