from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.cli.receipt import asked_of, next_of, short_key
from perdure.effects.receipt import Receipt, ReceiptState
from perdure.engine.store import RunRow, RunState
from perdure.errors import EffectAmbiguous


def way_on(row: RunRow, receipts: Iterable[Receipt], place: str) -> str:
    """Return what lets a run that stands still go on; empty for one that nothing lets go on.

    `receipts` are those of its effects; `place` names the database in commands.
    """
    if row.tombstone is not None or row.state not in {RunState.FAILED, RunState.NEEDS_ATTENTION}:
        return ""
    awaited = unsettled(row, receipts)
    if awaited:
        return settling(awaited, place)
    mended = f"`perdure resume {row.run_id}{place}` once its cause is mended"
    if row.state is RunState.FAILED:
        return f"{mended}; where that is its input, which stays as it is, start one of another id"
    return f"{mended}, or `perdure cancel {row.run_id}{place}` to end it"


def unsettled(row: RunRow, receipts: Iterable[Receipt]) -> Sequence[Receipt]:
    """Return the effects that a run is parked for until their target or a person settles them."""
    if row.problem is None or row.problem.code != EffectAmbiguous.__name__:
        return []
    return [
        receipt
        for receipt in receipts
        if receipt.state is ReceiptState.AMBIGUOUS and next_of(receipt) != "sent again"
    ]


def settling(awaited: Sequence[Receipt], place: str) -> str:
    """Return what settles effects: the commands, and their target where that is asked."""
    keys = [short_key(receipt) for receipt in awaited]
    commands = " and ".join(f"`perdure effects settle {key}{place}`" for key in keys)
    asked = [told for told in map(asked_of, awaited) if told]
    target = f"what its target says ({asked[0]}) or " if asked else ""
    return f"{target}{commands}; `perdure effects show {keys[0]}{place}` says what to type"
