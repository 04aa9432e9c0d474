from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, OperationFailed, operation
from perdure.errors import ForkRepeats, RunConflict, UnknownOperation, UnknownRun
from tests.harness import RUN, app_on, run

pytestmark = pytest.mark.usefixtures("storage")


class Shop:
    """A run that draws an id, asks for a price and pays twice, and what really happened."""

    def __init__(self, folder: Path) -> None:
        self.app = app_on(folder)
        self.happened: list[str] = []
        self.app.run(version=1, name="work")(self.work)

    async def work(self, context: Context) -> list[str]:
        drawn = str(context.uuid())
        price = await context.call(self.price, drawn)
        return [drawn, await context.call(self.pay, price), await context.call(self.pay, price + 1)]

    @operation(read_only=True)
    def price(self, drawn: str) -> int:
        self.happened.append("price")
        return len(drawn)

    def pay(self, amount: int) -> str:
        self.happened.append(f"pay {amount}")
        return f"paid {amount}"

    async def ended(self, app: App, run_id: str = RUN) -> list[str]:
        """Return what a run came to, and forget what happened for it."""
        result = await app.handle(run_id).result()
        self.happened.clear()
        return result


def test_a_fork_is_answered_up_to_its_point_and_performs_the_rest(tmp_path: Path) -> None:
    shop = Shop(tmp_path)

    async def main() -> None:
        async with shop.app as app:
            await app.start("work", run_id=RUN)
            first = await shop.ended(app)
            fork = await app.fork(RUN, "call/2", repeat_effects=True)
            assert await fork.result() == first, "the id that it draws is the first one's"
            assert shop.happened == ["pay 36", "pay 37"]
            assert fork.run_id != RUN
            assert await app.handle(RUN).result() == first

    run(main())


def test_an_edit_stands_for_what_the_operation_came_to(tmp_path: Path) -> None:
    shop = Shop(tmp_path)

    async def main() -> None:
        async with shop.app as app:
            await app.start("work", run_id=RUN)
            drawn, *_ = await shop.ended(app)
            fork = await app.fork(RUN, "call/1", edit=7, repeat_effects=True, new_id="again")
            assert await fork.result() == [drawn, "paid 7", "paid 8"]
            assert shop.happened == ["pay 7", "pay 8"]
            shop.happened.clear()
            of_fork = await app.fork("again", "call/3", edit="by hand")
            assert await of_fork.result() == [drawn, "paid 7", "by hand"]
            assert shop.happened == []

    run(main())


def test_effects_from_the_point_on_need_a_decision(tmp_path: Path) -> None:
    shop = Shop(tmp_path)

    async def main() -> None:
        async with shop.app as app:
            await app.start("work", run_id=RUN)
            await shop.ended(app)
            receipts = await app.store.list_receipts(ambiguous_only=False, limit=9, run_id=RUN)
            sent = {receipt.operation_key for receipt in receipts}
            with pytest.raises(ForkRepeats) as refused:
                await app.fork(RUN, "call/2")
            assert {*refused.value.operation_keys} == sent
            with pytest.raises(ForkRepeats) as refused:
                await app.fork(RUN, "call/3")
            assert len(refused.value.operation_keys) == 1
            assert len(await app.list()) == 1
            assert shop.happened == []

    run(main())


def test_a_fork_has_effects_of_its_own(tmp_path: Path) -> None:
    shop = Shop(tmp_path)

    async def main() -> None:
        async with shop.app as app:
            await app.start("work", run_id=RUN)
            await shop.ended(app)
            fork = await app.fork(RUN, "call/3", repeat_effects=True)
            await fork.result()
            keys = [
                receipt.operation_key
                for run_id in (RUN, fork.run_id)
                for receipt in await app.store.list_receipts(
                    ambiguous_only=False, limit=9, run_id=run_id
                )
            ]
            assert len({*keys}) == len(keys) == 3

    run(main())


def test_what_cannot_be_forked_is_told(tmp_path: Path) -> None:
    shop = Shop(tmp_path)

    async def main() -> None:
        async with shop.app as app:
            await app.start("work", run_id=RUN)
            await shop.ended(app)
            with pytest.raises(UnknownOperation, match=r"recorded: call/1, call/2, call/3"):
                await app.fork(RUN, "call/4")
            with pytest.raises(UnknownRun):
                await app.fork("nobody", "call/1")
            with pytest.raises(RunConflict, match="another id"):
                await app.fork(RUN, "call/3", edit="x", new_id=RUN)

    run(main())


def test_a_failed_run_is_forked_over_its_failure(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @operation(read_only=True)
    async def fails() -> int:
        raise ValueError("no")

    @app.run(version=1)
    async def work(context: Context) -> Any:
        try:
            return await context.call(fails)
        except OperationFailed:
            return "failed"

    async def main() -> None:
        async with app:
            handle = await app.start(work, run_id=RUN)
            assert await handle.result() == "failed"
            assert await (await app.fork(RUN, "call/1", edit=3)).result() == 3
            rows = await app.store.list_operations(RUN)
            assert [row.status for row in rows] == ["failure"]

    run(main())


def parents(folder: Path, paid: list[int]) -> App:
    """Return an App whose run starts two others, which pay, and adds up what they paid."""
    app = app_on(folder)

    @app.run(version=1)
    async def child(context: Context, cents: int) -> int:
        async def pay() -> int:
            paid.append(cents)
            return cents

        return await context.call(pay)

    @app.run(version=1)
    async def whole(context: Context) -> int:
        parts = [await context.start_child(child, cents) for cents in (1, 2)]
        return sum(await asyncio.gather(*(part.result() for part in parts)))

    return app


def test_a_fork_asks_the_children_of_the_other_run_for_their_end(tmp_path: Path) -> None:
    paid: list[int] = []

    async def main() -> None:
        async with parents(tmp_path, paid) as app:
            assert await (await app.start("whole", run_id=RUN)).result() == 3
            fork = await app.fork(RUN, "child.end/1")
            assert await fork.result() == 3
            assert sorted(paid) == [1, 2]

    run(main())


def test_children_that_a_fork_would_start_again_need_a_decision(tmp_path: Path) -> None:
    paid: list[int] = []

    async def main() -> None:
        async with parents(tmp_path, paid) as app:
            await (await app.start("whole", run_id=RUN)).result()
            with pytest.raises(ForkRepeats) as refused:
                await app.fork(RUN, "child/2")
            assert refused.value.run_ids == [f"{RUN}.child.2"]
            fork = await app.fork(RUN, "child/2", repeat_effects=True)
            assert await fork.result() == 3
            assert sorted(paid) == [1, 2, 2]

    run(main())
