from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import MOVES, Move, ReceiptState
from perdure.effects.store import Owner
from perdure.effects.support import SideEffectSupport
from perdure.engine.store import RunEnd, RunState
from perdure.errors import LeaseLost
from perdure.journal.record import Success
from perdure.testing.storage.expecting import ensure, expect, refusal, soon
from perdure.testing.storage.scene import IDENTITY, SERVED, Process, Scene, record, settlement

SETTLING: Final = (Move.COMPLETE, Move.REFUSE, Move.DOUBT, Move.RULE_OUT)


async def a_settlement_lands_where_the_table_says(scene: Scene) -> None:
    """From every state by every move; what does not land changes nothing."""
    process = await scene.process()
    for state in ReceiptState:
        for move in SETTLING:
            identity = _other(f"{state}.{move}")
            receipt = await process.attempted(state, identity=identity)
            after, landed = await process.store.settle_effect(settlement(receipt, move))
            where = f"{move} of {state}"
            expect(landed, (state, move) in MOVES, f"whether there is a {where}")
            expect(after.state, MOVES.get((state, move), state), f"the state after a {where}")
            expect(after.version, receipt.version + landed, f"the version after a {where}")
            read = await process.store.read_receipt(identity.operation_key)
            expect(read, after, f"the receipt after a {where}")


async def an_attempt_begins_where_the_table_says(scene: Scene) -> None:
    """The first, and after a refusal; otherwise whoever asks is told how the receipt stands."""
    one, other = await scene.process(), await scene.process()
    for state in ReceiptState:
        identity = _other(state)
        receipt = await one.attempted(state, identity=identity)
        claimed, mine = await other.store.claim_effect(other.effect(identity=identity))
        expect(mine, (state, Move.CLAIM) in MOVES, f"whether {state} may be begun again")
        expect(claimed.attempt, 1 + mine, f"the attempts after a claim of {state}")
        expect(claimed.holder, other.holder if mine else one.holder, "who made the last attempt")
        if not mine:
            expect(claimed, receipt, "a receipt that somebody else looks at")
    failed = await one.attempted(ReceiptState.FAILED)
    claim = one.effect(arguments_sha256=b"6")
    expect(await one.store.claim_effect(claim), (failed, False), "a claim with other arguments")


async def one_of_many_claims_may_send(scene: Scene) -> None:
    """Callers of several processes that begin the same effects at once: one of each sends."""
    processes = [await scene.process() for _ in range(3)]
    claims = [
        process.store.claim_effect(process.effect(identity=_other(f"{number}")))
        for number in range(20)
        for process in processes * 2
    ]
    claimed = await asyncio.gather(*claims)
    for number in range(20):
        key = _other(f"{number}").operation_key
        of_effect = [mine for receipt, mine in claimed if receipt.operation_key == key]
        expect(sum(of_effect), 1, "callers that may send")
    found = await processes[0].store.list_receipts(ambiguous_only=False, limit=99)
    expect({receipt.attempt for receipt in found}, {1}, "attempts")


async def only_what_is_as_it_was_seen_is_sent_again(scene: Scene) -> None:
    """The next attempt of what is ambiguous has one owner, and remembers the doubt."""
    one, other = await scene.process(), await scene.process()
    receipt = await one.attempted(ReceiptState.AMBIGUOUS)
    tries = [
        process.store.send_again(receipt, process.effect(), unknown=True, risk=True)
        for process in (one, other)
    ]
    sent = await asyncio.gather(*tries)
    expect(sum(mine for _, mine in sent), 1, "callers that may send again")
    for again, _ in sent:
        marks = (again.attempt, again.earlier_unknown, again.residual_duplicate_risk)
        expect(marks, (2, True, True), "the next attempt")
    again, _ = await one.store.settle_effect(settlement(sent[0][0], Move.DOUBT))
    for seen in (receipt, sent[0][0]):
        late = await one.store.send_again(seen, one.effect(), unknown=True, risk=False)
        expect(late, (again, False), "sending again what has changed since")
    asked, _ = await other.store.claim_lookup(again, other.owner, 60.0)
    late = await one.store.send_again(again, one.effect(), unknown=True, risk=False)
    expect(late, (asked, False), "sending again what somebody asks about since")


async def after_so_many_attempts_only_a_person_lets_another_begin(scene: Scene) -> None:
    """What failed after the most of its attempts stays so; a person's word is for one more."""
    process = await scene.process()
    claim = process.effect(most_attempts=2)
    await process.attempted(ReceiptState.FAILED)
    second, mine = await process.store.claim_effect(claim)
    expect((mine, second.attempt), (True, 2), "an attempt before the last")
    await process.store.settle_effect(settlement(second, Move.DOUBT))
    failed, _ = await process.store.settle_effect(settlement(second, Move.RULE_OUT))
    expect(await process.store.claim_effect(claim), (failed, False), "a claim after the most")
    third, mine = await process.store.claim_effect(process.effect())
    expect((mine, third.attempt), (True, 3), "a claim that knows no most")
    doubted, _ = await process.store.settle_effect(settlement(third, Move.DOUBT))
    word = {"by": "ada", "why": "so", "version": doubted.version}
    await process.store.settle_effect(settlement(doubted, Move.RULE_OUT, **word))
    fourth, mine = await process.store.claim_effect(claim)
    expect((mine, fourth.attempt), (True, 4), "what a person ruled out")
    failed, _ = await process.store.settle_effect(settlement(fourth, Move.REFUSE))
    expect(await process.store.claim_effect(claim), (failed, False), "a claim after that one")


async def a_late_report_does_not_touch_a_newer_attempt(scene: Scene) -> None:
    """Nor one of another claim, or of another effect."""
    process = await scene.process()
    support = SideEffectSupport.IDEMPOTENT
    receipt = await process.attempted(ReceiptState.AMBIGUOUS, support=support)
    claim = process.effect(support=support)
    newer, _ = await process.store.send_again(receipt, claim, unknown=True, risk=False)
    beside = await process.attempted(identity=_other("beside"))
    wrong: list[dict[str, Any]] = [
        {"attempt": 1},
        {"attempt": 3},
        {"generation": 7},
        {"operation_key": beside.operation_key},
    ]
    for move in SETTLING:
        for change in wrong:
            _, landed = await process.store.settle_effect(settlement(newer, move, **change))
            ensure(not landed, f"a {move} does not land on {change}")
    for each in (newer, beside):
        expect(await process.store.read_receipt(each.operation_key), each, "a receipt after those")


async def a_late_proof_marks_the_duplicate(scene: Scene) -> None:
    """Only where the attempt itself reports that it was applied, although a later one had begun."""
    process = await scene.process()
    receipt = await process.attempted(ReceiptState.AMBIGUOUS)
    await process.store.send_again(receipt, process.effect(), unknown=False, risk=False)
    for stopped in (False, True):
        late = settlement(receipt, Move.COMPLETE, stopped=stopped)
        after, landed = await process.store.settle_effect(late)
        expect((landed, after.residual_duplicate_risk), (False, stopped), "a late proof")
    expect((after.state, after.attempt), (ReceiptState.IN_FLIGHT, 2), "the receipt after that")


async def the_first_completion_wins(scene: Scene) -> None:
    """What it answered stays, byte for byte."""
    process = await scene.process()
    for number, payload in enumerate([b"1", bytes(range(256)), b'"' + b"a" * 50_000 + b'"', None]):
        receipt = await process.attempted(identity=_other(f"{number}"))
        first = settlement(receipt, Move.COMPLETE, payload=payload)
        await process.store.settle_effect(first)
        again = settlement(receipt, Move.COMPLETE, payload=b"2")
        after, landed = await process.store.settle_effect(again)
        expect((after.payload, landed), (payload, False), "the answer after a second completion")


async def what_is_reported_is_kept_as_text(scene: Scene) -> None:
    """Any text at all: what cannot be stored is spelled out."""
    process = await scene.process()
    for number, text in enumerate(
        ["no \U0001f980", "nul \x00 in it", "lone \ud800 in it", "\\u0000"]
    ):
        receipt = await process.attempted(identity=_other(f"{number}"))
        doubt = settlement(receipt, Move.DOUBT, problem=text)
        after, landed = await process.store.settle_effect(doubt)
        expect((landed, after.problem is not None), (True, True), "a reported problem")
        expect(await process.store.read_receipt(receipt.operation_key), after, "its receipt")
        if number in {0, 3}:
            expect(after.problem, text, "a problem that can be stored")


async def who_is_gone_claims_nothing_and_leaves_doubt(scene: Scene) -> None:
    """One look makes it ambiguous, and only the one that did is told."""
    gone, other = await scene.process(), await scene.process()
    await gone.attempted()
    key = IDENTITY.operation_key
    expect(await other.store.doubt_vanished(key), [], "doubt about what is under way")
    await gone.store.retire_worker(gone.holder)
    with refusal(LeaseLost, "a claim of who is gone"):
        await gone.store.claim_effect(gone.effect(identity=_other("late")))
    expect(await other.store.doubt_vanished("op-other"), [], "doubt about another effect")
    first, second = await asyncio.gather(
        gone.store.doubt_vanished(None), other.store.doubt_vanished(None)
    )
    (doubted,) = [*first, *second]
    expect(doubted.state, ReceiptState.AMBIGUOUS, "what has vanished")
    expect(doubted.resend_after, None, "the end of what has no deadline and may live")
    expect(await other.store.read_receipt(key), doubted, "the receipt of what has vanished")
    expect(await other.store.doubt_vanished(None), [], "doubt about what is doubted")


async def an_attempt_in_a_run_belongs_to_one_claim_of_the_run(scene: Scene) -> None:
    """The next claim leaves what it had under way in doubt."""
    process = await scene.process()
    fence = await process.start(IDENTITY.run_id)
    with refusal(LeaseLost, "an attempt under another claim"):
        await process.store.claim_effect(process.effect(owner=Owner(process.holder, 2)))
    owner = Owner(process.holder, fence.generation)
    await process.store.claim_effect(process.effect(owner=owner))
    begun = (await process.store.read_journal(IDENTITY.run_id)).begun
    expect(dict(begun), {("charge", 1): IDENTITY.operation_key}, "the effects that were begun")
    expect(await process.store.doubt_vanished(None), [], "doubt about what is under way")
    await process.store.release_run(fence)
    (claim,) = await process.store.claim_runs(process.holder, SERVED, 9)
    (doubted,) = await process.store.doubt_vanished(None)
    expect(doubted.generation, fence.generation, "whose attempt is doubted")
    late = process.effect(owner=owner, identity=_other("late", IDENTITY.run_id))
    with refusal(LeaseLost, "an attempt under an earlier claim"):
        await process.store.claim_effect(late)
    again, mine = await process.store.send_again(
        doubted,
        process.effect(owner=Owner(process.holder, claim.fence.generation)),
        unknown=True,
        risk=True,
    )
    expect((mine, again.generation, again.attempt), (True, 2, 2), "the attempt of the next claim")


async def receipt_and_record_are_written_together(scene: Scene) -> None:
    """Where the move lands; otherwise neither is written."""
    process = await scene.process()
    fence = await process.start(IDENTITY.run_id)
    owner = Owner(process.holder, fence.generation)
    receipt, _ = await process.store.claim_effect(process.effect(owner=owner))
    written = record(fence, "charge", 1, outcome=Success(b'"r-1"'))
    for move, wrong in (
        (Move.COMPLETE, {"attempt": 2}),
        (Move.COMPLETE, {"generation": 0}),
        (Move.RULE_OUT, {}),
    ):
        made = settlement(receipt, move, **wrong)
        after, landed = await process.store.settle_record(fence, made, written)
        expect((after, landed), (receipt, False), f"a settlement that does not land: {wrong}")
    expect((await process.store.read_journal(fence.run_id)).rows, [], "records of those")
    made = settlement(receipt, Move.COMPLETE, payload=None, stopped=True)
    after, landed = await process.store.settle_record(fence, made, written)
    expect((after.state, landed), (ReceiptState.COMPLETED, True), "a settlement that lands")
    (row,) = (await process.store.read_journal(fence.run_id)).rows
    expect((row.step_id, row.payload), ("charge", b'"r-1"'), "the record of that")
    expect((await process.store.read_journal(fence.run_id)).begun, {}, "what is left begun")
    expect(await process.store.read_receipt(IDENTITY.operation_key), after, "the receipt of that")


async def many_settle_at_once(scene: Scene) -> None:
    """Whatever shares a commit, each effect ends with its own answer and its own record."""
    processes = [await scene.process() for _ in range(2)]

    async def settle(number: int) -> None:
        process = processes[number % 2]
        fence = await process.start(f"run-{number}")
        owner = Owner(process.holder, fence.generation)
        for ordinal in (1, 2):
            identity = OperationIdentity(fence.run_id, "charge", "bank", ordinal)
            claim = process.effect(owner=owner, identity=identity)
            receipt, _ = await process.store.claim_effect(claim)
            move = settlement(receipt, Move.COMPLETE, payload=b"%d" % number, stopped=True)
            answer = record(fence, "charge", ordinal, outcome=Success(b"%d" % number))
            after, landed = await process.store.settle_record(fence, move, answer)
            expect((after.payload, landed), (b"%d" % number, True), "one of many settlements")
        await process.store.end_run(fence, RunEnd(RunState.COMPLETED, b"1"))

    await asyncio.gather(*(settle(number) for number in range(30)))
    for number in range(30):
        rows = (await processes[0].store.read_journal(f"run-{number}")).rows
        expect({row.payload for row in rows}, {b"%d" % number}, "the records of one of many runs")


async def a_claim_whose_caller_is_cancelled_is_taken_back(scene: Scene) -> None:
    """Nothing was sent, so that nobody has to doubt it."""
    process = await scene.process()
    for turns in range(8):
        identity = _other(f"{turns}")
        task = asyncio.ensure_future(process.store.claim_effect(process.effect(identity=identity)))
        for _ in range(turns):
            await asyncio.sleep(0)
        done = task.done()
        task.cancel()
        await asyncio.wait([task])
        if done:
            continue

        async def settled(key: str = identity.operation_key) -> bool:
            receipt = await process.store.read_receipt(key)
            return receipt is None or receipt.state is ReceiptState.FAILED

        await soon(settled, "a claim that was cancelled leaves nothing in flight")


async def changes_are_told_once(scene: Scene) -> None:
    """What was begun after a number, and what has another version than the one that is known."""
    one, other = await scene.process(), await scene.process()
    open_one = await one.attempted(identity=_other("open"))
    await one.attempted(ReceiptState.COMPLETED, identity=_other("done"))
    failed = await one.attempted(ReceiptState.FAILED, identity=_other("failed"))
    after, changeable = await other.store.list_changeable(99)
    keys = [receipt.operation_key for receipt in changeable]
    expect(keys, [open_one.operation_key, failed.operation_key], "what may still change")
    known = {receipt.operation_key: receipt.version for receipt in changeable}
    expect(await _changes(other, after, known), (after, 0), "changes of nothing")
    settled, _ = await one.store.settle_effect(settlement(open_one, Move.COMPLETE))
    begun = await one.attempted(identity=_other("new"))
    last, changes = await other.store.read_changes(after, known, 99)
    ensure(last > after, "the number grows")
    told = [(change.operation_key, change.version, change.payload) for change in changes]
    wanted = [(each.operation_key, each.version, None) for each in (settled, begun)]
    expect(told, wanted, "what has changed, oldest first and without answers")
    known |= {change.operation_key: change.version for change in changes}
    expect(await _changes(other, last, known), (last, 0), "changes since")


async def receipts_are_listed_newest_first(scene: Scene) -> None:
    """All of them, those of a run, those in doubt, and those whose key begins with a text."""
    process = await scene.process()
    receipts = [
        await process.attempted(state, identity=_other(f"{number}", run_id=f"order-{number % 2}"))
        for number, state in enumerate(ReceiptState)
    ]
    listing = process.store.list_receipts
    newest = receipts[::-1]
    expect(await listing(ambiguous_only=False, limit=9), newest, "all receipts")
    expect(await listing(ambiguous_only=False, limit=2), newest[:2], "the newest receipts")
    of_run = await listing(ambiguous_only=False, limit=9, run_id="order-1")
    expect(of_run, [newest[0], newest[2]], "the receipts of a run")
    expect(await listing(ambiguous_only=True, limit=9), [newest[0]], "those in doubt")
    expect(await listing(ambiguous_only=True, limit=9, run_id="order-0"), [], "none in doubt")
    keys = sorted(receipt.operation_key for receipt in receipts)
    for prefix in ("op-", keys[0][:9], keys[2]):
        found = await process.store.match_receipts(prefix, 9)
        wanted = [key for key in keys if key.startswith(prefix)]
        expect([receipt.operation_key for receipt in found], wanted, f"receipts of {prefix}")
    expect(await process.store.read_receipt("op-none"), None, "an effect that was never begun")


async def _changes(process: Process, after: int, known: Mapping[str, int]) -> tuple[int, int]:
    last, changes = await process.store.read_changes(after, known, 99)
    return last, len(changes)


def _other(name: str, run_id: str = "invoice-18") -> OperationIdentity:
    return OperationIdentity(run_id, name, "bank")
