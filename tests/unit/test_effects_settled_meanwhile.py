"""Effects that are settled while their run is still at work on something else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, RunCancelled, RunNeedsAttention, RunState, effect
from perdure.effects.answer import Decision, Landed, NeverWill
from perdure.receipts import ReceiptStore
from tests.harness import RUN, app_on, attempts, run, until

DOUBTS = "perdure_side_effect_ambiguous_total"


class Street:
    """A run at two shops beside each other: one's answer is lost, the other one is slow."""

    def __init__(self, folder: Path, *, told: bool = False, slow_is_lost: bool = False) -> None:
        self.app = app_on(folder)
        self.go = asyncio.Event()
        self.lost = 0

        @effect(on_ambiguous="tell" if told else "ask")
        async def first() -> None:
            raise ConnectionResetError("first")

        async def lost() -> str:
            self.lost += 1
            if self.lost == 1:
                raise ConnectionResetError("gone")
            return "sent again"

        async def slow() -> str:
            await self.go.wait()
            if slow_is_lost:
                raise ConnectionResetError("slow")
            return "slow"

        @self.app.run(version=1)
        async def walk(context: Context) -> list[Any]:
            if told:
                await asyncio.gather(context.call(first), return_exceptions=True)
            return await asyncio.gather(context.call(lost), context.call(slow))

        self.function = walk

    async def settle(self, decision: Decision) -> None:
        """Decide about the lost one, as another process would."""
        await until(lambda: self.app.observer.counts[DOUBTS] > 0)
        async with ReceiptStore(self.app.url) as store:
            doubted = await store.list(ambiguous_only=True)
            (receipt,) = [each for each in doubted if each.target.endswith("lost")]
            key, version = receipt.operation_key, receipt.version
            await store.settle(key, decision, by="ada", why="saw it", expect_version=version)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize(
    ("decision", "result"),
    [(Landed("found"), ["found", "slow"]), (NeverWill(), ["sent again", "slow"])],
)
def test_who_waits_for_the_run_gets_its_end_and_no_question_that_is_answered(
    tmp_path: Path, decision: Decision, result: Any, *, told: bool
) -> None:
    async def main() -> None:
        street = Street(tmp_path, told=told)
        async with street.app as app:
            handle = await app.start(street.function, run_id=RUN)
            waiting = asyncio.create_task(handle.result())
            await until(lambda: street.lost == 1)
            await until(lambda: app.observer.counts[DOUBTS] == 1 + told)
            await street.settle(decision)
            assert (await app.find(RUN)).state is RunState.RUNNING
            street.go.set()
            assert await waiting == result
            row = await app.find(RUN)
            assert (row.state, row.problem) == (RunState.COMPLETED, None)
        endings = [entry.ending for entry in await attempts(street.app)]
        assert endings == ["released", "completed"]

    run(main())


def test_what_is_in_doubt_beside_it_is_asked_next(tmp_path: Path) -> None:
    async def main() -> None:
        street = Street(tmp_path, slow_is_lost=True)
        async with street.app as app:
            handle = await app.start(street.function, run_id=RUN)
            await street.settle(Landed("found"))
            street.go.set()
            with pytest.raises(RunNeedsAttention, match=r"slow' may have been applied"):
                await handle.result()
        endings = [entry.ending for entry in await attempts(street.app)]
        assert endings == ["released", "needs_attention"]

    run(main())


def test_a_run_whose_end_was_asked_for_ends(tmp_path: Path) -> None:
    async def main() -> None:
        street = Street(tmp_path)
        async with street.app as app:
            handle = await app.start(street.function, run_id=RUN)
            await street.settle(Landed("found"))
            genuine = app.store.end_run

            async def cancelled_first(*args: Any) -> RunState:
                await app.store.request_cancel(RUN)
                return await genuine(*args)

            app.store.end_run = cancelled_first
            street.go.set()
            with pytest.raises(RunCancelled):
                await handle.result()

        assert [entry.ending for entry in await attempts(street.app)] == ["cancelled"]

    run(main())
