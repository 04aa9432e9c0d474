from __future__ import annotations

import asyncio

from perdure.activity import Rest
from perdure.approvals import Answer, ApprovalKind, Approve, Deny, NewAnswer, Result, answered
from perdure.engine.store import RunState
from perdure.errors import (
    AlreadyResolved,
    ApprovalChanged,
    ApprovalClosed,
    LeaseLost,
    PerdureError,
    UnknownApproval,
)
from perdure.journal.invocation import OperationKind
from perdure.testing.storage.expecting import expect, refusal
from perdure.testing.storage.scene import Process, Scene


async def what_is_asked_comes_back_and_its_wait_with_it(scene: Scene) -> None:
    """Open for as long as the run waits; of any run, or of one, the oldest first."""
    process, other = await scene.process(), await scene.process()
    for run_id in ("run-2", "run-1"):
        fence = await process.start(run_id)
        for number in (2, 1):
            await process.ask(fence, number)
    found = await other.store.read_approval("run-1", "2")
    assert found is not None
    told = (found.run_id, found.item_id, found.kind, found.name, found.arguments_json)
    expect(told, ("run-1", "2", ApprovalKind.APPROVAL, "pay", b'{"amount":9}'), "what is asked")
    told = (found.asked_at, found.expires_at, found.open, found.answer, found.asked_by)
    expect(told, (6.5, None, True, None, ("approval.resume", 2)), "how it stands")
    timers = (await other.store.read_journal("run-1")).timers
    expect({timer.awaits for timer in timers}, {answered("1"), answered("2")}, "what is awaited")
    expect(await other.store.read_approval("run-1", "3"), None, "what was not asked")
    listed = await other.store.list_approvals()
    told = [(each.run_id, each.item_id) for each in listed]
    wanted = [("run-2", "2"), ("run-2", "1"), ("run-1", "2"), ("run-1", "1")]
    expect(told, wanted, "what is asked by any run")
    expect([*await other.store.list_approvals("run-1", limit=1)], [found], "the oldest of a run")


async def one_answer_wins(scene: Scene) -> None:
    """Of several at once; each of the others is told which, and nothing of theirs is written."""
    process, other = await scene.process(), await scene.process()
    fence = await process.start()
    answers: tuple[Answer, ...] = (Approve({"amount": 1}), Deny("no"), Result([1.5, "\U0001f980"]))
    for number in range(1, 5):
        await process.ask(fence, number)
        item_id = str(number)
        calls = [
            _answered(each, item_id, NewAnswer(answer, f"by {place}", 7.0 + place))
            for place, answer in enumerate(answers)
            for each in (process, other)
        ]
        ends = await asyncio.gather(*calls)
        won = [end for end in ends if not isinstance(end, PerdureError)]
        expect(len(won), 1, "answers that were written")
        there = await process.store.read_approval("run-1", item_id)
        expect(there, won[0], "what is read of an answer")
        assert there is not None
        expect((there.open, there.answer in answers), (False, True), "an answer that won")
        for end in ends:
            if isinstance(end, AlreadyResolved):
                told = (end.winner, end.by, end.at)
                wanted = (there.answer, there.answered_by, there.answered_at)
                expect(told, wanted, "the answer that others are told")
        expect(sum(isinstance(end, AlreadyResolved) for end in ends), 5, "answers that came late")
    expect(await other.store.list_approvals("run-1"), [], "what is open still")
    listed = await other.store.list_approvals("run-1", open_only=False)
    expect(len(listed), 4, "what was asked in all")


async def an_answer_lets_the_run_go_on(scene: Scene) -> None:
    """It is a message, before or after the run is put away, and that answer's own."""
    process, other = await scene.process(), await scene.process()
    fence = await process.start()
    for number in (1, 2):
        await process.ask(fence, number)
    rest = Rest(None, frozenset({answered("1")}))
    state = await process.store.park_run(fence, rest, executed=0, replayed=0)
    expect(state, RunState.SUSPENDED, "a run that waits for an answer")
    await _answer(other, "1")
    expect(await other.claim(), ["run-1"], "a run that was answered")
    found = await other.store.next_message("run-1", answered("1"))
    told = found and (found.message_id, found.payload_json)
    expect(told, (answered("1"), None), "the message that tells of an answer")
    expect(await other.store.next_message("run-1", answered("2")), None, "one of another")
    expect(len(await other.store.list_messages("run-1")), 1, "messages of one answer")


async def what_is_not_as_it_was_shown_is_not_answered(scene: Scene) -> None:
    """Nor what nobody asked for, and nothing once the run waits no more."""
    process, other = await scene.process(), await scene.process()
    fence = await process.start()
    for number in (1, 2, 3):
        await process.ask(fence, number)
    with refusal(UnknownApproval, "answering what nobody asks for"):
        await _answer(other, "9")
    with refusal(ApprovalChanged, "answering what has other arguments"):
        await _answer(other, "1", "0" * 64)
    kind = OperationKind.APPROVAL_RESUME
    await process.append(fence, "approval.resume", 2, document=b"{}", kind=kind)
    with refusal(ApprovalClosed, "answering what is waited for no more"):
        await _answer(other, "2")
    expect(await other.store.list_messages("run-1"), [], "messages of answers that were refused")
    listed = await other.store.list_approvals("run-1")
    expect([each.item_id for each in listed], ["1", "3"], "what is open still")
    await _answer(other, "1", listed[0].digest)
    await process.end(fence)
    with refusal(ApprovalClosed, "answering a run that has ended"):
        await _answer(other, "3")
    expect(await other.store.list_approvals(), [], "what is open of a run that has ended")


async def only_the_owner_of_a_run_asks(scene: Scene) -> None:
    """Neither the wait nor what is asked is written under a fence that does not hold."""
    process = await scene.process()
    fence = await process.start()
    await process.store.release_run(fence)
    expect(await process.claim(), ["run-1"], "the claim of a run that was given back")
    with refusal(LeaseLost, "asking under an earlier claim"):
        await process.ask(fence, 1)
    expect(await process.store.list_approvals(open_only=False), [], "what was asked")
    expect((await process.store.read_journal("run-1")).timers, [], "what is waited for")


async def _answer(process: Process, item_id: str, digest: str | None = None) -> None:
    answer = NewAnswer(Deny("no"), "ada", 7.5)
    await process.store.answer_approval("run-1", item_id, answer, digest)


async def _answered(process: Process, item_id: str, answer: NewAnswer) -> object:
    try:
        return await process.store.answer_approval("run-1", item_id, answer)
    except AlreadyResolved as late:
        return late
