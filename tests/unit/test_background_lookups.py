"""How a worker asks several targets at the same time, and what it leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from perdure import OperationIdentity
from perdure.declaration import EffectDeclaration, KnownEffects
from perdure.effects import foreign
from perdure.effects.answer import Landed, Lookup, Unknown
from perdure.effects.effect import Effect
from perdure.effects.receipt import Receipt
from perdure.effects.support import EffectPolicy, SideEffectSupport
from perdure.engine import reconciler as reconciler_module
from perdure.engine.lease import Lease
from perdure.engine.reconciler import BackgroundReconciler
from perdure.errors import LeaseLost
from perdure.observe import Observer
from perdure.ports import Ports, no_probe
from perdure.testing.manual_clock import ManualClock
from tests.harness import run, sql, stored, until
from tests.receipts import receipts


class Targets:
    """Effects of several runs, each in doubt, and who asks about them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.observer = Observer()
        self.known = KnownEffects()

    def knows(self, handler_id: str, lookup: Lookup) -> None:
        policy = EffectPolicy(support=SideEffectSupport.OUTCOME_QUERYABLE, target=handler_id)
        self.known.learn(handler_id, EffectDeclaration(policy=policy, lookup=lookup))

    async def doubt(self, handler_id: str, count: int) -> None:
        async with receipts(self.folder) as it:
            owner = await it.owner()
            for number in range(count):
                identity = OperationIdentity(f"{handler_id}-{number}", "charge", handler_id)
                claim = it.claim_of(owner, identity)
                queryable = SideEffectSupport.OUTCOME_QUERYABLE
                await it.storage.claim_effect(
                    structs.replace(claim, support=queryable, handler_id=handler_id)
                )
            sql(self.folder, "UPDATE workers SET gone = 2")

    @asynccontextmanager
    async def asked(self) -> AsyncGenerator[BackgroundReconciler]:
        async with stored(self.folder, self.clock) as it:
            ports = Ports(it.store, self.clock, self.observer, no_probe, known=self.known)
            self.lease = Owning(it.fence.holder)
            yield BackgroundReconciler(ports, self.lease)

    def states(self) -> set[Any]:
        return set(sql(self.folder, "SELECT target, state, count(*) FROM receipts GROUP BY 1, 2"))


class Owning(Lease):
    """A lease that stands until it is said to be lost."""

    def __init__(self, holder: str) -> None:
        self.holder = holder
        self.lost = False

    def check(self, run_id: str) -> None:
        if self.lost:
            raise LeaseLost(run_id)


async def landed(identity: OperationIdentity) -> Landed:
    return Landed("found")


class Hanging:
    """A lookup that never answers; a deaf one does not stop either until it is freed."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.asked = 0
        self.free = asyncio.Event()
        self._deaf = deaf

    async def __call__(self, identity: OperationIdentity) -> Unknown:
        self.asked += 1
        while not self.free.is_set():
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                if not self._deaf:
                    raise
        return Unknown()


def test_a_target_that_hangs_keeps_nobody_from_asking_the_others(tmp_path: Path) -> None:
    targets, hanging = Targets(tmp_path), Hanging()

    async def main() -> None:
        for name, lookup in (("a", hanging), ("b", landed)):
            await targets.doubt(name, 9)
            targets.knows(name, lookup)
        async with targets.asked() as reconciler:
            looking = asyncio.create_task(reconciler.look())
            await until(lambda: ("b", "completed", 9) in targets.states())
            assert hanging.asked == 4
            looking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await looking
        assert targets.states() == {("a", "ambiguous", 9), ("b", "completed", 9)}
        assert sql(tmp_path, "SELECT DISTINCT lookup_holder, lookups FROM receipts") == [(None, 0)]

    run(main())


def test_what_becomes_due_while_a_target_hangs_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler_module, "_LOOK_SECONDS", 0.001)
    targets = Targets(tmp_path)

    async def main() -> None:
        await targets.doubt("a", 1)
        targets.knows("a", Hanging())
        targets.knows("b", landed)
        async with targets.asked() as reconciler:
            looking = asyncio.create_task(reconciler.look())
            await targets.clock.until_sleeping()
            await targets.doubt("b", 1)
            await until(lambda: ("b", "completed", 1) in targets.states())
            looking.cancel()
            await asyncio.wait([looking])

    run(main())


def test_no_more_than_sixteen_lookups_are_under_way(tmp_path: Path) -> None:
    targets, hanging = Targets(tmp_path), Hanging()

    async def main() -> None:
        for name in "abcdef":
            await targets.doubt(name, 5)
            targets.knows(name, hanging)
        async with targets.asked() as reconciler:
            looking = asyncio.create_task(reconciler.look())
            await targets.clock.until_sleeping(16)
            assert hanging.asked == 16
            hanging.free.set()
            await looking
            assert hanging.asked == 30

    run(main())


@pytest.mark.parametrize(
    ("grace", "leave", "words"),
    [(0.0, 60.0, "the lookup of op-"), (60.0, 0.0, "lookups that do not end are left behind: 1")],
)
def test_closing_leaves_lookups_that_do_not_stop(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    grace: float,
    leave: float,
    words: str,
) -> None:
    monkeypatch.setattr(foreign, "_GRACE_SECONDS", grace)
    monkeypatch.setattr(reconciler_module, "_LEAVE_SECONDS", leave)
    targets, hanging = Targets(tmp_path), Hanging(deaf=True)

    async def main() -> None:
        await targets.doubt("a", 1)
        targets.knows("a", hanging)
        async with targets.asked() as reconciler:
            looking = asyncio.create_task(reconciler.look())
            await targets.clock.until_sleeping()
            looking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await looking
        hanging.free.set()

    run(main())
    (left,) = [message for message in caplog.messages if "left behind" in message]
    assert left.startswith(words)


def test_who_lost_its_lease_asks_nobody_any_more(tmp_path: Path) -> None:
    targets, hanging = Targets(tmp_path), Hanging()

    async def main() -> None:
        await targets.doubt("a", 6)
        targets.knows("a", hanging)
        async with targets.asked() as reconciler:
            looking = asyncio.create_task(reconciler.look())
            await targets.clock.until_sleeping(4)
            targets.lease.lost = True
            targets.clock.advance(30.0)
            with pytest.raises(LeaseLost):
                await looking
            assert hanging.asked == 4

    run(main())


def test_an_unexpected_error_keeps_nobody_from_asking_about_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    targets = Targets(tmp_path)

    async def main() -> None:
        await targets.doubt("a", 3)
        targets.knows("a", landed)
        async with targets.asked() as reconciler:
            inquire = reconciler._reconciler.inquire

            async def faulty(effect: Effect, receipt: Receipt) -> None:
                if receipt.run_id == "a-0":
                    raise ValueError("a bug")
                await inquire(effect, receipt)

            monkeypatch.setattr(reconciler._reconciler, "inquire", faulty)
            await reconciler.look()
        assert targets.states() == {("a", "ambiguous", 1), ("a", "completed", 2)}

    run(main())
    (logged,) = caplog.messages
    assert logged.endswith(" is asked about later")
