"""What is said to a run that is started under the id of one that retention has deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import App, Context, OperationIdentity, effect
from perdure.engine.retention import Retention
from perdure.errors import RunCancelled, RunNeedsAttention
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, Pause, app_on, run, sql

pytestmark = pytest.mark.usefixtures("storage")

SENT_BEFORE = f"applied by an earlier run {RUN}, whose records were deleted by retention"
DAMAGED = "the record that was written with it is gone: restore the database"


class Office:
    """A run with one effect, by a clock that is turned for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.sent = 0
        self.pause = Pause()

    def app(self) -> App:
        app = app_on(self.folder, clock=self.clock)

        @effect(support="idempotent")
        async def charge(operation: OperationIdentity, cents: int) -> str:
            self.sent += 1
            return f"r-{cents}"

        @app.run(version=1)
        async def pay(context: Context, cents: int) -> str:
            paid = await context.call(charge, cents)
            await self.pause()
            return paid

        return app


def test_an_effect_of_a_deleted_run_is_not_sent_again_and_why_is_said(tmp_path: Path) -> None:
    office = Office(tmp_path)
    office.pause.open = True

    async def main() -> None:
        async with office.app() as app:
            assert await (await app.start("pay", 5, run_id=RUN)).result() == "r-5"
            office.clock.jump(1)
            await app.collect(Retention(runs_days=0))
            handle = await app.start("pay", 5, run_id=RUN)
            with pytest.raises(RunNeedsAttention, match=SENT_BEFORE) as raised:
                await handle.result()
            assert "Use another run id" in str(raised.value)
            assert f"perdure cancel {RUN}" in str(raised.value)
            assert "restore" not in str(raised.value)
            await handle.cancel()
            with pytest.raises(RunCancelled):
                await handle.result()
            assert await (await app.start("pay", 5, run_id="another")).result() == "r-5"

    run(main())
    assert office.sent == 2


def test_a_record_that_is_gone_beside_its_receipt_is_damage(tmp_path: Path) -> None:
    office = Office(tmp_path)

    async def begin() -> None:
        async with office.app() as app:
            await app.start("pay", 5, run_id=RUN)
            await office.pause.reached.wait()

    async def go_on() -> None:
        async with office.app() as app:
            with pytest.raises(RunNeedsAttention, match=DAMAGED):
                await app.handle(RUN).result()

    run(begin())
    sql(tmp_path, "DELETE FROM records")
    run(go_on())
    assert office.sent == 1
