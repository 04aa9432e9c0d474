from __future__ import annotations

import asyncio

from perdure.activity import Rest
from perdure.engine.store import RunState
from perdure.errors import LeaseLost, MessageConflict, MessageTaken, RunEnded, RunErased, UnknownRun
from perdure.journal.invocation import SEQUENCE_LIMIT, OperationKind
from perdure.journal.record import Success
from perdure.testing.storage.expecting import ensure, expect, refusal
from perdure.testing.storage.scene import SERVED, Process, Scene, message, new_run, record


async def a_message_is_there_once_by_its_id(scene: Scene) -> None:
    """However often it is sent, by whom and at once; its id is its run's own."""
    one, other = await scene.process(), await scene.process()
    await one.start("run-1")
    await other.start("run-2")
    sent = await asyncio.gather(
        *(
            process.store.send_message(
                message("run-1", "m-1", b'"\xc3\xa9"', sent_by="ada \ud800\x00")
            )
            for process in (one, other, one, other)
        )
    )
    expect(sent, sent[:1] * 4, "a message that is sent four times")
    told = (
        sent[0].message_id,
        sent[0].name,
        sent[0].edition,
        sent[0].payload_json,
        sent[0].sent_at,
    )
    expect(told, ("m-1", "news", 1, b'"\xc3\xa9"', 6.5), "a message that was sent")
    expect((sent[0].taken_by, sent[0].taken_at), (None, None), "who took it")
    await other.store.send_message(message("run-2", "m-1", b"2"))
    beside = await other.store.send_message(message("run-1", "m-2", b'"\xc3\xa9"'))
    expect([*await one.store.list_messages("run-1")], [sent[0], beside], "the messages of a run")
    for odd in (message(payload_json=b"2"), message(payload_json=b'"\xc3\xa9"', name="other")):
        with refusal(MessageConflict, "another message under an id"):
            await one.store.send_message(odd)
    with refusal(UnknownRun, "a message to an unknown run"):
        await one.store.send_message(message("none"))


async def messages_come_in_the_order_of_their_names(scene: Scene) -> None:
    """The oldest of a name that nobody has taken is the next, whichever others there are."""
    one, other = await scene.process(), await scene.process()
    fence = await one.start()
    ids = [f"m-{number}" for number in (5, 3, 4, 1)]
    for number, message_id in enumerate(ids):
        store = (one, other)[number % 2].store
        name = "odd" if message_id == "m-3" else "news"
        await store.send_message(message(message_id=message_id, name=name))
    listed = [found.message_id for found in await other.store.list_messages("run-1")]
    expect(listed, ids, "the messages of a run in their order")
    for number, message_id in enumerate(("m-5", "m-4", "m-1")):
        found = await other.store.next_message("run-1", "news")
        expect(found and found.message_id, message_id, "the next message of a name")
        ensure(await one.take(fence, "news", number), "it was there")
    expect(await other.store.next_message("run-1", "news"), None, "the next of none")
    found = await other.store.next_message("run-1", "odd")
    expect(found and found.message_id, "m-3", "the next message of another name")


async def what_nobody_has_taken_is_edited_and_withdrawn(scene: Scene) -> None:
    """An edited one keeps its turn; one that was taken stays as it was."""
    process, other = await scene.process(), await scene.process()
    fence = await process.start()
    for message_id in ("m-1", "m-2", "m-3"):
        await process.store.send_message(message(message_id=message_id))
    edited = await other.store.send_message(
        message(payload_json=b'"new"', sent_by="bob"), edit=True
    )
    told = (edited.payload_json, edited.edition, edited.sent_by)
    expect(told, (b'"new"', 2, "bob"), "a message that was edited")
    expect(await process.store.next_message("run-1", "news"), edited, "the next message")
    again = await other.store.send_message(message(payload_json=b'"new"'), edit=True)
    expect(again, edited, "a message that is edited to what it says")
    ensure(await other.store.withdraw_message("run-1", "m-2"), "one that waits is withdrawn")
    ensure(not await other.store.withdraw_message("run-1", "m-2"), "it is gone then")
    ensure(await process.take(fence, "news", 1), "the edited one is taken")
    with refusal(MessageTaken, "editing what was taken"):
        await other.store.send_message(message(payload_json=b"3"), edit=True)
    with refusal(MessageTaken, "withdrawing what was taken"):
        await other.store.withdraw_message("run-1", "m-1")
    left = [
        (each.message_id, each.payload_json) for each in await other.store.list_messages("run-1")
    ]
    expect(left, [("m-1", b'"new"'), ("m-3", b"1")], "the messages that are left")
    expect((await other.store.send_message(message(payload_json=b'"new"'))).edition, 2, "it again")


async def a_message_is_taken_once_with_the_record_of_it(scene: Scene) -> None:
    """Both are there or neither: not in another edition, nor under a fence that does not hold."""
    process, other = await scene.process(), await scene.process()
    fence = await process.start()
    first = await process.store.send_message(message())
    await process.wait_for(fence, "wait")
    taking = record(fence, "wait", 1, kind=OperationKind.APPROVAL_RESUME, outcome=Success(b'"it"'))
    edited = await other.store.send_message(message(payload_json=b"2"), edit=True)
    landed = await process.store.take_message(fence, first, taking)
    ensure(not landed, "an edition that is gone is not taken")
    await _nothing_is_taken(other)
    await process.store.release_run(fence)
    (claim,) = await other.store.claim_runs(other.holder, SERVED, 9)
    with refusal(LeaseLost, "taking a message of a run that another worker has"):
        await process.store.take_message(fence, edited, taking)
    await _nothing_is_taken(other)
    fence, kind = claim.fence, OperationKind.APPROVAL_RESUME
    taking = record(fence, "wait", 1, kind=kind, outcome=Success(b'"it"'))
    ensure(await other.store.take_message(fence, edited, taking), "it is there still")
    journal = await process.store.read_journal("run-1")
    expect([each.payload for each in journal.rows], [b'"it"'], "the record of what took it")
    expect(journal.timers, [], "the wait that it ended")
    (found,) = await process.store.list_messages("run-1")
    expect((found.taken_by, found.taken_at), (("wait", 1), 11.5), "what took it, and when")
    late = record(fence, "wait", SEQUENCE_LIMIT, kind=kind)
    landed = await other.store.take_message(fence, edited, late)
    ensure(not landed, "what was taken is not taken again")
    expect(len((await process.store.read_journal("run-1")).rows), 1, "the records of one taking")


async def one_of_several_takes_a_message(scene: Scene) -> None:
    """Of operations that want the same one at once."""
    process, other = await scene.process(), await scene.process()
    fence = await process.start()
    for number in range(3):
        sent = await other.store.send_message(message(message_id=f"m-{number}"))
        records = [record(fence, f"wait-{number}", each) for each in range(6)]
        taken = await asyncio.gather(
            *(process.store.take_message(fence, sent, each) for each in records)
        )
        expect(sum(taken), 1, "operations that took one message")
    rows = (await other.store.read_journal("run-1")).rows
    expect(len(rows), 3, "the records of three takings")
    places = sorted((row.step_id, row.sequence) for row in rows)
    messages = await other.store.list_messages("run-1")
    expect(sorted(filter(None, (each.taken_by for each in messages))), places, "what took them")


async def a_run_that_has_ended_takes_no_messages(scene: Scene) -> None:
    """Not even where one waits for it; what it was sent before is told as it stands."""
    process = await scene.process()
    for state in (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED):
        run_id = f"run-{state}"
        fence = await process.start(run_id)
        sent = await process.store.send_message(message(run_id))
        await process.end(fence, state)
        with refusal(RunEnded, f"a message to a run that is {state}"):
            await process.store.send_message(message(run_id, "m-2"))
        expect(await process.store.send_message(message(run_id)), sent, "what it was sent before")
        expect(len(await process.store.list_messages(run_id)), 1, "the messages of it")
    await process.store.erase_run("run-completed", by="ada", why="so")
    with refusal(RunErased, "a message to an erased run"):
        await process.store.send_message(message("run-completed", "m-2"))
    expect(await process.store.list_messages("run-completed"), [], "the messages of an erased run")
    await process.store.start_run(new_run("waits"), None)
    await process.store.send_message(message("waits"))
    expect(len(await process.store.list_messages("waits")), 1, "messages to a run that waits")


async def a_message_before_its_waiter_is_never_lost(scene: Scene) -> None:
    """Whoever is faster: the run waits for a worker in the end, and the message for the run."""
    process, other = await scene.process(), await scene.process()
    for number in range(12):
        run_id = f"run-{number}"
        fence = await process.start(run_id)
        await process.wait_for(fence, "news")
        rest = Rest(None, frozenset({"news"}))
        sending = other.store.send_message(message(run_id))
        parking = process.store.park_run(fence, rest, executed=0, replayed=0)
        await asyncio.gather(*((sending, parking) if number % 2 else (parking, sending)))
        expect(await other.state(run_id), RunState.PENDING, "a run whose message has come")
        found = await other.store.next_message(run_id, "news")
        expect(found and found.message_id, "m-1", "the message that it waits for")


async def a_message_wakes_the_run_that_awaits_it(scene: Scene) -> None:
    """A suspended run goes on when one of those names comes, and for no other."""
    process, other = await scene.process(), await scene.process()
    for run_id in ("run-1", "run-2"):
        fence = await process.start(run_id)
        for name in ("news", "mail"):
            await process.wait_for(fence, name, 1e10)
        rest = Rest(1e10, frozenset({"news", "mail"}))
        state = await process.store.park_run(fence, rest, executed=0, replayed=0)
        expect(state, RunState.SUSPENDED, "a run that awaits messages")
    await other.store.send_message(message(name="other"))
    expect(await other.state(), RunState.SUSPENDED, "a run that another name came to")
    await other.store.send_message(message(message_id="m-2", name="mail"))
    row = await other.run()
    expect((row.state, row.wake_at), (RunState.PENDING, None), "a run whose message came")
    expect(await other.state("run-2"), RunState.SUSPENDED, "a run beside it")
    expect(await other.claim(), ["run-1"], "the runs that wait for a worker")


async def _nothing_is_taken(process: Process) -> None:
    (found,) = await process.store.list_messages("run-1")
    expect((found.taken_by, found.taken_at), (None, None), "what took a message that is left")
    journal = await process.store.read_journal("run-1")
    expect((len(journal.rows), len(journal.timers)), (0, 1), "what was recorded of it")
