from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec

from perdure.effects.receipt import Move, Receipt, ReceiptState
from perdure.effects.store import BuriedReceipt, DecisionRow, EffectClaim, Owner, Settlement
from perdure.errors import StorageError
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
from perdure.storage.sqlite.database import Database

Claimed: TypeAlias = tuple[Receipt, bool] | None
"""The receipt and whether its attempt may be made; None when the owner no longer is one."""


_ENDS_OF_DOUBT: Final = frozenset({Move.COMPLETE, Move.RULE_OUT})


class SqliteReceipts:
    """The receipts of one SQLite file."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def read_receipt(self, operation_key: str) -> Receipt | None:
        """Return a receipt, or None for an effect that was never begun; raises `EffectErased`."""
        row = self._db.read_row("read_receipt", operation_key=operation_key)
        if row is None:
            tombstone = self._db.read_row("read_tombstone", operation_key=operation_key)
            if tombstone is not None:
                raise erased(operation_key, tombstone)
            return None
        return self._db.rows.receipt(row)

    async def claim_effect(self, claim: EffectClaim) -> tuple[Receipt, bool]:
        """Begin the first attempt of an effect, or another one after a refusal.

        Durable when it returns: the receipt in flight, fsynced.
        If it raises: `LeaseLost` when the owner no longer is one, `EffectErased` for an effect
        whose receipt was erased, or a `StorageError`; nothing may be sent.
        """
        row = self._db.rows.claim(claim, self._db.clock.now())

        def job(connection: sqlite3.Connection) -> Claimed:
            if self._db.run(connection, "insert_receipt", row).rowcount == 1:
                return begun(claim, row["now"]), True
            if not self._owns(connection, row):
                return None
            receipt = self._read(connection, row)
            if receipt.state is not ReceiptState.FAILED:
                return receipt, False
            if claim.is_spent_by(receipt):
                decisions = self._db.run(connection, "list_decisions", row)
                if not last_was_decided(receipt, decisions):
                    return receipt, False
            mine = self._begin(connection, receipt, claim, row)
            return self._read(connection, row), mine

        return self._owned(claim, await self._claim(job, "receipt.claim"))

    async def send_again(
        self, receipt: Receipt, claim: EffectClaim, *, unknown: bool, risk: bool
    ) -> tuple[Receipt, bool]:
        """Begin another attempt of an ambiguous effect, unless its receipt has changed.

        Durable when it returns: the receipt in flight, fsynced.
        If it raises: as `claim_effect`.
        """
        row = self._db.rows.claim(claim, self._db.clock.now())

        def job(connection: sqlite3.Connection) -> Claimed:
            if not self._owns(connection, row):
                return None
            mine = self._begin(connection, receipt, claim, row, unknown=unknown, risk=risk)
            return self._read(connection, row), mine

        return self._owned(claim, await self._claim(job, "receipt.resend"))

    async def settle_effect(self, settlement: Settlement) -> tuple[Receipt, bool]:
        """Move a receipt; return it and whether the move landed.

        Whoever ends doubt frees the run that is parked for it.
        Durable when it returns: the move, fsynced, and with a decision all of that.
        If it raises: `StaleDecision` when the receipt is not what a person decided about.
        """
        await self._db.note_key()
        return await self._db.write(
            lambda connection: self.settle(connection, settlement), "receipt.settle"
        )

    def settle(
        self, connection: sqlite3.Connection, settlement: Settlement
    ) -> tuple[Receipt, bool]:
        """Move a receipt inside a write job."""
        row = self._db.rows.settlement(settlement, self._db.clock.now())
        moved = self._db.run(connection, "settle_receipt", row).fetchall()
        if moved:
            receipt = self._db.rows.receipt(moved[0])
            if settlement.by is not None:
                decision = self._db.rows.new_decision(settlement, receipt.settled_at)
                self._db.run(connection, "insert_decision", decision)
            if settlement.move in _ENDS_OF_DOUBT and not settlement.stopped:
                self._db.run(connection, "free_run", {"run_id": receipt.run_id})
            return receipt, True
        if settlement.move is Move.COMPLETE and settlement.stopped:
            self._db.run(connection, "mark_duplicate", row)
        receipt = self._read(connection, row)
        if settlement.version is not None:
            raise stale(receipt, settlement.version)
        return receipt, False

    async def doubt_vanished(self, operation_key: str | None) -> Sequence[Receipt]:
        """Make an attempt in flight whose owner is gone ambiguous; None means all of them.

        Returns the receipts that this call made so, and nobody else's.
        Durable when it returns: the doubts, fsynced.
        """
        if self._db.read("any_vanished", operation_key=operation_key) == [(0,)]:
            return []
        row = {"operation_key": operation_key, "now": self._db.clock.now()}

        def job(connection: sqlite3.Connection) -> list[Receipt]:
            doubted = self._db.run(connection, "doubt_vanished", row).fetchall()
            return [self._read(connection, {"operation_key": key}) for (key,) in doubted]

        return await self._db.write(job, "receipt.doubt")

    async def claim_lookup(
        self, receipt: Receipt, owner: Owner, hold_seconds: float
    ) -> tuple[Receipt, bool]:
        """Take the right to ask the target about an ambiguous attempt, for a while.

        Durable when it returns: the claim, fsynced.
        """
        row = lookup_row(receipt, owner, self._db.clock.now(), hold_seconds)
        return await self._db.write(
            lambda connection: self._alter(connection, "claim_lookup", row), "receipt.lookup"
        )

    async def end_lookup(
        self, receipt: Receipt, *, answered: bool, ask_again_at: float, limit: int
    ) -> Receipt:
        """Note a lookup that settled nothing, unless another one has begun since `receipt`.

        One without an answer uses up one of `limit`.
        Durable when it returns: the count, fsynced.
        """
        row = asked_row(receipt, answered=answered, ask_again_at=ask_again_at, limit=limit)
        changed, _ = await self._db.write(
            lambda connection: self._alter(connection, "end_lookup", row), "receipt.asked"
        )
        return changed

    async def list_receipts(
        self, *, ambiguous_only: bool, limit: int, run_id: str | None = None
    ) -> Sequence[Receipt]:
        """Return receipts, the newest first."""
        name = "list_receipts" if run_id is None else "list_receipts_of"
        name = "list_ambiguous" if ambiguous_only else name
        rows = self._db.read(name, limit=limit, run_id=run_id)
        return [self._db.rows.receipt(row) for row in rows]

    async def list_due(self, handler_ids: Sequence[str], limit: int) -> Sequence[Receipt]:
        """Return ambiguous receipts of these handlers whose targets may be asked now."""
        known = msgspec.json.encode(handler_ids).decode()
        now = self._db.clock.now()
        rows = self._db.read("list_due", handler_ids=known, now=now, limit=limit)
        return [self._db.rows.receipt(row) for row in rows]

    async def match_receipts(self, prefix: str, limit: int) -> Sequence[Receipt]:
        """Return the receipts whose operation key begins with a text, in the order of the keys."""
        rows = self._db.read("match_receipts", prefix=prefix, limit=limit)
        return [self._db.rows.receipt(row) for row in rows]

    async def list_buried(self, run_id: str) -> Sequence[BuriedReceipt]:
        """Return what is left of the erased receipts of a run, in the order of the keys."""
        rows = self._db.read("list_buried", **buried_of(run_id))
        return [BuriedReceipt(*row) for row in rows]

    async def list_decisions(self, operation_key: str) -> Sequence[DecisionRow]:
        """Return what people decided about an effect, oldest first."""
        rows = self._db.read("list_decisions", operation_key=operation_key)
        return [self._db.rows.decision(row) for row in rows]

    async def list_changeable(self, limit: int) -> tuple[int, Sequence[Receipt]]:
        """Return receipts that may still change, and the number of the newest of all."""
        # First, so that one that is begun in between counts as newer.
        ((newest,),) = self._db.read("newest_receipt")
        rows = self._db.read("list_changeable", limit=limit)
        return newest, [self._db.rows.receipt(row) for row in rows]

    async def read_changes(
        self, after: int, known: Mapping[str, int], limit: int
    ) -> tuple[int, Sequence[Receipt]]:
        """Return receipts after a number, and those of `known` whose version is another now."""
        # After an erasure the numbers of the newest are given again.
        ((newest,),) = self._db.read("newest_receipt")
        after = min(after, newest)
        versions = msgspec.json.encode(known).decode()
        rows = self._db.read("changed_receipts", after=after, known=versions, limit=limit)
        last = max([after, *(row[0] for row in rows)])
        return last, [self._db.rows.receipt(row[1:]) for row in rows]

    async def _claim(self, job: Callable[[sqlite3.Connection], Claimed], what: str) -> Claimed:
        claimed: Claimed = None

        def noted(connection: sqlite3.Connection) -> Claimed:
            nonlocal claimed
            claimed = job(connection)
            return claimed

        try:
            return await self._db.write(noted, what)
        except asyncio.CancelledError:
            # The claim is written all the same, and what is written next comes after it.
            with suppress(StorageError):  # the receipt is doubted by who comes next
                await asyncio.shield(
                    self._db.write(
                        lambda connection: self._take_back(connection, claimed), "receipt.settle"
                    )
                )
            raise

    def _take_back(self, connection: sqlite3.Connection, claimed: Claimed) -> None:
        if claimed is None or not claimed[1]:
            return
        receipt, _ = claimed
        current = self._find(connection, receipt.operation_key)
        if current is not None and current.holder == receipt.holder:
            self.settle(connection, taken_back(receipt))

    def _begin(
        self,
        connection: sqlite3.Connection,
        receipt: Receipt,
        claim: EffectClaim,
        row: dict[str, Any],
        *,
        unknown: bool = False,
        risk: bool = False,
    ) -> bool:
        if receipt.arguments_sha256 != claim.arguments_sha256:
            return False
        seen = {**row, **next_attempt(receipt, unknown=unknown, risk=risk)}
        return self._db.run(connection, "begin_attempt", seen).rowcount == 1

    def _alter(
        self, connection: sqlite3.Connection, name: str, row: dict[str, Any]
    ) -> tuple[Receipt, bool]:
        changed = self._db.run(connection, name, row).rowcount == 1
        return self._read(connection, row), changed

    def _owned(self, claim: EffectClaim, claimed: Claimed) -> tuple[Receipt, bool]:
        if claimed is None:
            raise self._db.fenced_off(claim.identity.run_id)
        return claimed

    def _owns(self, connection: sqlite3.Connection, row: dict[str, Any]) -> bool:
        ((owns,),) = self._db.run(connection, "owns", row).fetchall()
        return bool(owns)

    def _read(self, connection: sqlite3.Connection, row: dict[str, Any]) -> Receipt:
        key = row["operation_key"]
        receipt = self._find(connection, key)
        if receipt is None:
            # Nothing but erasing takes one away that was there, or keeps one from being written.
            ((*tombstone,),) = self._db.run(connection, "read_tombstone", row).fetchall()
            raise erased(key, tombstone)
        return receipt

    def _find(self, connection: sqlite3.Connection, operation_key: str) -> Receipt | None:
        rows = self._db.run(connection, "read_receipt", {"operation_key": operation_key}).fetchall()
        return self._db.rows.receipt(rows[0]) if rows else None
