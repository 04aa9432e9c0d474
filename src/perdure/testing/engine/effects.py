from __future__ import annotations

from typing import Any, Final

from perdure.app import App
from perdure.canonical import encode
from perdure.context import Context
from perdure.effect_function import effect
from perdure.effects.answer import Landed
from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Move, Receipt, ReceiptState
from perdure.effects.store import Settlement
from perdure.engine.store import RunState
from perdure.errors import EffectRejected, OperationFailed, RunNeedsAttention
from perdure.functions import operation
from perdure.testing.engine.scene import Gate, Register, Scene, end_of
from perdure.testing.storage.expecting import ensure, expect, refusal

_AMBIGUOUS: Final = "EffectAmbiguous"


class _Bank:
    """A target that notes what it is sent, and drops repeats of a key where it is asked to."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.gate = Gate()

    @property
    def applied(self) -> int:
        """How many payments there are, of a bank that drops repeats."""
        return len({*self.sent})

    async def take(self, operation: OperationIdentity) -> int:
        """Take a payment, and keep the first answer until the gate is opened."""
        self.sent.append(operation.operation_key)
        await self.gate(operation.operation_key)
        return self.applied

    def paying(self, pay: Any) -> Register:
        """Return what registers a run that pays once."""

        def serving(app: App) -> None:
            @app.run(version=1)
            async def work(context: Context) -> str:
                try:
                    return f"paid {await context.call(pay)}"
                except OperationFailed as failed:
                    return failed.code

        return serving


async def an_effect_is_not_sent_again_once_it_is_known(scene: Scene) -> None:
    """An execution that takes over has what the target said."""
    sent: list[str] = []
    gate = Gate()

    @effect()
    async def pay(operation: OperationIdentity) -> str:
        sent.append(operation.operation_key)
        return "receipt 1"

    def serving(app: App) -> None:
        @app.run(version=1)
        async def work(context: Context) -> str:
            paid = await context.call(pay)
            await gate()
            return paid

    one = await scene.worker(serving)
    handle = await one.start("work", run_id=scene.name())
    await gate.reached()
    await scene.close(one)
    gate.open()
    other = await scene.worker(serving)
    expect(await end_of(other.handle(handle.run_id)), "receipt 1", "the result")
    (receipt,) = await _receipts(other, handle.run_id)
    expect(sent, [receipt.operation_key], "what was sent")
    expect(receipt.state, ReceiptState.COMPLETED, "its receipt")


async def a_repeat_has_the_key_of_the_first_attempt(scene: Scene) -> None:
    """So a target that drops repeats of a key applies the effect once."""
    bank = _Bank()

    @effect(support="idempotent")
    async def pay(operation: OperationIdentity) -> int:
        return await bank.take(operation)

    one = await scene.worker(bank.paying(pay))
    handle = await one.start("work", run_id=scene.name())
    await bank.gate.reached()
    await scene.close(one)
    bank.gate.open()
    other = await scene.worker(bank.paying(pay))
    expect(await end_of(other.handle(handle.run_id)), "paid 1", "the result")
    expect((len(bank.sent), bank.applied), (2, 1), "how often it was sent, and applied")


async def an_effect_in_doubt_waits_for_a_person(scene: Scene) -> None:
    """It is not sent again; the person's answer is what it came to."""
    bank, other, run_id = await _left_in_doubt(scene)
    await _settle(other, run_id, Move.COMPLETE, encode("by hand"))
    expect(await end_of(other.handle(run_id)), "paid by hand", "the result")
    expect(len(bank.sent), 1, "how often it was sent")


async def a_person_may_let_an_effect_be_sent_again(scene: Scene) -> None:
    """Under the key that it had."""
    bank, other, run_id = await _left_in_doubt(scene)
    bank.gate.open()
    await _settle(other, run_id, Move.RULE_OUT, None)
    expect(await end_of(other.handle(run_id)), "paid 1", "the result")
    expect((len(bank.sent), bank.applied), (2, 1), "how often it was sent, and under which keys")


async def doubt_is_told_where_the_code_asks_for_that(scene: Scene) -> None:
    """The effect stays in doubt, and the run goes on."""
    bank = _Bank()

    @effect(on_ambiguous="tell")
    async def pay(operation: OperationIdentity) -> int:
        return await bank.take(operation)

    one = await scene.worker(bank.paying(pay))
    handle = await one.start("work", run_id=scene.name())
    await bank.gate.reached()
    await scene.close(one)
    other = await scene.worker(bank.paying(pay))
    expect(await end_of(other.handle(handle.run_id)), _AMBIGUOUS, "what the code is told")
    (receipt,) = await _receipts(other, handle.run_id)
    expect((receipt.state, len(bank.sent)), (ReceiptState.AMBIGUOUS, 1), "what became of it")


async def a_target_that_can_be_asked_settles_doubt(scene: Scene) -> None:
    """What landed is not sent again."""
    bank = _Bank()
    asked: list[str] = []

    @effect(support="outcome_queryable")
    async def pay(operation: OperationIdentity) -> int:
        return await bank.take(operation)

    @pay.lookup
    async def find(operation: OperationIdentity) -> Landed:
        asked.append(operation.operation_key)
        return Landed(7)

    one = await scene.worker(bank.paying(pay))
    handle = await one.start("work", run_id=scene.name())
    await bank.gate.reached()
    await scene.close(one)
    other = await scene.worker(bank.paying(pay))
    expect(await end_of(other.handle(handle.run_id)), "paid 7", "the result")
    ensure({*asked} == {*bank.sent} and len(bank.sent) == 1, "the target is asked, and sent once")


async def a_refusal_is_a_failure_and_no_doubt(scene: Scene) -> None:
    """It is recorded, and nothing is sent again."""
    sent: list[str] = []

    @effect()
    async def pay(operation: OperationIdentity) -> int:
        sent.append(operation.operation_key)
        raise EffectRejected("no funds")

    app = await scene.worker(_Bank().paying(pay))
    handle = await app.start("work", run_id=scene.name())
    expect(await end_of(handle), "EffectRejected", "what the code is told")
    (receipt,) = await _receipts(app, handle.run_id)
    expect((receipt.state, len(sent)), (ReceiptState.FAILED, 1), "what became of it")


async def what_is_read_only_has_no_receipt(scene: Scene) -> None:
    """It is called again where its process ends, and nobody is asked."""
    gate = Gate()

    @operation(read_only=True)
    async def look() -> int:
        await gate()
        return len(gate.came)

    one = await scene.worker(_Bank().paying(look))
    handle = await one.start("work", run_id=scene.name())
    await gate.reached()
    await scene.close(one)
    gate.open()
    other = await scene.worker(_Bank().paying(look))
    expect(await end_of(other.handle(handle.run_id)), "paid 2", "the result")
    expect(await _receipts(other, handle.run_id), [], "the receipts")


async def _left_in_doubt(scene: Scene) -> tuple[_Bank, App, str]:
    """Have a run wait for a person, since nobody knows what became of its effect."""
    bank = _Bank()

    @effect()
    async def pay(operation: OperationIdentity) -> Any:
        return await bank.take(operation)

    one = await scene.worker(bank.paying(pay))
    handle = await one.start("work", run_id=scene.name())
    await bank.gate.reached()
    await scene.close(one)
    other = await scene.worker(bank.paying(pay))
    with refusal(RunNeedsAttention, "a run with an effect in doubt"):
        await end_of(other.handle(handle.run_id))
    row = await other.find(handle.run_id)
    expect(row.state, RunState.NEEDS_ATTENTION, "where it stands")
    expect(row.problem and row.problem.code, _AMBIGUOUS, "what it needs attention for")
    expect(len(bank.sent), 1, "how often it was sent")
    return bank, other, handle.run_id


async def _settle(app: App, run_id: str, move: Move, payload: bytes | None) -> None:
    (receipt,) = await _receipts(app, run_id)
    expect(receipt.state, ReceiptState.AMBIGUOUS, "the receipt of an effect in doubt")
    _, landed = await app.store.settle_effect(
        Settlement(
            operation_key=receipt.operation_key,
            attempt=receipt.attempt,
            generation=receipt.generation,
            move=move,
            payload=payload,
            by="ada",
            why="she asked the bank",
            version=receipt.version,
        )
    )
    ensure(landed, "a person's decision lands")


async def _receipts(app: App, run_id: str) -> list[Receipt]:
    return [*await app.store.list_receipts(ambiguous_only=False, limit=9, run_id=run_id)]
