from __future__ import annotations

import asyncio
from typing import Any, Final

from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Move, Receipt, ReceiptState
from perdure.effects.store import Settlement
from perdure.effects.support import SideEffectSupport
from perdure.engine.store import RunEnd, RunProblem, RunState
from perdure.errors import StaleDecision
from perdure.testing.storage.expecting import ensure, expect, refusal, soon
from perdure.testing.storage.scene import IDENTITY, Process, Scene, settlement

_HOLD_SECONDS: Final = 3600.0
_MOMENT_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 3.0


async def one_asks_at_a_time(scene: Scene) -> None:
    """The same worker is no exception: it may have two callers."""
    one, other = await scene.process(), await scene.process()
    receipt = await one.attempted(ReceiptState.AMBIGUOUS)
    asks = [
        process.store.claim_lookup(receipt, process.owner, _HOLD_SECONDS)
        for process in (one, other, one)
    ]
    asked = await asyncio.gather(*asks)
    expect(sum(mine for _, mine in asked), 1, "callers that may ask")
    (mine,) = (receipt for receipt, mine in asked if mine)
    late = await other.store.end_lookup(receipt, answered=True, ask_again_at=0.0, limit=3)
    expect(late, mine, "the end of a lookup that was never begun")
    for state in (ReceiptState.COMPLETED, ReceiptState.FAILED, ReceiptState.IN_FLIGHT):
        settled = await one.attempted(state, identity=_other(state))
        refused = await one.store.claim_lookup(settled, one.owner, _HOLD_SECONDS)
        expect(refused, (settled, False), f"asking about what is {state}")


async def the_right_to_ask_ends(scene: Scene) -> None:
    """After a while, and with its holder; a late answer then settles nothing."""
    gone, other = await scene.process(), await scene.process()
    receipt = await gone.attempted(ReceiptState.AMBIGUOUS)
    first, mine = await gone.store.claim_lookup(receipt, gone.owner, _MOMENT_SECONDS)
    ensure(mine, "the first may ask")
    second = first

    async def taken() -> bool:
        nonlocal second
        second, mine = await other.store.claim_lookup(receipt, other.owner, _HOLD_SECONDS)
        return mine

    await soon(taken, "the right to ask ends after a while")
    late = await gone.store.end_lookup(first, answered=False, ask_again_at=0.0, limit=1)
    expect(late, second, "a receipt after a late answer")
    await other.store.retire_worker(other.holder)
    _, mine = await gone.store.claim_lookup(receipt, gone.owner, _HOLD_SECONDS)
    ensure(mine, "the right of who is gone is free")


async def lookups_without_an_answer_are_counted(scene: Scene) -> None:
    """Up to the limit; after that a person is asked, and nobody else."""
    process = await scene.process()
    receipt = await process.attempted(ReceiptState.AMBIGUOUS)
    seen: list[tuple[int, bool]] = []
    for answered in (False, True, False):
        asking, mine = await process.store.claim_lookup(receipt, process.owner, _HOLD_SECONDS)
        ensure(mine, "it may be asked again")
        now = process.store.clock.now()
        asked = await process.store.end_lookup(
            asking, answered=answered, ask_again_at=now - 1.0, limit=2
        )
        expect(asked.lookup_holder, None, "who asks, after an answer")
        seen.append((asked.lookups, asked.exhausted))
    expect(seen, [(1, False), (1, False), (2, True)], "lookups, and whether that was the last")
    exhausted = await process.store.claim_lookup(receipt, process.owner, _HOLD_SECONDS)
    expect(exhausted, (asked, False), "asking when nobody can say")


async def it_is_asked_again_when_it_is_time(scene: Scene) -> None:
    """Those that are due are listed, of the handlers that are known and that can be asked."""
    process = await scene.process()
    queryable: dict[str, Any] = {
        "support": SideEffectSupport.OUTCOME_QUERYABLE,
        "handler_id": "charge",
    }
    due = await process.attempted(ReceiptState.AMBIGUOUS, **queryable)
    others: list[dict[str, Any]] = [
        {"support": SideEffectSupport.AT_LEAST_ONCE, "handler_id": "charge"},
        {"support": SideEffectSupport.OUTCOME_QUERYABLE, "handler_id": "refund"},
        {"support": SideEffectSupport.OUTCOME_QUERYABLE, "handler_id": None},
    ]
    for number, changes in enumerate(others):
        await process.attempted(ReceiptState.AMBIGUOUS, identity=_other(f"{number}"), **changes)
    await process.attempted(identity=_other("in-flight"), **queryable)
    handlers = ["charge", "unknown"]
    expect(await process.store.list_due(handlers, 9), [due], "what may be asked about")
    expect(await process.store.list_due([], 9), [], "what may be asked by nobody")
    asking, _ = await process.store.claim_lookup(due, process.owner, _HOLD_SECONDS)
    expect(await process.store.list_due(handlers, 9), [], "what somebody asks about")
    later = process.store.clock.now() + _MOMENT_SECONDS
    again = await process.store.end_lookup(asking, answered=True, ask_again_at=later, limit=3)

    async def listed() -> bool:
        return list(await process.store.list_due(handlers, 9)) == [again]

    await soon(listed, "it is asked again later")
    ensure(process.store.clock.now() >= later, "it is not asked too early")


async def what_stopped_can_be_sent_again_after_a_while(scene: Scene) -> None:
    """`settle_seconds` after an attempt reports its end, and never later than its deadline says."""
    process = await scene.process()
    now = process.store.clock.now()
    cases = [(None, True, 5.0), (now + 1.0, True, 1.0), (now + 99.0, True, 5.0)]
    cases += [(None, False, None), (now + 99.0, False, 99.0)]
    for number, (deadline, stopped, wanted) in enumerate(cases):
        receipt = await process.attempted(identity=_other(f"{number}"), resend_after=deadline)
        doubt = settlement(receipt, Move.DOUBT, stopped=stopped)
        after, _ = await process.store.settle_effect(doubt)
        ends = after.resend_after
        if wanted is None or ends is None:
            expect(ends, wanted, f"the end of an attempt with {deadline=} and {stopped=}")
        else:
            # The clock went on between the two.
            what = f"an attempt with {deadline=} and {stopped=} ends in {ends - now} seconds"
            ensure(-0.01 < ends - now - wanted < _PATIENCE_SECONDS, what)


async def a_person_decides_about_what_is_ambiguous_alone(scene: Scene) -> None:
    """And about the version that he looked at; anything else changes nothing and is told."""
    process = await scene.process()
    for state in ReceiptState:
        receipt = await process.attempted(state, identity=_other(state))
        version = receipt.version - (state is ReceiptState.AMBIGUOUS)
        with refusal(StaleDecision, f"a decision about {state}"):
            await process.store.settle_effect(_decision(receipt, Move.COMPLETE, version=version))
        read = await process.store.read_receipt(receipt.operation_key)
        expect(read, receipt, "a receipt after a decision about something else")
        expect(await process.store.list_decisions(receipt.operation_key), [], "decisions")


async def one_of_many_decisions_wins(scene: Scene) -> None:
    """The others are told, and the decision that won is kept with who and why."""
    processes = [await scene.process() for _ in range(3)]
    receipt = await processes[0].attempted(ReceiptState.AMBIGUOUS)
    tries = [
        process.store.settle_effect(_decision(receipt, Move.RULE_OUT, by=f"person {number}"))
        for number, process in enumerate(processes)
    ]
    ends = await asyncio.gather(*tries, return_exceptions=True)
    stale = [end for end in ends if isinstance(end, StaleDecision)]
    expect((len(stale), len(ends)), (2, 3), "decisions that came too late")
    (winner,) = (number for number, end in enumerate(ends) if not isinstance(end, StaleDecision))
    (kept,) = await processes[0].store.list_decisions(receipt.operation_key)
    told = (kept.decision, kept.decided_by, kept.decided_why, kept.version, kept.attempt)
    expect(told, ("never_will", f"person {winner}", "so", 2, 1), "the decision that is kept")
    settled = await processes[0].store.read_receipt(receipt.operation_key)
    expect(settled and settled.state, ReceiptState.FAILED, "the receipt that was decided about")


async def a_later_decision_replaces_none_before_it(scene: Scene) -> None:
    """All of them are kept, oldest first."""
    process = await scene.process()
    receipt = await process.attempted(ReceiptState.AMBIGUOUS)
    for move, risk in ((Move.RULE_OUT, True), (Move.RULE_OUT, False), (Move.COMPLETE, False)):
        await process.store.settle_effect(_decision(receipt, move, risk=risk))
        if move is Move.RULE_OUT:
            receipt, _ = await process.store.claim_effect(process.effect())
            receipt, _ = await process.store.settle_effect(settlement(receipt, Move.DOUBT))
    rows = await process.store.list_decisions(IDENTITY.operation_key)
    told = [(row.decision, row.attempt, row.version) for row in rows]
    wanted = [("send_again", 1, 2), ("never_will", 2, 5), ("landed", 3, 8)]
    expect(told, wanted, "the decisions about an effect")


async def whoever_ends_doubt_frees_the_run_that_waits_for_it(scene: Scene) -> None:
    """Not the end of an attempt, and not a run that waits for something else."""
    process = await scene.process()
    cases: list[tuple[str, RunState, dict[str, Any], RunState]] = [
        ("EffectAmbiguous", RunState.NEEDS_ATTENTION, {}, RunState.PENDING),
        ("EffectAmbiguous", RunState.NEEDS_ATTENTION, {"stopped": True}, RunState.NEEDS_ATTENTION),
        ("ReplayMismatch", RunState.NEEDS_ATTENTION, {}, RunState.NEEDS_ATTENTION),
        ("EffectAmbiguous", RunState.FAILED, {}, RunState.FAILED),
    ]
    for number, (code, state, changes, wanted) in enumerate(cases):
        run_id = f"order-{number}"
        fence = await process.start(run_id)
        problem = RunProblem(code, code, "why")
        receipt = await process.attempted(ReceiptState.AMBIGUOUS, identity=_other("a", run_id))
        await process.store.end_run(fence, RunEnd(state, problem=problem))
        await process.store.settle_effect(settlement(receipt, Move.COMPLETE, **changes))
        expect(await process.state(run_id), wanted, f"a run with {code} that was {state}")
    await _a_decision_frees(process)


async def _a_decision_frees(process: Process) -> None:
    fence = await process.start("order-9")
    receipt = await process.attempted(ReceiptState.AMBIGUOUS, identity=_other("a", "order-9"))
    problem = RunProblem("EffectAmbiguous", "EffectAmbiguous", "why")
    await process.store.end_run(fence, RunEnd(RunState.NEEDS_ATTENTION, problem=problem))
    await process.store.settle_effect(_decision(receipt, Move.RULE_OUT))
    row = await process.run("order-9")
    found = (row.state, row.problem, row.finished_at)
    expect(found, (RunState.PENDING, None, None), "a run that waited for a person's word")


def _decision(receipt: Receipt, move: Move, **changes: Any) -> Settlement:
    decided = {"by": "ada", "why": "so", "version": receipt.version, **changes}
    return settlement(receipt, move, **decided)


def _other(name: str, run_id: str = "invoice-18") -> OperationIdentity:
    return OperationIdentity(run_id, name, "bank")
