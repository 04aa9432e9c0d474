from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from perdure.effects.receipt import Move, Receipt, ReceiptState
from perdure.effects.store import BuriedReceipt, DecisionRow, EffectClaim, Owner, Settlement
from perdure.errors import StorageError
from perdure.storage.postgres.database import Database, Transaction
from perdure.storage.postgres.hints import Hints
from perdure.storage.postgres.lane import Lane
from perdure.storage.receipt_rows import (
    asked_row,
    begun,
    buried_of,
    erased,
    last_was_decided,
    lookup_row,
    next_attempt,
    stale,
    taken_back,
)

Claimed: TypeAlias = tuple[Receipt, bool] | None
"""The receipt and whether its attempt may be made; None when the owner no longer is one."""

_CLAIM_COLUMNS: Final = {
    "operation_key": "text",
    "run_id": "text",
    "idempotency_key": "text",
    "target": "text",
    "ordinal": "bigint",
    "support": "text",
    "arguments_sha256": "bytea",
    "holder": "text",
    "generation": "bigint",
    "token": "bytea",
    "now": "double",
    "settle_seconds": "double",
    "resend_after": "double",
    "handler_id": "text",
}
_ENDS_OF_DOUBT: Final = frozenset({Move.COMPLETE, Move.RULE_OUT})


class PostgresReceipts:
    """The receipts of one PostgreSQL schema."""

    hints: Hints

    def __init__(self, database: Database) -> None:
        self._db = database
        self._claiming = Lane(database, "insert_receipts", _CLAIM_COLUMNS)

    async def read_receipt(self, operation_key: str) -> Receipt | None:
        """Return a receipt, or None for an effect that was never begun; raises `EffectErased`."""
        row = await self._db.read_row("read_receipt", operation_key=operation_key)
        if row is not None:
            return self._receipt(row)
        tombstone = await self._db.read_row("read_tombstone", operation_key=operation_key)
        if tombstone is not None:
            raise erased(operation_key, tombstone)
        return None

    async def read_existing(self, operation_key: str) -> Receipt:
        """Return the receipt of an effect that was begun; raises `EffectErased`."""
        receipt = await self.read_receipt(operation_key)
        if receipt is None:
            raise StorageError(f"the receipt {operation_key} is gone, although nobody erased it")
        return receipt

    async def claim_effect(self, claim: EffectClaim) -> tuple[Receipt, bool]:
        """Begin the first attempt of an effect, or another one after a refusal.

        Durable when it returns: the receipt in flight, fsynced.
        If it raises: `LeaseLost` when the owner no longer is one, `EffectErased` for an effect
        whose receipt was erased, or a `StorageError`; nothing may be sent.
        """
        row = self._claim_row(claim)

        async def second(transaction: Transaction, again: bool) -> Claimed:  # noqa: FBT001
            del again
            return await self._claim_again(transaction, claim, row)

        async def first() -> Claimed:
            found = await self._claiming.send(row, "receipt.claim", key=claim.operation_key)
            if found is not None:
                return begun(claim, row["now"]), True
            return await self._db.transact(second, "receipt.claim")

        return await self._claimed(claim, first)

    async def send_again(
        self, receipt: Receipt, claim: EffectClaim, *, unknown: bool, risk: bool
    ) -> tuple[Receipt, bool]:
        """Begin another attempt of an ambiguous effect, unless its receipt has changed.

        Durable when it returns: the receipt in flight, fsynced.
        If it raises: as `claim_effect`.
        """
        if receipt.arguments_sha256 != claim.arguments_sha256:
            return await self.read_existing(claim.operation_key), False
        row = self._claim_row(claim)
        seen = {**row, **next_attempt(receipt, unknown=unknown, risk=risk)}

        async def job(transaction: Transaction, again: bool) -> Claimed:  # noqa: FBT001
            del again
            return await self._begin(transaction, row, seen)

        return await self._claimed(claim, lambda: self._db.transact(job, "receipt.resend"))

    async def settle_effect(self, settlement: Settlement) -> tuple[Receipt, bool]:
        """Move a receipt; return it and whether the move landed.

        Whoever ends doubt frees the run that is parked for it.
        Durable when it returns: the move, fsynced, and with a decision all of that.
        If it raises: `StaleDecision` when the receipt is not what a person decided about.
        """
        await self._db.note_key()
        now = self._db.clock.now()
        settled = await self._db.transact(
            lambda transaction, again: self._settle(transaction, settlement, now, again=again),
            "receipt.settle",
        )
        self.hints.tell()
        return settled

    async def mark_duplicate(self, settlement: Settlement) -> None:
        """Note that an attempt was applied although a later one had begun.

        Durable when it returns: the mark, fsynced.
        """
        key = {"operation_key": settlement.operation_key, "attempt": settlement.attempt}
        await self._db.write("mark_duplicate", key, "receipt.duplicate")

    async def doubt_vanished(self, operation_key: str | None) -> Sequence[Receipt]:
        """Make an attempt in flight whose owner is gone ambiguous; None means all of them.

        Returns the receipts that this call made so, and nobody else's.
        Durable when it returns: the doubts, fsynced.
        """
        # Looked for first: a worker asks every second, and mostly for nothing.
        if await self._db.read("any_vanished", operation_key=operation_key) == [(False,)]:
            return []
        row = {"operation_key": operation_key, "now": self._db.clock.now()}
        rows = await self._db.write("doubt_vanished", row, "receipt.doubt", before="doubted_before")
        return [await self.read_existing(key) for (key,) in rows]

    async def claim_lookup(
        self, receipt: Receipt, owner: Owner, hold_seconds: float
    ) -> tuple[Receipt, bool]:
        """Take the right to ask the target about an ambiguous attempt, for a while.

        Durable when it returns: the claim, fsynced.
        """
        row = lookup_row(receipt, owner, self._db.clock.now(), hold_seconds)
        found = await self._db.write(
            "claim_lookup", row, "receipt.lookup", before="lookup_claimed_before"
        )
        claimed = bool(found)
        return await self.read_existing(receipt.operation_key), claimed

    async def end_lookup(
        self, receipt: Receipt, *, answered: bool, ask_again_at: float, limit: int
    ) -> Receipt:
        """Note a lookup that settled nothing, unless another one has begun since `receipt`.

        One without an answer uses up one of `limit`.
        Durable when it returns: the count, fsynced.
        """
        row = asked_row(receipt, answered=answered, ask_again_at=ask_again_at, limit=limit)
        await self._db.write("end_lookup", row, "receipt.asked")
        return await self.read_existing(receipt.operation_key)

    async def list_receipts(
        self, *, ambiguous_only: bool, limit: int, run_id: str | None = None
    ) -> Sequence[Receipt]:
        """Return receipts, the newest first."""
        name = "list_receipts" if run_id is None else "list_receipts_of"
        name = "list_ambiguous" if ambiguous_only else name
        return await self._receipts(name, limit=limit, run_id=run_id)

    async def list_due(self, handler_ids: Sequence[str], limit: int) -> Sequence[Receipt]:
        """Return ambiguous receipts of these handlers whose targets may be asked now."""
        now = self._db.clock.now()
        return await self._receipts("list_due", handler_ids=[*handler_ids], now=now, limit=limit)

    async def match_receipts(self, prefix: str, limit: int) -> Sequence[Receipt]:
        """Return the receipts whose operation key begins with a text, in the order of the keys."""
        return await self._receipts("match_receipts", prefix=prefix, limit=limit)

    async def list_buried(self, run_id: str) -> Sequence[BuriedReceipt]:
        """Return what is left of the erased receipts of a run, in the order of the keys."""
        rows = await self._db.read("list_buried", **buried_of(run_id))
        return [BuriedReceipt(*row) for row in rows]

    async def list_decisions(self, operation_key: str) -> Sequence[DecisionRow]:
        """Return what people decided about an effect, oldest first."""
        rows = await self._db.read("list_decisions", operation_key=operation_key)
        return [self._db.rows.decision(row) for row in rows]

    async def list_changeable(self, limit: int) -> tuple[int, Sequence[Receipt]]:
        """Return receipts that may still change, and the number of the newest of all."""
        # First, so that one that is begun in between counts as newer.
        ((newest,),) = await self._db.read("newest_receipt")
        rows = await self._db.read("list_changeable", limit=limit)
        return newest, [self._without_answer(row) for row in rows]

    async def read_changes(
        self, after: int, known: Mapping[str, int], limit: int
    ) -> tuple[int, Sequence[Receipt]]:
        """Return receipts after a number, and those of `known` whose version is another now."""
        keys, versions = [*known], [*known.values()]
        rows = await self._db.read(
            "changed_receipts", after=after, keys=keys, versions=versions, limit=limit
        )
        last = max([after, *(row[-1] for row in rows)])
        return last, [self._without_answer(row) for row in rows]

    async def close_receipts(self) -> None:
        """Write what waits."""
        await self._claiming.close()

    def _claim_row(self, claim: EffectClaim) -> dict[str, Any]:
        row = self._db.rows.claim(claim, self._db.clock.now())
        return {**row, "token": secrets.token_bytes(8)}

    async def _claim_again(
        self, transaction: Transaction, claim: EffectClaim, row: Mapping[str, Any]
    ) -> Claimed:
        """Look why an effect could not be begun for the first time, and begin it again."""
        await transaction.run("lock_run", row)
        receipt = await self._find(transaction, row)
        ((token,),) = await transaction.run("read_token", row) or [(None,)]
        if receipt is not None and token == row["token"]:
            return receipt, receipt.state is ReceiptState.IN_FLIGHT
        if not await self._owns(transaction, row):
            return None
        if receipt is None:
            raise erased(row["operation_key"], await self._tombstone(transaction, row))
        another = receipt.arguments_sha256 != claim.arguments_sha256
        if another or receipt.state is not ReceiptState.FAILED:
            return receipt, False
        if claim.is_spent_by(receipt):
            decisions = await transaction.run("list_decisions", row)
            if not last_was_decided(receipt, decisions):
                return receipt, False
        seen = {**row, **next_attempt(receipt, unknown=False, risk=False)}
        return await self._begin(transaction, row, seen)

    async def _begin(
        self, transaction: Transaction, row: Mapping[str, Any], seen: Mapping[str, Any]
    ) -> Claimed:
        await transaction.run("lock_run", row)
        if not await self._owns(transaction, row):
            return None
        mine = await transaction.change("begin_attempt", seen) == 1
        receipt = await self._find(transaction, row)
        if receipt is None:
            raise erased(row["operation_key"], await self._tombstone(transaction, row))
        if not mine:
            # The claim may be one's own, whose answer was lost with the connection.
            ((token,),) = await transaction.run("read_token", row)
            mine = token == row["token"] and receipt.state is ReceiptState.IN_FLIGHT
        return receipt, mine

    async def _settle(
        self, transaction: Transaction, settlement: Settlement, now: float, *, again: bool
    ) -> tuple[Receipt, bool]:
        row = self._db.rows.settlement(settlement, now)
        receipt = await self._find(transaction, row)
        if receipt is not None:
            # Before the receipt: a run that is about to be parked for it waits, or is freed.
            await transaction.run("lock_run", {"run_id": receipt.run_id})
        decision = self._db.rows.new_decision(settlement, now)
        if await transaction.run("settle_receipt", row):
            if settlement.by is not None:
                await transaction.run("insert_decision", decision)
            if settlement.move in _ENDS_OF_DOUBT and not settlement.stopped and receipt is not None:
                await transaction.run("free_run", {"run_id": receipt.run_id})
            return await self._existing(transaction, row), True
        if settlement.move is Move.COMPLETE and settlement.stopped:
            await transaction.run("mark_duplicate", row)
        receipt = await self._existing(transaction, row)
        if settlement.version is not None:
            ((mine,),) = await transaction.run("decided_before", decision)
            if again and mine:
                return receipt, True
            raise stale(receipt, settlement.version)
        return receipt, again and _looks_done(receipt, settlement, row)

    async def _claimed(
        self, claim: EffectClaim, attempt: Callable[[], Awaitable[Claimed]]
    ) -> tuple[Receipt, bool]:
        task = asyncio.ensure_future(attempt())
        try:
            claimed = await asyncio.shield(task)
        except asyncio.CancelledError:
            # The claim is written all the same, and what is written next comes after it.
            with suppress(StorageError):  # the receipt is doubted by who comes next
                await asyncio.shield(self._take_back(task))
            raise
        if claimed is None:
            raise self._db.fenced_off(claim.identity.run_id)
        return claimed

    async def _take_back(self, task: asyncio.Future[Claimed]) -> None:
        claimed = await task
        if claimed is not None and claimed[1]:
            await self.settle_effect(taken_back(claimed[0]))

    async def _owns(self, transaction: Transaction, row: Mapping[str, Any]) -> bool:
        ((owns,),) = await transaction.run("owns", row)
        return bool(owns)

    async def _existing(self, transaction: Transaction, row: Mapping[str, Any]) -> Receipt:
        receipt = await self._find(transaction, row)
        if receipt is None:
            raise erased(row["operation_key"], await self._tombstone(transaction, row))
        return receipt

    async def _find(self, transaction: Transaction, row: Mapping[str, Any]) -> Receipt | None:
        rows = await transaction.run("read_receipt", row)
        return self._receipt(rows[0]) if rows else None

    async def _tombstone(self, transaction: Transaction, row: Mapping[str, Any]) -> Sequence[Any]:
        rows = await transaction.run("read_tombstone", row)
        if not rows:
            raise StorageError(f"the receipt {row['operation_key']} is gone: try again")
        return rows[0]

    async def _receipts(self, name: str, **parameters: Any) -> list[Receipt]:
        return [self._receipt(row) for row in await self._db.read(name, **parameters)]

    def _receipt(self, row: tuple[Any, ...]) -> Receipt:
        return self._db.rows.receipt(row[:-1])

    def _without_answer(self, row: tuple[Any, ...]) -> Receipt:
        place = Receipt.__struct_fields__.index("payload")
        return self._receipt((*row[:place], None, *row[place + 1 :]))


def _looks_done(receipt: Receipt, settlement: Settlement, row: Mapping[str, Any]) -> bool:
    """Tell whether a receipt is what a move made of it whose answer was lost."""
    return (
        receipt.state.value == row["state"]
        and receipt.attempt == settlement.attempt
        and receipt.generation == settlement.generation
        and receipt.settled_at == row["now"]
    )
