"""Connections lost in the middle of a write: it is made once, and its caller is told so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure import RunState
from perdure.activity import Rest
from perdure.approvals import Deny, NewAnswer
from perdure.clock import SystemClock
from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Move, Receipt, ReceiptState
from perdure.effects.store import Owner
from perdure.engine.store import RunEnd, RunProblem
from perdure.errors import AlreadyResolved, LeaseLost, StaleDecision
from perdure.inbox import NewMessage
from perdure.journal import Success
from perdure.journal.checkpoint import Checkpoint, CheckpointKind, Saved
from perdure.observe import Observer
from perdure.ports import no_probe
from perdure.storage.postgres import PostgresStorage
from perdure.storage.postgres.hints import Hints
from perdure.testing.storage.scene import Process, delay, message, new_run, record, settlement
from tests.acceptance.samples import some
from tests.harness import run
from tests.proxy import Cut, Proxy, proxy
from tests.storages import kept_on_server, url_of

MOST_REQUESTS = 40
END = RunEnd(RunState.COMPLETED, b"1")
STUCK = RunEnd(RunState.FAILED, problem=RunProblem("Code", "Type", "why"))


@dataclass
class Place:
    """A process whose way to the server is cut, and another one that looks."""

    cut: Process
    other: Process
    run_id: str

    def identity(self, ordinal: int = 1) -> OperationIdentity:
        return OperationIdentity(self.run_id, "charge", "bank", ordinal)

    async def attempted(self, state: ReceiptState = ReceiptState.IN_FLIGHT) -> Receipt:
        return await self.other.attempted(state, identity=self.identity())

    async def receipt(self) -> Receipt:
        receipt = await self.other.store.read_receipt(self.identity().operation_key)
        assert receipt is not None
        return receipt

    async def endings(self) -> list[str | None]:
        return [row.ending for row in await self.other.store.list_attempts(self.run_id)]


Write = Callable[[Place], Awaitable[Callable[[], Awaitable[Callable[[], Awaitable[None]]]]]]
"""Prepares, and returns what writes, which returns what checks."""


async def start(place: Place) -> Any:
    async def write() -> Any:
        started = await place.cut.store.start_run(new_run(place.run_id), place.cut.holder)

        async def check() -> None:
            assert started.created
            assert started.claimed is not None
            assert started.claimed.fence.generation == 1
            assert await place.endings() == [None]

        return check

    return write


async def claim(place: Place) -> Any:
    await place.other.store.start_run(new_run(place.run_id), None)

    async def write() -> Any:
        claimed = await place.cut.claim()

        async def check() -> None:
            assert claimed == [place.run_id]
            assert await place.endings() == [None]

        return check

    return write


async def append(place: Place) -> Any:
    fence = await place.cut.start(place.run_id)
    document = place.run_id.encode() * 3

    async def write() -> Any:
        await place.cut.append(fence, "model", 1, document=document, cuts=(4, 9))

        async def check() -> None:
            assert len(await place.other.store.list_operations(place.run_id)) == 1
            found = await place.other.store.read_input(place.run_id, "model", 1)
            assert found == document

        return check

    return write


async def begin_timer(place: Place) -> Any:
    fence = await place.cut.start(place.run_id)

    async def write() -> Any:
        await place.cut.store.begin_timer(fence, *delay(fence), 5.0)

        async def check() -> None:
            assert len((await place.other.store.read_journal(place.run_id)).timers) == 1

        return check

    return write


async def end(place: Place) -> Any:
    fence = await place.cut.start(place.run_id)

    async def write() -> Any:
        state = await place.cut.store.end_run(fence, END)

        async def check() -> None:
            assert state is RunState.COMPLETED
            assert await place.endings() == ["completed"]
            with pytest.raises(LeaseLost):
                await place.cut.store.end_run(fence, STUCK)

        return check

    return write


async def release(place: Place) -> Any:
    fence = await place.cut.start(place.run_id)

    async def write() -> Any:
        await place.cut.store.release_run(fence)

        async def check() -> None:
            assert await place.endings() == ["released"]
            assert await place.other.claim() == [place.run_id]

        return check

    return write


async def cancel(place: Place) -> Any:
    await place.other.store.start_run(new_run(place.run_id), None)

    async def write() -> Any:
        row = await place.cut.store.request_cancel(place.run_id)

        async def check() -> None:
            assert row is not None
            assert row.state is RunState.CANCELLED

        return check

    return write


async def resume(place: Place) -> Any:
    await place.other.store.end_run(await place.other.start(place.run_id), STUCK)

    async def write() -> Any:
        row = await place.cut.store.resume_run(place.run_id)

        async def check() -> None:
            assert row is not None
            assert row.state is RunState.PENDING

        return check

    return write


async def claim_effect(place: Place) -> Any:
    async def write() -> Any:
        claim = place.cut.effect(identity=place.identity())
        receipt, mine = await place.cut.store.claim_effect(claim)

        async def check() -> None:
            assert (mine, receipt.attempt) == (True, 1)
            assert await place.receipt() == receipt
            assert not (await place.other.store.claim_effect(claim))[1]

        return check

    return write


async def claim_effect_again(place: Place) -> Any:
    await place.attempted(ReceiptState.FAILED)

    async def write() -> Any:
        claim = place.cut.effect(identity=place.identity())
        receipt, mine = await place.cut.store.claim_effect(claim)

        async def check() -> None:
            assert (mine, receipt.attempt, receipt.holder) == (True, 2, place.cut.holder)
            assert await place.receipt() == receipt

        return check

    return write


async def send_again(place: Place) -> Any:
    seen = await place.attempted(ReceiptState.AMBIGUOUS)

    async def write() -> Any:
        claim = place.cut.effect(identity=place.identity())
        receipt, mine = await place.cut.store.send_again(seen, claim, unknown=True, risk=False)

        async def check() -> None:
            assert (mine, receipt.attempt, receipt.earlier_unknown) == (True, 2, True)
            assert await place.receipt() == receipt

        return check

    return write


async def settle(place: Place) -> Any:
    seen = await place.attempted()

    async def write() -> Any:
        receipt, landed = await place.cut.store.settle_effect(
            settlement(seen, Move.COMPLETE, stopped=True)
        )

        async def check() -> None:
            assert landed
            assert (receipt.state, receipt.version) == (ReceiptState.COMPLETED, 2)
            assert await place.receipt() == receipt
            assert not receipt.residual_duplicate_risk

        return check

    return write


async def decide(place: Place) -> Any:
    seen = await place.attempted(ReceiptState.AMBIGUOUS)
    decision = settlement(seen, Move.RULE_OUT, by="ada", why="so", version=seen.version)

    async def write() -> Any:
        receipt, landed = await place.cut.store.settle_effect(decision)

        async def check() -> None:
            assert (landed, receipt.state) == (True, ReceiptState.FAILED)
            (kept,) = await place.other.store.list_decisions(receipt.operation_key)
            assert kept.decided_by == "ada"
            with pytest.raises(StaleDecision):
                await place.cut.store.settle_effect(decision)

        return check

    return write


async def settle_record(place: Place) -> Any:
    fence = await place.cut.start(place.run_id)
    owner = Owner(fence.holder, fence.generation)
    claim = place.cut.effect(owner=owner, identity=place.identity())
    seen, _ = await place.cut.store.claim_effect(claim)
    written = record(fence, "charge", 1, outcome=Success(b'"paid"'))

    async def write() -> Any:
        move = settlement(seen, Move.COMPLETE, payload=None, stopped=True)
        receipt, landed = await place.cut.store.settle_record(fence, move, written)

        async def check() -> None:
            assert (landed, receipt.state) == (True, ReceiptState.COMPLETED)
            assert await place.receipt() == receipt
            (row,) = (await place.other.store.read_journal(place.run_id)).rows
            assert row.payload == b'"paid"'
            assert not receipt.residual_duplicate_risk

        return check

    return write


async def doubt(place: Place) -> Any:
    gone = Process(place.other.store, await place.other.store.register_worker("gone", 60.0))
    await gone.attempted(identity=place.identity())
    await gone.store.retire_worker(gone.holder)

    async def write() -> Any:
        doubted = await place.cut.store.doubt_vanished(None)

        async def check() -> None:
            assert list(doubted) == [await place.receipt()]
            assert doubted[0].state is ReceiptState.AMBIGUOUS
            assert list(await place.cut.store.doubt_vanished(None)) == []

        return check

    return write


async def claim_lookup(place: Place) -> Any:
    seen = await place.attempted(ReceiptState.AMBIGUOUS)
    assert seen.lookup_at is not None
    while place.cut.store.clock.now() < seen.lookup_at:
        # Two processes take the server's time to differ by what their replies took.
        await asyncio.sleep(0)

    async def write() -> Any:
        owner = Owner(place.cut.holder)
        receipt, mine = await place.cut.store.claim_lookup(seen, owner, 60.0)

        async def check() -> None:
            assert (mine, receipt.lookup_holder) == (True, place.cut.holder)
            assert await place.receipt() == receipt
            assert not (await place.other.store.claim_lookup(seen, owner, 60.0))[1]

        return check

    return write


async def create_checkpoint(place: Place) -> Any:
    return await _checkpoint(place, 1, Saved.CREATED)


async def advance_checkpoint(place: Place) -> Any:
    return await _checkpoint(place, 2, Saved.ADVANCED)


async def _checkpoint(place: Place, revision: int, expected: Saved) -> Any:
    await place.cut.start(place.run_id)
    first, last = (
        Checkpoint(place.run_id, "c", CheckpointKind.STREAM, number, 0, b"{}")
        for number in (1, revision)
    )
    if revision > 1:
        await place.other.store.save_checkpoint(first)

    async def write() -> Any:
        saved = await place.cut.store.save_checkpoint(last)

        async def check() -> None:
            assert saved is expected
            assert await place.other.store.load_checkpoint(place.run_id, "c") == last
            assert await place.cut.store.save_checkpoint(last) is Saved.DUPLICATE

        return check

    return write


async def erase(place: Place) -> Any:
    fence = await place.cut.start(place.run_id)
    await place.cut.append(fence, "tool", 1)
    await place.attempted(ReceiptState.COMPLETED)
    await place.cut.store.end_run(fence, END)

    async def write() -> Any:
        await place.cut.store.erase_run(place.run_id, by="ada", why="so")

        async def check() -> None:
            row = await place.other.run(place.run_id)
            assert row.tombstone is not None
            assert row.tombstone.whole
            listed = await place.other.store.list_receipts(
                ambiguous_only=False, limit=9, run_id=place.run_id
            )
            assert list(listed) == []

        return check

    return write


async def register(place: Place) -> Any:
    async def write() -> Any:
        holder = await place.cut.store.register_worker(place.run_id, 60.0)

        async def check() -> None:
            workers = await place.other.store.list_workers()
            named = [row.holder for row in workers if row.name == place.run_id]
            assert named == [holder]
            await place.other.store.retire_worker(holder)

        return check

    return write


async def retire(place: Place) -> Any:
    holder = await place.cut.store.register_worker(place.run_id, 60.0)
    await Process(place.cut.store, holder).start(place.run_id)

    async def write() -> Any:
        await place.cut.store.retire_worker(holder)

        async def check() -> None:
            assert await place.endings() == ["released"]
            assert await place.other.state(place.run_id) is RunState.PENDING

        return check

    return write


async def park(place: Place) -> Any:
    return await _park(place, RunState.SUSPENDED, "suspended")


async def park_what_has_come(place: Place) -> Any:
    return await _park(place, RunState.PENDING, "released", message(place.run_id))


async def _park(place: Place, wanted: RunState, ending: str, *come: NewMessage) -> Any:
    fence = await place.cut.start(place.run_id)
    for each in come:
        await place.other.store.send_message(each)
    rest = Rest(None, frozenset({"news"}))

    async def write() -> Any:
        state = await place.cut.store.park_run(fence, rest, executed=1, replayed=0)

        async def check() -> None:
            assert state is wanted
            assert await place.endings() == [ending]
            with pytest.raises(LeaseLost):
                await place.cut.store.park_run(fence, rest, executed=1, replayed=0)
            await place.other.store.request_cancel(place.run_id)

        return check

    return write


async def wake(place: Place) -> Any:
    fence = await place.other.start(place.run_id)
    await place.other.store.park_run(fence, Rest(5.0), executed=1, replayed=0)

    async def write() -> Any:
        await place.cut.store.wake_runs()

        async def check() -> None:
            assert await place.other.state(place.run_id) is RunState.PENDING

        return check

    return write


async def send(place: Place) -> Any:
    await place.cut.start(place.run_id)

    async def write() -> Any:
        sent = await place.cut.store.send_message(message(place.run_id))

        async def check() -> None:
            assert sent.edition == 1
            assert list(await place.other.store.list_messages(place.run_id)) == [sent]

        return check

    return write


async def edit(place: Place) -> Any:
    await place.cut.start(place.run_id)
    await place.other.store.send_message(message(place.run_id))

    async def write() -> Any:
        new = message(place.run_id, payload_json=b"2")
        sent = await place.cut.store.send_message(new, edit=True)

        async def check() -> None:
            assert (sent.edition, sent.payload_json) == (2, b"2")
            assert list(await place.other.store.list_messages(place.run_id)) == [sent]

        return check

    return write


async def withdraw(place: Place) -> Any:
    await place.cut.start(place.run_id)
    await place.other.store.send_message(message(place.run_id))

    async def write() -> Any:
        withdrawn = await place.cut.store.withdraw_message(place.run_id, "m-1")

        async def check() -> None:
            assert withdrawn
            assert not await place.cut.store.withdraw_message(place.run_id, "m-1")

        return check

    return write


async def take(place: Place) -> Any:
    fence = await place.cut.start(place.run_id)
    sent = await place.other.store.send_message(message(place.run_id))
    document = place.run_id.encode() * 3

    async def write() -> Any:
        taking = record(fence, "wait", 1, document=document, cuts=(4, 9))
        landed = await place.cut.store.take_message(fence, sent, taking)

        async def check() -> None:
            assert landed
            (found,) = await place.other.store.list_messages(place.run_id)
            assert found.taken_by == ("wait", 1)
            assert await place.other.store.read_input(place.run_id, "wait", 1) == document
            # And where nobody was told, and it is taken once more.
            assert await place.cut.store.take_message(fence, sent, taking)
            later = record(fence, "wait", 2)
            assert not await place.cut.store.take_message(fence, sent, later)

        return check

    return write


async def ask(place: Place) -> Any:
    fence = await place.cut.start(place.run_id)

    async def write() -> Any:
        await place.cut.ask(fence, 1)

        async def check() -> None:
            (asked,) = await place.other.store.list_approvals(place.run_id)
            assert asked.open
            assert len((await place.other.store.read_journal(place.run_id)).timers) == 1

        return check

    return write


async def answer(place: Place) -> Any:
    await place.cut.ask(await place.cut.start(place.run_id), 1)
    said = NewAnswer(Deny("no"), "ada", 7.5)

    async def write() -> Any:
        answered = await place.cut.store.answer_approval(place.run_id, "1", said)

        async def check() -> None:
            assert (answered.answer, answered.open) == (said.answer, False)
            assert len(await place.other.store.list_messages(place.run_id)) == 1
            with pytest.raises(AlreadyResolved):
                await place.cut.store.answer_approval(place.run_id, "1", said)

        return check

    return write


WRITES: list[Write] = [
    start,
    claim,
    append,
    begin_timer,
    end,
    release,
    cancel,
    resume,
    claim_effect,
    claim_effect_again,
    send_again,
    settle,
    decide,
    settle_record,
    doubt,
    claim_lookup,
    create_checkpoint,
    advance_checkpoint,
    erase,
    register,
    retire,
    park,
    park_what_has_come,
    wake,
    send,
    edit,
    withdraw,
    take,
    ask,
    answer,
]


@pytest.mark.parametrize("cut", Cut, ids=lambda cut: cut.value)
@pytest.mark.parametrize(
    "write",
    some(WRITES, lambda write: write.__name__.encode(), of=4),
    ids=lambda write: write.__name__,
)
def test_a_write_whose_connection_is_lost_is_made_once_and_told_right(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write, cut: Cut
) -> None:
    # What is lost here is a request of the write, and not of those who listen.
    monkeypatch.setattr(Hints, "open", lambda hints: None)
    monkeypatch.setattr(Hints, "tell", lambda hints: None)

    async def main() -> None:
        async with proxy(url_of(tmp_path)) as way:
            cut_off, direct = await opened(way.url), await opened(url_of(tmp_path))
            try:
                await lose_each_request(way, cut_off, direct)
            finally:
                await cut_off.store.close()
                await direct.store.close()

    async def lose_each_request(way: Proxy, cut_off: Process, direct: Process) -> None:
        for number in range(MOST_REQUESTS):
            place = Place(cut_off, direct, f"run-{number}")
            writing = await write(place)
            way.lose(cut, number)
            check = await asyncio.wait_for(writing(), 60)
            untouched = way.disarm()
            await check()
            if untouched:
                break
        assert untouched, "the write has more requests than this test cuts"
        assert way.cuts == number > 0

    with kept_on_server(tmp_path, postgres):
        run(main())


async def opened(url: str) -> Process:
    store = PostgresStorage(url, SystemClock(), Observer(), busy_seconds=10, probe=no_probe)
    await store.open()
    return Process(store, await store.register_worker("worker", 3600.0))
