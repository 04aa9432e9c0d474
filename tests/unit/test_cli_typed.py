from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import App, RunNeedsAttention, WorkerOptions
from perdure.cli import main
from tests.harness import run

PROGRAM = """
import asyncio, enum
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import msgspec
import pydantic
from perdure import App, Context, effect

if TYPE_CHECKING:
    from nowhere import Absent

app = App("sqlite:///runs.db")

@dataclass(frozen=True)
class Line:
    sku: str
    amount: Decimal = Decimal(1)

@dataclass
class Order:
    id: str
    lines: list[Line] = field(default_factory=list)

class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"

class Invoice(pydantic.BaseModel):
    number: int
    due: date | None = None

class Note(pydantic.BaseModel):
    number: int

class Refund(msgspec.Struct, rename="camel", omit_defaults=True, tag_field="kind", tag="r"):
    order_id: str
    cents: int = 0

class Point(NamedTuple):
    x: int
    y: int

class Told(TypedDict):
    text: str

class Odd: ...

@app.run(version=1)
async def order(context: Context, value: Order) -> Any: return repr(value)
@app.run(version=1)
async def colour(context: Context, value: Colour | None) -> Any: return repr(value)
@app.run(version=1)
async def invoices(context: Context, value: list[Invoice]) -> Any: return repr(value)
@app.run(version=1)
async def refund(context: Context, value: Refund) -> Any: return repr(value)
@app.run(version=1)
async def either(context: Context, value: Order | Invoice) -> Any: return repr(value)
@app.run(version=1)
async def both(context: Context, value: Invoice | Note) -> Any: return repr(value)
@app.run(version=1)
async def shapes(context: Context, value: dict[int, tuple[Point, ...]]) -> Any: return repr(value)
@app.run(version=1)
async def where(context: Context, value: Path) -> Any: return repr(value)
@app.run(version=1)
async def plain(context: Context, value: Sequence[float]) -> Any: return repr(value)
@app.run(version=1)
async def told(context: Context, value: Told) -> Any: return repr(value)
@app.run(version=1)
async def odd(context: Context, value: Odd) -> Any: return repr(value)
@app.run(version=1)
async def absent(context: Context, value: "Absent") -> Any: return repr(value)
@app.run(version=1)
async def bare(context, value): return repr(value)
@app.run(version=1)
async def optional(context: Context, value: Order = Order("A-7")) -> Any: return repr(value)

@effect(target="bank")
async def charge(order: Order) -> Invoice:
    raise ConnectionResetError("no reply")

@effect(target="bank", name="pay")
def charge_slowly(order: Order) -> Awaitable[int]:
    raise ConnectionResetError("no reply")

@effect(target="bank")
async def tell(order: Order) -> "Absent":
    raise ConnectionResetError("no reply")

@app.run(version=1)
async def paying(context: Context, which: str) -> str:
    function = {"charge": charge, "slowly": charge_slowly, "tell": tell}[which]
    return repr(await context.call(function, Order("A-1")))
"""

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Typed]:
    """Run a command in a folder that holds `typed_shop.py`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "typed_shop.py").write_text(PROGRAM)
    sys.modules.pop("typed_shop", None)

    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        return code, *capsys.readouterr()

    yield call
    sys.modules.pop("typed_shop", None)


def result() -> Any:
    """Execute the run and return what it returns."""
    app: App = sys.modules["typed_shop"].app
    app.worker = WorkerOptions(poll_seconds=0.002)

    async def whole() -> Any:
        async with app:
            return await app.handle("one").result()

    return run(whole())


@pytest.mark.parametrize(
    ("function", "given", "got"),
    [
        (
            "order",
            {"id": "A", "lines": [{"sku": "x", "amount": "1.50"}]},
            "Order(id='A', lines=[Line(sku='x', amount=Decimal('1.50'))])",
        ),
        ("colour", "red", "<Colour.RED: 'red'>"),
        ("colour", None, "None"),
        ("invoices", [{"number": 7, "due": "2030-01-02"}], "due=datetime.date(2030, 1, 2))]"),
        ("refund", {"kind": "r", "orderId": "A", "cents": 0}, "Refund(order_id='A', cents=0)"),
        ("either", {"number": 7}, "Invoice(number=7, due=None)"),
        ("either", {"id": "A"}, "Order(id='A', lines=[])"),
        ("shapes", {"1": [[2, 3]]}, "{1: (Point(x=2, y=3),)}"),
        ("where", "a/b", "PosixPath('a/b')"),
        ("plain", [1, 2.5], "[1, 2.5]"),
        ("told", {"text": "a", "more": 1}, "{'more': 1, 'text': 'a'}"),
        ("bare", {"id": "A"}, "{'id': 'A'}"),
    ],
)
def test_what_is_typed_becomes_what_the_function_takes(
    typed: Typed, function: str, given: Any, got: str
) -> None:
    words = ("start", "typed_shop:app", function, json.dumps(given), "--id", "one")
    assert typed(*words) == (0, "run one is pending\n", "")
    assert typed(*words)[0] == 0
    assert result().endswith(got)


@pytest.mark.parametrize(
    ("function", "given", "told"),
    [
        ("order", {"lines": []}, "order takes Order (Order: id, lines), and this is none"),
        ("order", {"lines": []}, "this is none: Object missing required field `id`"),
        ("order", {"id": "A", "lines": [{"skew": 1}]}, "missing required field `sku`"),
        ("order", {"id": "A", "line": []}, "nothing is made of $.line"),
        ("order", {"id": "A", "lines": [{"sku": "x", "n": 1}]}, "is made of $.lines[0].n"),
        ("colour", "pink", "takes typed_shop.Colour | None (Colour: 'red', 'blue'), and"),
        ("invoices", [{"number": "x"}], "number: Input should be a valid integer"),
        ("refund", {"kind": "r", "order_id": "A"}, "missing required field `orderId`"),
        ("either", {"x": 7}, "it fits none of them"),
        ("both", {"number": 7}, "it fits 2 of them"),
        ("plain", ["a"], "plain takes collections.abc.Sequence[float], and this is none: Expected"),
        ("told", {}, "missing required field `text`"),
        ("odd", 1, "Odd is no class of data, and has to come from a program"),
        ("absent", 1, "nobody can tell what absent means by 'Absent' (NameError)"),
    ],
)
def test_what_the_function_does_not_take_is_refused(
    typed: Typed, function: str, given: Any, told: str
) -> None:
    words = ("start", "typed_shop:app", function, json.dumps(given), "--id", "one")
    code, out, err = typed(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err
    assert typed("runs", "--app", "typed_shop:app")[1] == "no runs\n"


def test_an_input_that_is_not_typed_is_the_default_of_its_parameter(typed: Typed) -> None:
    assert typed("start", "typed_shop:app", "optional", "--id", "one")[0] == 0
    assert typed("start", "typed_shop:app", "optional", '{"id": "A-7"}', "--id", "one")[0] == 0
    assert result() == "Order(id='A-7', lines=[])"
    code, out, err = typed("start", "typed_shop:app", "bare", "--id", "two")
    assert (code, out) == (2, "")
    assert err == "perdure: bare takes an input: type it as JSON, such as null\n"


@pytest.mark.parametrize(
    ("which", "wrong", "said", "right", "got"),
    [
        ("charge", '"r-1"', "charge returns Invoice (Invoice: number, due)", '{"number": 7}', "="),
        ("slowly", '"r-1"', "pay returns int, and this is none: Expected `int`", "7", "7"),
        ("tell", "", "", '{"any": "thing"}', "{'any': 'thing'}"),
    ],
)
def test_an_answer_is_one_that_the_function_could_return(
    typed: Typed, which: str, wrong: str, said: str, right: str, got: str
) -> None:
    typed("start", "typed_shop:app", "paying", json.dumps(which), "--id", "one")
    with pytest.raises(RunNeedsAttention):
        result()
    app = ("--app", "typed_shop:app")
    (receipt,) = json.loads(typed("effects", *app, "--json")[1])["receipts"]
    settle = ("effects", "settle", receipt["operation_key"], "--why", "x", "--expect-version", "2")
    if wrong:
        code, out, err = typed(*settle, *app, "--landed", wrong)
        assert (code, out) == (2, "")
        assert said in err
    assert typed(*settle, *app, "--landed", right)[0] == 0
    assert result() == ("Invoice(number=7, due=None)" if got == "=" else got)


def test_without_the_app_an_answer_is_taken_as_it_is(typed: Typed) -> None:
    typed("start", "typed_shop:app", "paying", '"slowly"', "--id", "one")
    with pytest.raises(RunNeedsAttention):
        result()
    url = ("--url", "sqlite:///runs.db")
    (receipt,) = json.loads(typed("effects", *url, "--json")[1])["receipts"]
    hint = "with --app MODULE:APP instead, JSON is compared with what the function returns"
    assert hint in typed("effects", "show", receipt["operation_key"], *url)[1]
    app = ("--app", "typed_shop:app")
    assert hint not in typed("effects", "show", receipt["operation_key"], *app)[1]
    settle = ("effects", "settle", receipt["operation_key"], "--why", "x", "--expect-version", "2")
    assert typed(*settle, *url, "--landed", '"r-1"')[0] == 0
    assert result() == "'r-1'"
