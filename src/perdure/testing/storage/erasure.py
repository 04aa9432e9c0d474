from __future__ import annotations

import random
from typing import Final

from perdure.effects.receipt import Move, ReceiptState
from perdure.engine.store import RunEnd, RunProblem, RunState
from perdure.errors import EffectErased, JournalError, NotErasable, RunErased, UnknownRun
from perdure.testing.storage.expecting import ensure, expect, refusal
from perdure.testing.storage.scene import Scene, delay, message, new_run, settlement

_DONE: Final = RunEnd(RunState.COMPLETED, b"1")


async def nothing_of_an_erased_run_is_left_but_a_tombstone(scene: Scene) -> None:
    """Its id, function, state and times stay, and who erased it and why."""
    process, other = await scene.process(), await scene.process()
    fence = await process.start(input_json=b'"input"')
    await process.append(fence, "model", 1, document=b"0123456789", cuts=(4,))
    await process.store.begin_timer(fence, *delay(fence), 5.0)
    await process.store.send_message(message())
    await process.ask(fence, 1)
    receipt = await process.attempted_in(fence, ReceiptState.COMPLETED)
    problem = RunProblem("Code", "Type", "message")
    await process.store.end_run(fence, RunEnd(RunState.FAILED, problem=problem))
    before = await process.run()
    await process.store.erase_run("run-1", by="ada \x00\ud800", why="request 17")
    await other.store.erase_run("run-1", by="bob", why="again")
    after = await other.run()
    for name in ("run_id", "function", "version", "state", "created_at", "finished_at"):
        expect(getattr(after, name), getattr(before, name), f"the {name} of an erased run")
    expect(after.input_sha256, before.input_sha256, "the digest of an erased run's input")
    expect((after.output_json, after.problem), (None, None), "what an erased run came to")
    tombstone = after.tombstone
    told = tombstone and (tombstone.by[:3], tombstone.why, tombstone.whole)
    expect(told, ("ada", "request 17", True), "the tombstone of a run")
    journal = await other.store.read_journal("run-1")
    left = (len(journal.rows), len(journal.timers), len(journal.begun))
    expect(left, (0, 0, 0), "what is left in its journal")
    expect(await other.store.list_messages("run-1"), [], "what is left in its inbox")
    asked = await other.store.list_approvals("run-1", open_only=False)
    expect(asked, [], "what is left of what it asked for")
    with refusal(JournalError, "an input of an erased run"):
        await other.store.read_input("run-1", "model", 1)
    with refusal(RunErased, "the input of an erased run"):
        await other.store.read_run_input("run-1")
    with refusal(EffectErased, "a receipt of an erased run"):
        await other.store.read_receipt(receipt.operation_key)
    resumed = await other.store.resume_run("run-1")
    expect(resumed and resumed.state, RunState.FAILED, "an erased run, resumed")
    again = await other.store.start_run(new_run("run-1", b'"input"'), other.holder)
    expect((again.created, again.row), (False, after), "starting an erased run again")


async def beginnings_that_others_share_stay(scene: Scene) -> None:
    """Until the last run that begins alike is erased, in whatever order that happens."""
    process = await scene.process()
    dice = random.Random(5)  # noqa: S311 - it draws cases
    talks: list[list[bytes]] = [[]]
    inputs: dict[str, list[bytes]] = {}
    for number in range(8):
        run_id = f"run-{number}"
        fence = await process.start(run_id)
        base = dice.choice(talks)
        talk = base[: dice.randint(0, len(base))]
        inputs[run_id] = []
        for step in range(dice.randint(1, 5)):
            talk = [*talk, f"{number}.{step}, ".encode()]
            cuts = tuple(len(b"".join(talk[: end + 1])) for end in range(len(talk)))
            document = b"".join(talk) + b"tail"
            await process.append(fence, "m", step, document=document, cuts=cuts)
            inputs[run_id].append(document)
        talks.append(talk)
        await process.store.end_run(fence, _DONE)
    for run_id in dice.sample([*inputs], len(inputs)):
        await process.store.erase_run(run_id, by="ada", why="so")
        del inputs[run_id]
        for other, documents in inputs.items():
            for step, document in enumerate(documents):
                found = await process.store.read_input(other, "m", step)
                expect(found, document, "an input that began as an erased one did")


async def what_has_not_ended_is_not_erased(scene: Scene) -> None:
    """Nor what has effects of which nobody knows; nothing of it is deleted then."""
    process = await scene.process()
    fence = await process.start()
    await process.append(fence, "tool", 1)
    await process.store.start_run(new_run("waits"), None)
    parked = await process.start("parked")
    await process.store.end_run(parked, RunEnd(RunState.NEEDS_ATTENTION))
    opened = await process.start("open")
    receipt = await process.attempted_in(opened, ReceiptState.AMBIGUOUS)
    await process.store.end_run(opened, RunEnd(RunState.CANCELLED))
    for run_id in ("run-1", "waits", "parked", "open"):
        row = await process.run(run_id)
        for erase in (process.store.erase_run, process.store.erase_receipts):
            with refusal(NotErasable, f"erasing the run {run_id}"):
                await erase(run_id, by="ada", why="so")
        expect(await process.run(run_id), row, "a run that was not erased")
    expect(len((await process.store.read_journal("run-1")).rows), 1, "records of that")
    kept = await process.store.read_receipt(receipt.operation_key)
    expect(kept, receipt, "a receipt that was not erased")
    with refusal(UnknownRun, "erasing an unknown run"):
        await process.store.erase_run("none", by="ada", why="so")


async def an_erased_effect_is_never_sent_again(scene: Scene) -> None:
    """Neither begun, nor sent again, nor settled; and its decisions are gone."""
    process = await scene.process()
    doubted = await process.attempted(ReceiptState.AMBIGUOUS)
    key = doubted.operation_key
    decision = settlement(doubted, Move.COMPLETE, by="ada", why="so", version=doubted.version)
    await process.store.settle_effect(decision)
    expect(len(await process.store.list_decisions(key)), 1, "decisions before")
    erased = await process.store.erase_receipts(doubted.run_id, by="ada", why="request 17")
    expect(erased, 1, "receipts that were erased")
    expect(await process.store.list_decisions(key), [], "decisions of an erased effect")
    expect(await process.store.match_receipts(key, 9), [], "receipts of an erased effect")
    with refusal(EffectErased, "beginning an erased effect"):
        await process.store.claim_effect(process.effect())
    with refusal(EffectErased, "sending an erased effect again"):
        await process.store.send_again(doubted, process.effect(), unknown=True, risk=True)
    with refusal(EffectErased, "settling an erased effect"):
        await process.store.settle_effect(settlement(doubted, Move.COMPLETE))
    again = await process.store.erase_receipts(doubted.run_id, by="bob", why="again")
    expect(again, 0, "receipts that are erased again")


async def large_runs_are_erased_whole(scene: Scene) -> None:
    """In parts that others can write between, with all their receipts and nobody else's."""
    process = await scene.process()
    fence, beside = await process.start(), await process.start("run-2")
    for number in range(450):
        await process.append(fence, "tool", number, document=b"%d" % number)
    for number in range(5):
        await process.attempted_in(fence, ReceiptState.COMPLETED, number)
        await process.attempted_in(beside, ReceiptState.COMPLETED, number)
    await process.append(beside, "tool", 1)
    await process.store.end_run(fence, _DONE)
    await process.store.erase_run("run-1", by="ada", why="so")
    tombstone = (await process.run()).tombstone
    ensure(tombstone and tombstone.whole, "all of it is gone")
    expect((await process.store.read_journal("run-1")).rows, [], "records of an erased run")
    left = await process.store.list_receipts(ambiguous_only=False, limit=99)
    expect({receipt.run_id for receipt in left}, {"run-2"}, "whose receipts are left")
    expect(len(left), 5, "receipts of another run")
    expect(len((await process.store.read_journal("run-2")).rows), 1, "records of another run")
