from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from perdure.effects.receipt import Move, Receipt, ReceiptState, sources, target_of
from perdure.effects.store import DecisionRow, EffectClaim, Owner, Settlement
from perdure.effects.support import SideEffectSupport
from perdure.errors import EffectErased, StaleDecision, StorageError
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
                raise _erased(operation_key, tombstone)
            return None
        return _receipt(row)

    async def claim_effect(self, claim: EffectClaim) -> tuple[Receipt, bool]:
        """Begin the first attempt of an effect, or another one after a refusal.

        Durable when it returns: the receipt in flight, fsynced.
        If it raises: `LeaseLost` when the owner no longer is one, `EffectErased` for an effect
        whose receipt was erased, or a `StorageError`; nothing may be sent.
        """
        row = _claim_row(claim, self._db.clock.now())

        def job(connection: sqlite3.Connection) -> Claimed:
            if self._db.run(connection, "insert_receipt", row).rowcount == 1:
                return _begun(claim, row), True
            if not self._owns(connection, row):
                return None
            receipt = self._read(connection, row)
            if receipt.state is not ReceiptState.FAILED:
                return receipt, False
            mine = self._begin(connection, receipt, row)
            return self._read(connection, row), mine

        return self._owned(claim, await self._claim(job, "receipt.claim"))

    async def send_again(
        self, receipt: Receipt, claim: EffectClaim, *, unknown: bool, risk: bool
    ) -> tuple[Receipt, bool]:
        """Begin another attempt of an ambiguous effect, unless its receipt has changed.

        Durable when it returns: the receipt in flight, fsynced.
        If it raises: as `claim_effect`.
        """
        row = _claim_row(claim, self._db.clock.now())

        def job(connection: sqlite3.Connection) -> Claimed:
            if not self._owns(connection, row):
                return None
            mine = self._begin(connection, receipt, row, unknown=unknown, risk=risk)
            return self._read(connection, row), mine

        return self._owned(claim, await self._claim(job, "receipt.resend"))

    async def settle_effect(self, settlement: Settlement) -> tuple[Receipt, bool]:
        """Move a receipt; return it and whether the move landed.

        Whoever ends doubt frees the run that is parked for it.
        Durable when it returns: the move, fsynced, and with a decision all of that.
        If it raises: `StaleDecision` when the receipt is not what a person decided about.
        """
        return await self._db.write(
            lambda connection: self.settle(connection, settlement), "receipt.settle"
        )

    def settle(
        self, connection: sqlite3.Connection, settlement: Settlement
    ) -> tuple[Receipt, bool]:
        """Move a receipt inside a write job."""
        state, possible = _move(settlement.move, decided=settlement.version is not None)
        row = {
            **msgspec.structs.asdict(settlement),
            "state": state,
            "sources": possible,
            "now": self._db.clock.now(),
        }
        moved = self._db.run(connection, "settle_receipt", row).fetchall()
        if moved:
            receipt = _receipt(moved[0])
            if settlement.by is not None:
                self._keep_decision(connection, settlement, receipt)
            if settlement.move in _ENDS_OF_DOUBT and not settlement.stopped:
                self._db.run(connection, "free_run", {"run_id": receipt.run_id})
            return receipt, True
        if settlement.move is Move.COMPLETE and settlement.stopped:
            self._db.run(connection, "mark_duplicate", row)
        receipt = self._read(connection, row)
        if settlement.version is not None:
            raise StaleDecision(
                f"the receipt {receipt.operation_key} is {receipt.state.value} with version"
                f" {receipt.version}, and the decision was about an ambiguous one with version"
                f" {settlement.version}: look at it again"
            )
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
        now = self._db.clock.now()
        row = {
            **_attempt_row(receipt),
            "holder": owner.holder,
            "now": now,
            "until": now + hold_seconds,
        }
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
        row = {
            **_attempt_row(receipt),
            "version": receipt.version,
            "ask_again_at": ask_again_at,
            "unanswered": not answered,
            "limit": limit,
        }
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
        return [_receipt(row) for row in rows]

    async def list_due(self, handler_ids: Sequence[str], limit: int) -> Sequence[Receipt]:
        """Return ambiguous receipts of these handlers whose targets may be asked now."""
        known = msgspec.json.encode(handler_ids).decode()
        now = self._db.clock.now()
        rows = self._db.read("list_due", handler_ids=known, now=now, limit=limit)
        return [_receipt(row) for row in rows]

    async def match_receipts(self, prefix: str, limit: int) -> Sequence[Receipt]:
        """Return the receipts whose operation key begins with a text, in the order of the keys."""
        rows = self._db.read("match_receipts", prefix=prefix, limit=limit)
        return [_receipt(row) for row in rows]

    async def list_decisions(self, operation_key: str) -> Sequence[DecisionRow]:
        """Return what people decided about an effect, oldest first."""
        rows = self._db.read("list_decisions", operation_key=operation_key)
        return [DecisionRow(*row) for row in rows]

    async def list_changeable(self, limit: int) -> tuple[int, Sequence[Receipt]]:
        """Return receipts that may still change, and the number of the newest of all."""
        # First, so that one that is begun in between counts as newer.
        ((newest,),) = self._db.read("newest_receipt")
        return newest, [_receipt(row) for row in self._db.read("list_changeable", limit=limit)]

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
        return last, [_receipt(row[1:]) for row in rows]

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
            settlement = Settlement(
                operation_key=receipt.operation_key,
                attempt=receipt.attempt,
                generation=receipt.generation,
                move=Move.DOUBT if receipt.earlier_unknown else Move.REFUSE,
                problem="the caller was cancelled before it was sent",
                stopped=True,
            )
            self.settle(connection, settlement)

    def _begin(
        self,
        connection: sqlite3.Connection,
        receipt: Receipt,
        row: dict[str, Any],
        *,
        unknown: bool = False,
        risk: bool = False,
    ) -> bool:
        seen = {
            **row,
            "state": receipt.state.value,
            "attempt": receipt.attempt,
            "seen_generation": receipt.generation,
            "version": receipt.version,
            "unknown": unknown,
            "risk": risk,
        }
        return self._db.run(connection, "begin_attempt", seen).rowcount == 1

    def _keep_decision(
        self, connection: sqlite3.Connection, settlement: Settlement, receipt: Receipt
    ) -> None:
        landed = settlement.move is Move.COMPLETE
        decision = "landed" if landed else "send_again" if settlement.risk else "never_will"
        row = {**msgspec.structs.asdict(settlement), "decision": decision}
        self._db.run(connection, "insert_decision", {**row, "now": receipt.settled_at})

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
            raise _erased(key, tombstone)
        return receipt

    def _find(self, connection: sqlite3.Connection, operation_key: str) -> Receipt | None:
        rows = self._db.run(connection, "read_receipt", {"operation_key": operation_key}).fetchall()
        return _receipt(rows[0]) if rows else None


def _claim_row(claim: EffectClaim, now: float) -> dict[str, Any]:
    identity = claim.identity
    return {
        "operation_key": claim.operation_key,
        "run_id": identity.run_id,
        "idempotency_key": identity.idempotency_key,
        "target": identity.target,
        "ordinal": identity.ordinal,
        "support": claim.support.value,
        "arguments_sha256": claim.arguments_sha256,
        "holder": claim.owner.holder,
        "generation": claim.owner.generation,
        "settle_seconds": claim.settle_seconds,
        "resend_after": claim.resend_after,
        "handler_id": claim.handler_id,
        "now": now,
    }


def _begun(claim: EffectClaim, row: dict[str, Any]) -> Receipt:
    """Return the receipt that the first claim of an effect writes."""
    names = ("operation_key", "run_id", "idempotency_key", "target", "ordinal")
    return Receipt(
        **{name: row[name] for name in names},
        support=claim.support,
        arguments_sha256=claim.arguments_sha256,
        state=ReceiptState.IN_FLIGHT,
        attempt=1,
        holder=claim.owner.holder,
        generation=claim.owner.generation,
        version=1,
        first_claimed_at=row["now"],
        claimed_at=row["now"],
        settle_seconds=claim.settle_seconds,
        resend_after=claim.resend_after,
        handler_id=claim.handler_id,
    )


@lru_cache(maxsize=16)
def _move(move: Move, *, decided: bool) -> tuple[str, str]:
    """Return the state that a move leads to and, as one text, those it may start from."""
    possible = {state for state in sources(move) if state}
    if decided:
        possible &= {ReceiptState.AMBIGUOUS}
    return target_of(move).value, f"|{'|'.join(sorted(possible))}|"


def _erased(operation_key: str, tombstone: Sequence[Any]) -> EffectErased:
    state, by, why = tombstone
    return EffectErased(operation_key, state=state, by=by, why=why)


def _attempt_row(receipt: Receipt) -> dict[str, Any]:
    return {
        "operation_key": receipt.operation_key,
        "attempt": receipt.attempt,
        "generation": receipt.generation,
    }


def _receipt(row: tuple[Any, ...]) -> Receipt:
    names = Receipt.__struct_fields__
    fields = dict(zip(names, row, strict=True))
    fields["support"] = SideEffectSupport(fields["support"])
    fields["state"] = ReceiptState(fields["state"])
    for name in ("exhausted", "earlier_unknown", "residual_duplicate_risk"):
        fields[name] = bool(fields[name])
    return Receipt(**fields)
