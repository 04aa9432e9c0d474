from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import App, RunFailed, RunNeedsAttention
from perdure.cli import main
from tests.harness import run, sql

PROGRAM = """
from dataclasses import dataclass
from perdure import App, Context, effect, operation

app = App("sqlite:///runs.db")

@dataclass
class Order:
    order: str

@dataclass
class Quote:
    cents: int

@operation(read_only=True)
async def quote(name: str) -> Quote:
    return Quote(len(name))

@effect(target="bank")
async def charge(cents: int) -> str:
    raise ConnectionResetError("no reply")

@app.run(version=1)
async def shop(context: Context, order: Order) -> str:
    quoted = await context.call(quote, "lamp")
    return await context.call(charge, quoted.cents)

@app.run(version=1)
async def failing(context: Context, order: Order) -> str:
    quoted = await context.call(quote, "lamp")
    raise ValueError(quoted.cents)
"""

Shop = Callable[..., App]
Check = Callable[..., tuple[int, Any]]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Write the program with something in it replaced, and return its App."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(*changes: tuple[str, str]) -> App:
        text = PROGRAM
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "parked_shop.py").write_text(text)
        sys.modules.pop("parked_shop", None)
        importlib.invalidate_caches()
        return importlib.import_module("parked_shop").app

    yield write
    sys.modules.pop("parked_shop", None)


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Check the runs; returns the exit code and what was found of the only one."""

    def call(*words: str) -> tuple[int, Any]:
        code = main(["check", "parked_shop:app", *words, "--json"])
        (found,) = json.loads(capsys.readouterr().out)["runs"]
        return code, found

    return call


def record(app: App, function: str, end: type[Exception]) -> None:
    async def whole() -> None:
        async with app:
            order = sys.modules["parked_shop"].Order("A-1")
            handle = await app.start(function, order, run_id="r")
            with pytest.raises(end):
                await handle.result()

    run(whole())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([("order: str", "order_id: str")], "has no field 'order'"),
        ([("Order", "Purchase")], "Order"),
        (
            [("cents: int\n\n@op", "amount: int\n\n@op"), ("quoted.cents", "3")],
            "has no field 'cents'",
        ),
        ([("Quote", "Price")], "Quote"),
        ([('"bank"', '"other"')], "under another name or target"),
        ([("return await context.call(charge, quoted.cents)", 'return "free"')], "r/call/2"),
    ],
)
def test_a_parked_run_is_not_well_with_code_that_would_park_it_for_another_reason(
    shop: Shop, check: Check, changes: list[tuple[str, str]], reason: str
) -> None:
    record(shop(), "shop", RunNeedsAttention)
    code, found = check("--open")
    assert (code, found["verdict"]) == (0, "goes_on")
    shop(*changes)
    code, found = check("--open")
    assert (code, found["verdict"]) == (1, "differs")
    assert reason in found["reason"]


BESIDE = """
    import asyncio
    one, two = context.branch("one"), context.branch("two")
    done = await asyncio.gather(one.call(charge, quoted.cents), two.call(charge, 1))
    return done[0]"""


def test_effects_in_doubt_beside_each_other_go_on(shop: Shop, check: Check) -> None:
    last = "\n    return await context.call(charge, quoted.cents)"
    record(shop((last, BESIDE)), "shop", RunNeedsAttention)
    assert check("--open")[1]["verdict"] == "goes_on"
    shop((last, BESIDE.replace("two.call(charge, 1)", "asyncio.sleep(0)")))
    code, found = check("--open")
    assert (code, found["verdict"]) == (1, "differs")
    assert "before it asks for all" in found["reason"]


def test_what_is_parked_for_its_input_differs_until_the_code_can_read_it(
    shop: Shop, check: Check
) -> None:
    record(shop(), "shop", RunNeedsAttention)
    changed = shop(("order: str", "order_id: str"))

    async def again() -> None:
        async with changed:
            await changed.resume("r")
            with pytest.raises(RunNeedsAttention, match="no field"):
                await changed.handle("r").result()

    run(again())
    assert check("--open")[1]["verdict"] == "differs"
    shop()
    assert check("--open")[1]["verdict"] == "goes_on"


def test_a_result_that_is_damaged_is_told_apart_from_code_that_differs(
    shop: Shop, check: Check, tmp_path: Path
) -> None:
    large = ("Quote(len(name))", 'Quote("a" * 9000)')  # it is read only when it is asked for
    record(shop(large), "shop", RunNeedsAttention)
    assert check("--open")[1]["verdict"] == "goes_on"
    sql(tmp_path, "UPDATE records SET payload = x'00ff'")
    code, found = check("--open")
    assert (code, found["verdict"]) == (1, "unreadable")
    assert "damaged in the database" in found["reason"]


def test_a_run_that_failed_matches_code_that_fails_alike(shop: Shop, check: Check) -> None:
    record(shop(), "failing", RunFailed)
    assert check()[1]["verdict"] == "matches"
    shop(("ValueError(", "KeyError("))
    code, found = check()
    assert (code, found["verdict"]) == (1, "differs")
    assert "it is failed by KeyError and was by ValueError" in found["reason"]


def test_what_is_over_is_not_advised_to_be_cancelled(
    shop: Shop, check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    record(shop(), "failing", RunFailed)
    shop(('"lamp"', '"desk"'))
    code, found = check()
    assert (code, found["ended"]) == (1, True)
    assert found["reason"].endswith("nothing was called")
    main(["check", "parked_shop:app"])
    *_, counts, advice = capsys.readouterr().out.splitlines()
    assert counts.startswith("1 run: 0 match, 0 match and would go on, 1 differs, ")
    assert advice == "1 that differs is over and need not go on; --open leaves out what is over"
    assert main(["check", "parked_shop:app", "--open"]) == 0
    assert capsys.readouterr().out.startswith("0 runs: ")
