from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from perdure.effects.receipt import Change, Receipt, ReceiptState
from perdure.effects.store import Receipts
from perdure.effects.support import SideEffectSupport

_PAGE: Final = 1000
_MOST_KNOWN: Final = 10_000
_OPEN: Final = {ReceiptState.IN_FLIGHT, ReceiptState.AMBIGUOUS}


class Watch:
    """Tells what became of receipts since it looked before, by their numbers and versions.

    No clock decides what is new, and no page what is left out. Of what has ended and may change all
    the same, such as a refused effect that is tried again, the newest ten thousand are followed.
    """

    def __init__(
        self,
        receipts: Receipts,
        changed: Callable[[], bool],
        doubt: Callable[[], Awaitable[object]],
    ) -> None:
        self._receipts = receipts
        self._changed = changed
        self._doubt = doubt
        self._known: dict[str, Receipt] = {}
        self._number = 0

    async def begin(self) -> Sequence[Receipt]:
        """Look for the first time; return the receipts of which something is still to come."""
        await self._doubt()
        self._changed()
        self._number, receipts = await self._receipts.list_changeable(_MOST_KNOWN)
        self._known = {receipt.operation_key: receipt for receipt in receipts}
        return [receipt for receipt in receipts if receipt.state in _OPEN]

    async def look(self) -> Sequence[Change]:
        """Return what changed since the last look, in the order in which the effects were begun.

        What was in flight in a process that is gone becomes ambiguous by it.
        """
        await self._doubt()
        changes: list[Change] = []
        more = self._changed()
        while more:
            versions = {key: receipt.version for key, receipt in self._known.items()}
            self._number, page = await self._receipts.read_changes(self._number, versions, _PAGE)
            changes += [self._change(receipt) for receipt in page]
            more = len(page) == _PAGE
        return changes

    def _change(self, receipt: Receipt) -> Change:
        before = self._known.pop(receipt.operation_key, None)
        if _may_change(receipt):
            self._known[receipt.operation_key] = receipt
        if len(self._known) > _MOST_KNOWN:
            ended = (key for key, known in self._known.items() if known.state not in _OPEN)
            self._known.pop(next(ended, ""), None)
        return Change(before, receipt)


def _may_change(receipt: Receipt) -> bool:
    """Tell whether anything more can become of a receipt, as `Receipts.list_changeable` has it."""
    if receipt.state is not ReceiptState.COMPLETED:
        return True
    repeated = receipt.attempt > 1 and receipt.support is not SideEffectSupport.IDEMPOTENT
    return repeated and not receipt.residual_duplicate_risk
