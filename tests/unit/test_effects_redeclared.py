"""A deploy between the crash and the recovery: what was begun is known by whatever name it had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, OperationIdentity, effect, operation
from perdure.declaration import EffectDeclaration, KnownEffects
from perdure.effects.answer import NeverWill
from perdure.effects.support import EffectPolicy
from perdure.errors import RunNeedsAttention
from tests.harness import RUN, app_on, run, sql

Declare = Callable[[Any], Any]
OLD: Declare = effect(target="bank", name="pay")


@pytest.mark.parametrize(
    "new",
    [
        effect(target="bank-eu", name="pay"),
        effect(name="pay"),
        operation(read_only=True, name="pay"),
    ],
    ids=["other-target", "no-target", "read-only"],
)
def test_what_was_begun_under_another_name_is_not_sent_again(tmp_path: Path, new: Declare) -> None:
    sent: list[str] = []
    reached = asyncio.Event()

    def app(declare: Declare) -> App:
        app = app_on(tmp_path)

        @declare
        async def pay() -> str:
            sent.append("paid")
            if len(sent) == 1:
                reached.set()
                await asyncio.Event().wait()
            return "paid"

        @app.run(version=1)
        async def errand(context: Context) -> str:
            return await context.call(pay)

        return app

    async def main() -> None:
        async with app(OLD) as first:
            await first.start("errand", run_id=RUN)
            await reached.wait()
        async with app(new) as second:
            with pytest.raises(RunNeedsAttention, match="under another name or target"):
                await second.handle(RUN).result()
        async with app(OLD) as third:
            await third.resume(RUN)
            with pytest.raises(RunNeedsAttention, match="may have been applied"):
                await third.handle(RUN).result()

    run(main())
    assert sent == ["paid"]
    assert sql(tmp_path, "SELECT target, state FROM receipts") == [("bank", "ambiguous")]


def test_an_identity_after_any_number_of_arguments_is_put_in(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @effect()
    async def send(*items: str, operation: OperationIdentity) -> list[str]:
        return [*items, operation.idempotency_key]

    @app.run(version=1)
    async def errand(context: Context) -> Any:
        return [await context.call(send, *"ab"[:count]) for count in range(3)]

    async def main() -> Any:
        async with app:
            return await (await app.start(errand)).result()

    assert run(main()) == [["call"], ["a", "call"], ["a", "b", "call"]]


def test_a_lookup_is_asked_about_its_own_target_and_none_where_two_claim_it() -> None:
    async def ask_a(operation: OperationIdentity) -> NeverWill:
        return NeverWill()

    async def ask_b(operation: OperationIdentity) -> NeverWill:
        return NeverWill()

    def declared(target: str, lookup: Any) -> EffectDeclaration:
        return EffectDeclaration(policy=EffectPolicy(target=target), lookup=lookup)

    known = KnownEffects()
    at_a = declared("a", ask_a)
    known.learn("pay", at_a)
    known.learn("pay", declared("b", ask_b))
    assert known.find("pay", "a") is at_a
    assert known.find("pay", "c") is None
    known.learn("pay", declared("a", ask_b))
    assert known.find("pay", "a") is None
    assert known.askable() == ["pay"]
