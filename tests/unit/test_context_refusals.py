from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, OperationFailed, RetryPolicy, operation
from perdure.errors import InvalidFunction, InvalidPayload
from tests.harness import app_on, keys, once, operations, run

OBJECT = object()
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"a": [1, {OBJECT}]}, r"arguments\.args\[0\]\.a\[1\]\[0\] is an object, which cannot be"),
        (defaultdict(int), r"arguments\.args\[0\] is a collections.defaultdict.*dict\(value\)"),
        ({(1, OBJECT): 2}, r"\[0\]\[\(1, <object .*\)\] \(the key\)\[1\] is an object"),
        (CYCLE, "contains itself"),
        ("x" * (2 * 1024 * 1024), r"the limit is 2097152: store large data"),
    ],
    ids=["nested", "subclass", "key", "cycle", "oversize"],
)
def test_arguments_that_cannot_be_stored_are_refused_before_anything(
    tmp_path: Path, value: Any, complaint: str
) -> None:
    app = app_on(tmp_path)
    seen: list[Any] = []

    async def take(value: Any) -> None:
        seen.append(value)

    @app.run(version=1)
    async def work(context: Context) -> str:
        with pytest.raises(InvalidPayload, match=complaint):
            await context.call(take, value)
        return "went on"

    assert run(once(app, work)) == "went on"
    assert seen == []
    assert run(keys(app)) == []


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"a": [OBJECT]}, r"result\.a\[0\] is an object"),
        ((OBJECT,), r"result\[0\] is an object"),
        ("x" * (8 * 1024 * 1024), "a record holds 8388608"),
    ],
    ids=["nested", "tuple", "oversize"],
)
def test_a_result_that_cannot_be_stored_is_a_failure_for_good(
    tmp_path: Path, value: Any, complaint: str
) -> None:
    app = app_on(tmp_path)
    calls: list[int] = []

    @operation(retry=RetryPolicy(attempts=5))
    async def answer() -> Any:
        calls.append(1)
        return value

    @app.run(version=1)
    async def work(context: Context) -> str:
        with pytest.raises(OperationFailed, match=complaint) as caught:
            await context.call(answer)
        assert caught.value.code == "InvalidPayload"
        return "went on"

    assert run(once(app, work)) == "went on"
    assert calls == [1]
    assert [row.status for row in run(operations(app))] == ["failure"]


def greet() -> None:
    """Do nothing, under a name that is no identifier."""


greet.__qualname__ = "grüße"


@pytest.mark.parametrize(
    "function", [lambda: 1, functools.partial(lambda: 1), greet], ids=["lambda", "partial", "name"]
)
def test_a_function_without_a_usable_name_is_refused(
    tmp_path: Path, function: Callable[..., Any]
) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> str:
        with pytest.raises(InvalidFunction, match="name="):
            await context.call(function)
        return await context.call(operation(name="named")(lambda: "called"))

    assert run(once(app, work)) == "called"
