"""Which effect a call is, and how its function learns of it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from perdure import Context, OperationIdentity, RunFailed, current, effect, operation
from perdure.errors import InvalidFunction
from tests.harness import RUN, app_on, once, run, sql
from tests.paying import IDENTITY, KEY, Paying
from tests.receipts import Bank

pytestmark = pytest.mark.usefixtures("storage")

SEEN: list[OperationIdentity] = []


def _note(identity: OperationIdentity, cents: int) -> int:
    SEEN.append(identity)
    return cents


def _first() -> Callable[..., Any]:
    @effect(target="bank")
    async def charge(operation: OperationIdentity, cents: int) -> int:
        return _note(operation, cents)

    return charge


def _last() -> Callable[..., Any]:
    @effect(target="bank")
    async def charge(cents: int, operation: OperationIdentity) -> int:
        return _note(operation, cents)

    return charge


def _named() -> Callable[..., Any]:
    @effect(target="bank")
    async def charge(cents: int, *, operation: OperationIdentity) -> int:
        return _note(operation, cents)

    return charge


def _in_a_thread() -> Callable[..., Any]:
    @effect(target="bank")
    def charge(operation: OperationIdentity, cents: int) -> int:
        return _note(operation, cents)

    return charge


@pytest.mark.parametrize("make", [_first, _last, _named, _in_a_thread])
@pytest.mark.parametrize("by_name", [False, True])
def test_a_function_gets_its_identity_and_nobody_else_sees_the_parameter(
    tmp_path: Path, make: Callable[[], Callable[..., Any]], *, by_name: bool
) -> None:
    charge = make()
    app = app_on(tmp_path)
    SEEN.clear()

    @app.run(version=1)
    async def work(context: Context) -> int:
        return await (context.call(charge, cents=5) if by_name else context.call(charge, 5))

    assert run(once(app, work)) == 5
    assert SEEN == [IDENTITY]
    assert list(inspect.signature(charge).parameters) == ["cents"]
    assert get_type_hints(charge) == {"cents": int, "return": int}


def test_an_identity_is_the_place_in_the_run_whatever_else_happens(tmp_path: Path) -> None:
    app = app_on(tmp_path)
    keys: list[OperationIdentity] = []

    @effect()
    async def charge(operation: OperationIdentity, cents: int) -> None:
        keys.append(operation)

    @operation(read_only=True)
    async def outer() -> None:
        context = current()
        assert context is not None
        await context.call(charge, 3)

    @app.run(version=1)
    async def work(context: Context) -> None:
        side = context.branch("side")
        await asyncio.gather(context.call(charge, 1), context.call(charge, 1), side.call(charge, 2))
        await context.call(outer)

    run(once(app, work))
    name = f"{test_an_identity_is_the_place_in_the_run_whatever_else_happens.__name__}.charge"
    assert keys == [
        OperationIdentity(RUN, "call", name, 1),
        OperationIdentity(RUN, "call", name, 2),
        OperationIdentity(RUN, "branch.side.1.call", name, 1),
        OperationIdentity(RUN, "call.3.call", name, 1),
    ]
    assert sorted(key for (key,) in sql(tmp_path, "SELECT operation_key FROM receipts")) == sorted(
        each.operation_key for each in keys
    )


def test_an_effect_has_one_key_on_every_execution(tmp_path: Path) -> None:
    bank = Bank(asyncio.Event(), "paid")

    async def main() -> Any:
        await Paying(tmp_path, bank, support="idempotent").cut_short()
        return await Paying(tmp_path, bank, support="idempotent").pay()

    assert run(main()) == "paid"
    assert bank.keys == [KEY, KEY]


def test_what_a_caller_writes_for_an_identity_is_none(tmp_path: Path) -> None:
    app = app_on(tmp_path)
    charge = _first()
    SEEN.clear()

    @effect(name="other")
    async def other(cents: int, *, operation: str) -> str:
        return operation

    @app.run(version=1)
    async def work(context: Context) -> str:
        await context.call(charge, 1, operation="mine")
        return await context.call(other, 1, operation="no identity is asked for")

    assert run(once(app, work)) == "no identity is asked for"
    assert SEEN == [IDENTITY]


def test_outside_of_runs_each_call_is_an_effect_of_its_own() -> None:
    charge, pay = _first(), _in_a_thread()
    SEEN.clear()

    async def main() -> list[int]:
        return [await charge(5), await charge(6), pay(7), await charge(8, operation=IDENTITY)]

    assert run(main()) == [5, 6, 7, 8]
    assert len({each.operation_key for each in SEEN}) == 4
    assert SEEN[3] == IDENTITY


def test_a_direct_call_in_the_body_of_a_run_is_refused(tmp_path: Path) -> None:
    charge = _first()
    app = app_on(tmp_path)
    SEEN.clear()

    @app.run(version=1)
    async def work(context: Context) -> None:
        await charge(5)

    with pytest.raises(RunFailed, match=r"context\.call\(charge, …\)") as raised:
        run(once(app, work))
    assert raised.value.code == "NotInRun"
    assert SEEN == []


def test_what_cannot_be_declared_is_refused_with_what_to_write() -> None:
    async def renamed(who: OperationIdentity) -> None: ...

    def slow() -> None: ...

    def find(operation: OperationIdentity) -> None: ...

    with pytest.raises(InvalidFunction, match="called 'operation', not 'who'"):
        effect()(renamed)
    with pytest.raises(InvalidFunction, match="'idempotent', 'outcome_queryable'"):
        effect(support="sometimes")
    with pytest.raises(InvalidFunction, match="needs an async function"):
        effect(timeout_seconds=1)(slow)
    with pytest.raises(InvalidFunction, match="declared twice"):
        operation(read_only=True)(_first())
    with pytest.raises(InvalidFunction, match="an async function"):
        _first().lookup(find)  # pyright: ignore[reportFunctionMemberAccess]
