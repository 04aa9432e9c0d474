"""Code of the application that misbehaves: an audit sink, a lookup, anything that is called."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, OperationIdentity, effect
from perdure.clock import SystemClock
from perdure.effects import foreign
from perdure.effects.answer import Landed
from perdure.effects.foreign import Failed, call_foreign
from perdure.errors import RunStopped
from perdure.receipts import guard
from perdure.testing.manual_clock import ManualClock
from tests.harness import app_on, once, run, sql
from tests.receipts import CHARGE, KEY, QUERYABLE, Bank, doubtful, receipts, shop


async def raised(error: BaseException) -> None:
    raise error


async def deaf(heard: list[str], free: asyncio.Event) -> None:
    """Swallow every cancellation until it may end."""
    while not free.is_set():
        try:
            await free.wait()
        except asyncio.CancelledError:
            heard.append("cancelled")


# --- anything that is called ---------------------------------------------------------------------


def test_what_ends_in_time_is_returned() -> None:
    async def main() -> None:
        clock, come = ManualClock(), asyncio.Event()

        async def slow() -> int:
            await come.wait()
            return 7

        called = asyncio.create_task(call_foreign(slow, 3.0, clock, "it"))
        await clock.until_sleeping()
        clock.advance(2.9)
        come.set()
        assert await called == 7
        await asyncio.sleep(0)
        assert list(clock.sleeping) == []

    run(main())


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError("down"), "OSError: down"),
        (OSError(), "OSError"),
        (asyncio.CancelledError(), "CancelledError"),
        (BaseExceptionGroup("all", [SystemExit()]), "BaseExceptionGroup: all (1 sub-exception)"),
    ],
    ids=repr,
)
def test_what_it_raises_is_a_failure(error: BaseException, why: str) -> None:
    async def main() -> None:
        failed = await call_foreign(lambda: raised(error), 1.0, SystemClock(), "it")
        assert failed == Failed(why, error)

    run(main())


@pytest.mark.parametrize("stop", [SystemExit(3), KeyboardInterrupt(), RunStopped("run-1")])
def test_who_ends_the_program_or_the_run_ends_it(stop: BaseException) -> None:
    async def main() -> None:
        with pytest.raises(type(stop)):
            await call_foreign(lambda: raised(stop), 1.0, SystemClock(), "it")

    run(main())


def test_whoever_is_cancelled_waits_a_moment_for_what_it_called(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(foreign, "_GRACE_SECONDS", 0.0)

    async def main() -> None:
        heard, free = list[str](), asyncio.Event()
        called = asyncio.create_task(
            call_foreign(lambda: deaf(heard, free), 9.0, SystemClock(), "the lookup of x")
        )
        await asyncio.sleep(0)
        called.cancel()
        with pytest.raises(asyncio.CancelledError):
            await called
        assert heard == ["cancelled"]
        free.set()
        await asyncio.sleep(0)

    run(main())
    assert caplog.messages == [
        "the lookup of x does not stop when it is told to, and is left behind"
    ]


# --- an audit sink -------------------------------------------------------------------------------


class Broken:
    """A sink that does something else than to keep a record."""

    def __init__(self, write: Callable[[], Awaitable[object]]) -> None:
        self._write = write

    async def write(self, facts: Mapping[str, Any]) -> None:
        await self._write()


def test_a_sink_that_raises_a_cancellation_does_not_cancel_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_on(tmp_path)
    app.audit = Broken(lambda: raised(asyncio.CancelledError()))

    @effect(target="bank", name="charge")
    async def charge() -> str:
        return "done"

    @app.run(version=1)
    async def pay(context: Context) -> str:
        return await context.call(charge)

    assert run(once(app, pay)) == "done"
    (dropped,) = [each for each in caplog.messages if "audit" in each]
    assert dropped.endswith(" is dropped: CancelledError")


def test_a_sink_that_hangs_holds_an_effect_for_five_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with shop(tmp_path, audit=Broken(asyncio.Event().wait)) as it:
            paid = asyncio.create_task(it.pay(Bank("done")))
            await it.clock.until_sleeping()
            assert list(it.clock.sleeping) == [5.0]
            it.clock.advance(5.0)
            assert await paid == "done"
        assert caplog.messages == [
            f"the audit record of {KEY} is dropped: TimeoutError: it took over 5 s"
        ]

    run(main())


def test_a_sink_that_hangs_keeps_nobody_from_closing(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with shop(tmp_path, audit=Broken(asyncio.Event().wait), clock=clock) as it:
            bank = Bank(asyncio.Event())
            paid = asyncio.create_task(it.pay(bank))
            await bank.reached.wait()
            paid.cancel()
            await clock.until_sleeping()
            clock.advance(5.0)
            with pytest.raises(asyncio.CancelledError):
                await paid

    run(main())


def test_a_sink_that_hangs_costs_its_time_once_however_many_have_vanished(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with receipts(tmp_path) as it:
            owner = await it.owner()
            for number in range(9):
                identity = OperationIdentity(f"invoice-{number}", "charge", "bank")
                await it.storage.claim_effect(it.claim_of(owner, identity))
            sql(tmp_path, "UPDATE workers SET gone = 2")
        async with shop(tmp_path, audit=Broken(asyncio.Event().wait), clock=clock) as it:
            listed = asyncio.create_task(it.store.list())
            await clock.until_sleeping(9)
            clock.advance(5.0)
            assert len(await listed) == 9

    run(main())


# --- a lookup ------------------------------------------------------------------------------------


def test_a_lookup_that_swallows_its_cancellation_holds_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "_GRACE_SECONDS", 0.0)

    async def main() -> None:
        heard, free = list[str](), asyncio.Event()

        async def lookup(identity: OperationIdentity) -> Landed:
            await deaf(heard, free)
            return Landed("late")

        bank = Bank(answers=[Landed("done")])
        async with shop(tmp_path) as it:
            await doubtful(it, QUERYABLE)
            asking = asyncio.create_task(
                guard(it.store, CHARGE, bank.send, policy=QUERYABLE, arguments=5, lookup=lookup)
            )
            await it.clock.until_sleeping()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert heard == ["cancelled"]
            assert await it.pay(bank, QUERYABLE) == "done"
            free.set()

    run(main())
