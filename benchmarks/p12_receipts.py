from __future__ import annotations

import asyncio
import time

from benchmarks.floor import Floor
from benchmarks.measure import RUNS, in_milliseconds, interleaved
from benchmarks.payload import PAYLOAD_BYTES, text
from benchmarks.row import Figure, Row, Setting, Target
from benchmarks.storages import POSTGRES, SQLITE
from perdure import EffectPolicy, OperationIdentity, ReceiptStore, SideEffectSupport, guard

_CALLERS = 16
_EACH = 100
_POLICY = EffectPolicy(support=SideEffectSupport.IDEMPOTENT)


class _Payers:
    """Callers that apply effects at the same time, each one after another."""

    def __init__(self, store: ReceiptStore) -> None:
        self.applied = 0
        self._store = store
        self._answer = text(PAYLOAD_BYTES)

    async def apply(self, each: int) -> float:
        """Apply as many effects for each caller; return the seconds that one took, amortised."""
        began = time.perf_counter()
        await asyncio.gather(*(self._pay(each) for _ in range(_CALLERS)))
        return (time.perf_counter() - began) / (each * _CALLERS)

    async def _pay(self, each: int) -> None:
        for _ in range(each):
            self.applied += 1
            identity = OperationIdentity(f"invoice-{self.applied}", "charge", "bank")
            await guard(self._store, identity, self._send, policy=_POLICY)

    async def _send(self, identity: OperationIdentity) -> str:
        return self._answer


def measure(setting: Setting) -> list[Figure]:
    """Time guarded effects without a run, in an empty store and in a full one."""
    return asyncio.run(_measure(setting))


async def _measure(setting: Setting) -> list[Figure]:
    database = setting.database("p12")
    receipts = setting.scale(100_000, 10_000)
    payload = text(PAYLOAD_BYTES).encode()
    entry = ("run-1/call/1", payload, payload)
    async with ReceiptStore.open(database.url) as store:
        with database.floor(entry) as floor:
            payers = _Payers(store)
            await payers.apply(_EACH)
            figures = [await _figure(setting, floor, payers, [entry])]
            await payers.apply((receipts - payers.applied) // _CALLERS)
            figures.append(await _figure(setting, floor, payers, [entry]))
    return figures


async def _figure(
    setting: Setting, floor: Floor, payers: _Payers, entries: list[tuple[str, bytes, bytes]]
) -> Figure:
    before = payers.applied
    samples, floors = await interleaved(
        setting.scale(9, RUNS),
        lambda: floor.seconds(200, entries) / 200,
        lambda: payers.apply(_EACH),
    )
    label = f"{_CALLERS} callers, with {before:,} receipts in the store, each effect"
    return in_milliseconds(label, samples, floors, [Target(0.3)])


ROW = Row(
    number="P12",
    work="guarded effects without a run",
    floor="insert and commit of the same bytes, by one caller",
    measure=measure,
    storages=[SQLITE, POSTGRES],
)
