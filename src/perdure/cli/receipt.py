from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from perdure import ReceiptStore, SideEffectSupport
from perdure.app import App
from perdure.cli.sheet import Column, Sheet
from perdure.cli.words import instant, moment
from perdure.effects.receipt import Receipt, ReceiptState
from perdure.errors import CommandError, UnknownEffect

STYLES: Final = {
    ReceiptState.IN_FLIGHT: "blue",
    ReceiptState.COMPLETED: "green",
    ReceiptState.FAILED: "red",
    ReceiptState.AMBIGUOUS: "bold yellow",
}
"""The colour of each state of a receipt."""

_CALL: Final = "call"
"""The step of what `context.call` performs, which stands last in its name."""

_KEY_SHOWN: Final = 15
_KEY_TYPED: Final = 8
_MATCHES_TOLD: Final = 5
_MOST_READ: Final = 10_000
_COLUMNS: Final = (
    Column("effect"),
    Column("run", least=8),
    Column("what", least=8),
    Column("target", least=6, dispensable=3),
    Column("support", dispensable=4),
    Column("state"),
    Column("attempt", number=True, dispensable=5),
    Column("since (UTC)", dispensable=2),
    Column("next", dispensable=1),
    Column("risk", least=20, below=True),
    Column("problem", least=40, below=True),
)


async def find_receipt(store: ReceiptStore, key: str) -> Receipt:
    """Return the receipt of an operation key, or of the only one that begins like this.

    Raises `UnknownEffect`, or `CommandError` when more than one key begins like this.
    """
    if len(key) < _KEY_TYPED:
        raise CommandError(
            f"{key!r} is too short: type {_KEY_TYPED} characters of the key or more, as"
            " `perdure effects` shows it"
        )
    found = await store.matching(key, _MATCHES_TOLD + 1)
    if not found:
        raise UnknownEffect(f"there is no receipt {key!r} in {store.shown_url}")
    if len(found) > 1:
        keys = ", ".join(receipt.operation_key for receipt in found[:_MATCHES_TOLD])
        more = " and more" if len(found) > _MATCHES_TOLD else ""
        raise CommandError(f"{key!r} begins several keys: {keys}{more}; type more of it")
    return found[0]


async def read_receipts(app: App, run_id: str) -> list[Receipt]:
    """Return the receipts of a run as they stand, oldest first; nothing is written."""
    found = await app.store.list_receipts(ambiguous_only=False, limit=_MOST_READ, run_id=run_id)
    return [*reversed(found)]


def describe_receipt(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as a JSON document shows it."""
    times = ("first_claimed_at", "claimed_at", "settled_at", "lookup_at", "resend_after")
    described = msgspec.structs.asdict(receipt)
    described["arguments_sha256"] = receipt.arguments_sha256.hex()
    described.update({name: instant(described[name]) for name in times})
    payload = described.pop("payload")
    return {**described, "result": msgspec.Raw(payload) if payload else None}


def is_call(receipt: Receipt) -> bool:
    """Tell whether an effect is of a function of `context.call`, which may say what it returns."""
    step = receipt.idempotency_key.rpartition(".")[2]
    return receipt.handler_id is not None and step == _CALL


def short_key(receipt: Receipt) -> str:
    """Return the beginning of an operation key, which the commands take as well."""
    return receipt.operation_key[:_KEY_SHOWN]


def what_of(receipt: Receipt) -> str:
    """Return what an effect is within its run; in a run, the operation."""
    return f"{receipt.idempotency_key}/{receipt.ordinal}"


def since_of(receipt: Receipt) -> float:
    """Return since when a receipt is in its state."""
    return receipt.claimed_at if receipt.settled_at is None else receipt.settled_at


def next_of(receipt: Receipt) -> str:
    """Return what comes next for an ambiguous receipt, as far as the receipt tells."""
    if receipt.state is not ReceiptState.AMBIGUOUS:
        return ""
    if receipt.exhausted:
        return "exhausted"
    if receipt.lookup_holder is not None:
        return "being asked"
    match receipt.support:
        case SideEffectSupport.AT_LEAST_ONCE:
            return "a person"
        case SideEffectSupport.IDEMPOTENT:
            return "sent again"
        case SideEffectSupport.OUTCOME_QUERYABLE:
            return f"asked {moment(receipt.lookup_at)[11:]}"


def asked_of(receipt: Receipt) -> str:
    """Return what comes next for an ambiguous receipt by itself; empty where a person acts."""
    told = next_of(receipt)
    return "" if told in {"a person", "exhausted"} else told


def risk_of(receipt: Receipt) -> str:
    """Return what is risked by the attempts that were made; empty when nothing is."""
    if receipt.residual_duplicate_risk:
        return "may have been applied twice"
    if not receipt.earlier_unknown:
        return ""
    if receipt.support is SideEffectSupport.IDEMPOTENT:
        return "none, as long as its target drops repeats of the key"
    return "an earlier attempt may have been applied"


def receipts_sheet(receipts: Iterable[Receipt], title: str = "") -> Sheet:
    """Return receipts as a table, in the order given."""
    return Sheet(title, _COLUMNS, map(_cells, receipts))


def _cells(receipt: Receipt) -> tuple[object, ...]:
    from rich.text import Text

    return (
        short_key(receipt),
        receipt.run_id,
        what_of(receipt),
        receipt.target,
        receipt.support.value,
        Text(receipt.state.value, STYLES[receipt.state]),
        receipt.attempt,
        moment(since_of(receipt)).removesuffix("Z"),
        next_of(receipt),
        risk_of(receipt),
        receipt.problem,
    )
