from __future__ import annotations

from typing import Final, NoReturn

from perdure.declaration import EffectDeclaration
from perdure.effects.effect import Effect
from perdure.effects.identity import OperationIdentity
from perdure.effects.ledger import Ledger
from perdure.effects.receipt import Receipt
from perdure.effects.reconcile import Reconciler
from perdure.effects.store import Owner
from perdure.engine.lease import Lease
from perdure.errors import EffectNotSent
from perdure.ports import Ports

_ASKED_AT_ONCE: Final = 16


class BackgroundReconciler:
    """Asks targets about ambiguous effects that no run is at work on.

    Those are of runs that have ended, or are parked; a parked one then goes on. It knows the
    lookups that the App was given, and those of the effects that its runs ask for.
    """

    def __init__(self, ports: Ports, lease: Lease) -> None:
        self._store = ports.store
        self._known = ports.known
        self._lease = lease
        self._ledger = Ledger(ports.store, self, ports.clock, ports.observer, ports.audit)
        self._reconciler = Reconciler(self._ledger, ports.clock, ports.observer)

    async def look(self) -> None:
        """Doubt the attempts of workers that are gone, and ask about what is due."""
        await self._ledger.doubt_vanished(None)
        askable = self._known.askable()
        if askable:
            for receipt in await self._store.list_due(askable, _ASKED_AT_ONCE):
                declared = self._known.find(receipt.handler_id or "", receipt.target)
                if declared is not None:
                    await self._reconciler.inquire(_asked(receipt, declared), receipt)

    def owner(self) -> Owner:
        """Return this worker; raises `LeaseLost` when its lease can no longer be confirmed."""
        self._lease.check("")
        return Owner(self._lease.holder)

    async def notice_deaths(self) -> None:
        """Do nothing: the worker sweeps by itself."""


def _asked(receipt: Receipt, declared: EffectDeclaration) -> Effect:
    """Return the effect of a receipt, as far as its target can be asked about it."""
    identity = OperationIdentity(
        receipt.run_id, receipt.idempotency_key, receipt.target, receipt.ordinal
    )
    return Effect(
        identity=identity,
        arguments_sha256=receipt.arguments_sha256,
        policy=declared.policy,
        send=_send_nothing,
        lookup=declared.lookup,
        handler_id=receipt.handler_id,
    )


async def _send_nothing(identity: OperationIdentity) -> NoReturn:
    raise EffectNotSent(f"{identity.operation_key} is only asked about")
