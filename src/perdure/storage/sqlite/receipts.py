from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.effects.receipt import Move, Receipt, ReceiptState, sources, target_of
from perdure.effects.store import EffectClaim, Owner, Settlement
from perdure.effects.support import SideEffectSupport
from perdure.errors import LeaseLost, StaleDecision
from perdure.storage.sqlite.database import Database


class SqliteReceipts:
    """The receipts of one SQLite file."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def read_receipt(self, operation_key: str) -> Receipt | None:
        """Return a receipt, or None for an effect that was never begun."""
        row = self._db.read_row("read_receipt", operation_key=operation_key)
        return None if row is None else _receipt(row)

    async def claim_effect(self, claim: EffectClaim) -> tuple[Receipt, bool]:
        """Begin the first attempt of an effect, or another one after a refusal.

        Durable when it returns: the receipt in flight, fsynced.
        If it raises: `LeaseLost` when the owner no longer is one, or a `StorageError`; nothing
        may be sent.
        """
        row = _claim_row(claim, self._db.clock.now())

        def job(connection: sqlite3.Connection) -> tuple[Receipt, bool] | None:
            if not self._owns(connection, row):
                return None
            mine = self._db.run(connection, "insert_receipt", row).rowcount == 1
            receipt = self._read(connection, row)
            if not mine and receipt.state is ReceiptState.FAILED:
                mine = self._begin(connection, receipt, row)
                receipt = self._read(connection, row)
            return receipt, mine

        return self._owned(claim, await self._db.write(job, "receipt.claim"))

    async def send_again(
        self, receipt: Receipt, claim: EffectClaim, *, unknown: bool, risk: bool
    ) -> tuple[Receipt, bool]:
        """Begin another attempt of an ambiguous effect, unless its receipt has changed.

        Durable when it returns: the receipt in flight, fsynced.
        If it raises: as `claim_effect`.
        """
        row = _claim_row(claim, self._db.clock.now())

        def job(connection: sqlite3.Connection) -> tuple[Receipt, bool] | None:
            if not self._owns(connection, row):
                return None
            mine = self._begin(connection, receipt, row, unknown=unknown, risk=risk)
            return self._read(connection, row), mine

        return self._owned(claim, await self._db.write(job, "receipt.resend"))

    async def settle_effect(self, settlement: Settlement) -> tuple[Receipt, bool]:
        """Move a receipt; return it and whether the move landed.

        Durable when it returns: the move, fsynced.
        If it raises: `StaleDecision` when the receipt is not what a person decided about.
        """
        return await self._db.write(
            lambda connection: self.settle(connection, settlement), "receipt.settle"
        )

    def settle(
        self, connection: sqlite3.Connection, settlement: Settlement
    ) -> tuple[Receipt, bool]:
        """Move a receipt inside a write job."""
        possible = {state for state in sources(settlement.move) if state}
        if settlement.version is not None:
            possible &= {ReceiptState.AMBIGUOUS}
        row = {
            **msgspec.structs.asdict(settlement),
            "state": target_of(settlement.move).value,
            "sources": msgspec.json.encode(sorted(possible)).decode(),
            "now": self._db.clock.now(),
        }
        landed = self._db.run(connection, "settle_receipt", row).rowcount == 1
        if not landed and settlement.move is Move.COMPLETE and settlement.stopped:
            self._db.run(connection, "mark_duplicate", row)
        receipt = self._read(connection, row)
        if not landed and settlement.version is not None:
            raise StaleDecision(
                f"the receipt {receipt.operation_key} is {receipt.state.value} with version"
                f" {receipt.version}, and the decision was about an ambiguous one with version"
                f" {settlement.version}: look at it again"
            )
        return receipt, landed

    async def doubt_vanished(self, operation_key: str | None) -> int:
        """Make an attempt in flight whose owner is gone ambiguous; None means all of them.

        Durable when it returns: the doubts, fsynced. Returns how many there are.
        """
        row = {"operation_key": operation_key, "now": self._db.clock.now()}
        return await self._db.write(
            lambda connection: self._db.run(connection, "doubt_vanished", row).rowcount,
            "receipt.doubt",
        )

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
        name = "list_ambiguous" if ambiguous_only else "list_receipts"
        rows = self._db.read(name, limit=limit, run_id=run_id)
        return [_receipt(row) for row in rows]

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

    def _alter(
        self, connection: sqlite3.Connection, name: str, row: dict[str, Any]
    ) -> tuple[Receipt, bool]:
        changed = self._db.run(connection, name, row).rowcount == 1
        return self._read(connection, row), changed

    def _owned(
        self, claim: EffectClaim, claimed: tuple[Receipt, bool] | None
    ) -> tuple[Receipt, bool]:
        if claimed is None:
            self._db.observer.count("perdure_lease_fencing_rejected_total")
            raise LeaseLost(claim.identity.run_id)
        return claimed

    def _owns(self, connection: sqlite3.Connection, row: dict[str, Any]) -> bool:
        ((owns,),) = self._db.run(connection, "owns", row).fetchall()
        return bool(owns)

    def _read(self, connection: sqlite3.Connection, row: dict[str, Any]) -> Receipt:
        receipt = self._find(connection, row["operation_key"])
        assert receipt is not None
        return receipt

    def _find(self, connection: sqlite3.Connection, operation_key: str) -> Receipt | None:
        rows = self._db.run(connection, "read_receipt", {"operation_key": operation_key}).fetchall()
        return _receipt(rows[0]) if rows else None


def _claim_row(claim: EffectClaim, now: float) -> dict[str, Any]:
    identity = claim.identity
    return {
        "operation_key": identity.operation_key,
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
        "now": now,
    }


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
