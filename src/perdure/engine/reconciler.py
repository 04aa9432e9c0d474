from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Final, NoReturn

from perdure.codec import Codec
from perdure.declaration import EffectDeclaration
from perdure.effects.effect import Effect
from perdure.effects.identity import OperationIdentity
from perdure.effects.ledger import Ledger
from perdure.effects.receipt import Receipt
from perdure.effects.reconcile import Reconciler
from perdure.effects.store import Owner
from perdure.engine.lease import Lease
from perdure.errors import EffectNotSent, StorageError
from perdure.observe import log
from perdure.ports import Ports

_ASKED_AT_ONCE: Final = 16
_ASKED_OF_ONE: Final = 4
"""How many lookups of one handler may be under way, so that one that hangs leaves room."""

_DUE: Final = 64
_LOOK_SECONDS: Final = 1.0
_LEAVE_SECONDS: Final = 5.0


class BackgroundReconciler:
    """Asks targets about ambiguous effects that no run is at work on.

    Those are of runs that have ended, or are parked; a parked one then goes on. It knows the
    lookups that the App was given, and those of the effects that its runs ask for.
    """

    def __init__(self, ports: Ports, lease: Lease) -> None:
        self._store = ports.store
        self._known = ports.known
        self._codec = ports.codec
        self._lease = lease
        self._ledger = Ledger(ports.store, self, ports.clock, ports.observer, ports.audit)
        self._reconciler = Reconciler(self._ledger, ports.clock, ports.observer)

    async def look(self) -> None:
        """Doubt the attempts of workers that are gone, and ask about what is due until nothing is.

        Targets are asked at the same time. Whoever is cancelled leaves what does not stop soon.
        """
        asking: dict[asyncio.Task[None], str] = {}
        begun: set[tuple[str, int]] = set()
        try:
            while True:
                await self._ledger.doubt_vanished(None)
                await self._begin(asking, begun)
                if not asking:
                    return
                ended, _ = await asyncio.wait(
                    asking, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                for task in ended:
                    del asking[task]
                    task.result()
        finally:
            await _leave(asking)

    async def _begin(
        self, asking: dict[asyncio.Task[None], str], begun: set[tuple[str, int]]
    ) -> None:
        """Begin to ask about what is due, and was not begun as it stands; note each handler."""
        busy = Counter(asking.values())
        askable = [name for name in self._known.askable() if busy[name] < _ASKED_OF_ONE]
        if not askable or len(asking) >= _ASKED_AT_ONCE:
            return
        for receipt in await self._store.list_due(askable, _DUE):
            handler_id = receipt.handler_id or ""
            declared = self._known.find(handler_id, receipt.target)
            seen = (receipt.operation_key, receipt.version)
            if declared is None or seen in begun or busy[handler_id] >= _ASKED_OF_ONE:
                continue
            begun.add(seen)
            busy[handler_id] += 1
            task = asyncio.create_task(self._ask(receipt, declared))
            task.add_done_callback(_hear)
            asking[task] = handler_id
            if len(asking) == _ASKED_AT_ONCE:
                return

    async def _ask(self, receipt: Receipt, declared: EffectDeclaration) -> None:
        try:
            await self._reconciler.inquire(_asked(receipt, declared, self._codec), receipt)
        except StorageError:
            raise
        except Exception:  # noqa: BLE001 - it keeps nobody from asking about the others
            log.exception("the effect %s is asked about later", receipt.operation_key)

    def owner(self) -> Owner:
        """Return this worker; raises `LeaseLost` when its lease can no longer be confirmed."""
        self._lease.check("")
        return Owner(self._lease.holder)

    async def notice_deaths(self) -> None:
        """Do nothing: the worker sweeps by itself."""


def _asked(receipt: Receipt, declared: EffectDeclaration, codec: Codec) -> Effect:
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
        encode=declared.encoder(codec),
    )


async def _send_nothing(identity: OperationIdentity) -> NoReturn:
    raise EffectNotSent(f"{identity.operation_key} is only asked about")


async def _leave(asking: Iterable[asyncio.Task[None]]) -> None:
    """Stop asking, and wait a while for the end of it."""
    tasks = list(asking)
    for task in tasks:
        task.cancel()
    if tasks:
        _, left = await asyncio.wait(tasks, timeout=_LEAVE_SECONDS)
        if left:
            log.warning("lookups that do not end are left behind: %s", len(left))


def _hear(task: asyncio.Task[None]) -> None:
    """Look at how a task ended, which nobody may do after it was left."""
    if not task.cancelled():
        task.exception()
