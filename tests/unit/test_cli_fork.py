from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure import App, Context, operation
from perdure.cli import main
from tests.harness import run

URL = ("--url", "sqlite:///runs.db")
Typed = Callable[..., tuple[int, str, str]]


@operation(read_only=True)
def price(order: str) -> int:
    return len(order)


def pay(cents: int) -> str:
    return f"paid {cents}"


def shop() -> App:
    """Return an App whose run asks for a price and pays it."""
    app = App(URL[1])

    @app.run(version=1)
    async def order(context: Context) -> str:
        return await context.call(pay, await context.call(price, "seven"))

    return app


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """Run a command in a folder with a run `a` that has paid."""
    monkeypatch.chdir(tmp_path)

    async def whole() -> None:
        async with shop() as app:
            await (await app.start("order", run_id="a")).result()

    def call(*words: str) -> tuple[int, str, str]:
        code = main([*words, *URL])
        out, err = capsys.readouterr()
        return code, out, err

    run(whole())
    return call


def test_a_fork_waits_for_a_worker_and_goes_on_from_its_point(typed: Typed) -> None:
    code, out, _ = typed("fork", "a", "call/2", "--edit", '"paid by hand"', "--id", "b")
    assert (code, out) == (0, "run b goes on when a worker serves order@1\n")

    async def worked() -> str:
        async with shop() as app:
            return await app.handle("b").result()

    assert run(worked()) == "paid by hand"


def test_effects_that_would_be_repeated_are_named(typed: Typed) -> None:
    code, _, err = typed("fork", "a", "call/1")
    assert (code, "op-" in err) == (1, True)
    code, out, _ = typed("fork", "a", "call/1", "--repeat-effects", "--json")
    assert (code, json.loads(out)["run"]["state"]) == (0, "pending")


def test_what_cannot_be_forked_has_its_exit_code(typed: Typed) -> None:
    assert typed("fork", "nobody", "call/1")[0] == 3
    assert typed("fork", "a", "call/9")[0] == 3
    assert typed("fork", "a", "call/2", "--edit", "1", "--id", "a")[0] == 2
    assert typed("fork", "a", "call/2", "--edit", "{")[0] == 2


@dataclasses.dataclass
class Refund:
    cents: int


@operation(read_only=True)
def refund() -> Refund:
    return Refund(1)


class Refunds:
    app = App(URL[1])


@Refunds.app.run(version=1)
async def refunds(context: Context) -> int:
    return (await context.call(refund)).cents


def test_an_edit_becomes_what_the_function_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    async def whole() -> None:
        async with Refunds.app as app:
            await (await app.start(refunds, run_id="a")).result()

    run(whole())
    named = ("--app", f"{__name__}:Refunds.app")
    assert main(["fork", "a", "call/1", "--edit", '{"cents":7}', "--id", "b", *named]) == 0
    assert main(["fork", "a", "call/1", "--edit", '{"pounds":7}', *named]) == 2
    assert "refund returns Refund" in capsys.readouterr().err

    async def worked() -> int:
        async with Refunds.app as app:
            return await app.handle("b").result()

    assert run(worked()) == 7
