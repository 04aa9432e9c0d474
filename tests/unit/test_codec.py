from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import TypeAdapter

from perdure import Context, OperationFailed, operation
from perdure.canonical import encode
from perdure.codec import Codec
from perdure.codec.readable import readable
from perdure.errors import InvalidPayload
from tests.harness import Pause, app_on, finish, interrupt, operations, run
from tests.values import CLASSES, VALUES, Colour, Level, Point, Rights, same


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_as_it_was_on_the_first_execution_and_on_a_replay(
    tmp_path: Path, name: str
) -> None:
    """T42."""
    value = VALUES[name]
    calls: list[Any] = []
    seen: list[Any] = []
    pause = Pause()

    @operation(read_only=True)
    async def answer(given: Any) -> Any:
        calls.append(given)
        return {"again": [given], "key": {1: given}}

    def app_of_another_process() -> Any:
        app = app_on(tmp_path, types=CLASSES)

        @app.run(version=1)
        async def work(context: Context, given: Any) -> Any:
            seen.append(await context.call(answer, given))
            await pause()
            return (given, seen[-1])

        return app

    async def main() -> Any:
        await interrupt(app_of_another_process(), pause, "work", copy.deepcopy(value))
        return await finish(app_of_another_process())

    expected = {"again": [value], "key": {1: value}}
    result = run(main())
    assert same(result, (value, expected))
    assert len(calls) == 1
    assert len(seen) == 2
    assert same(calls[0], value)
    assert all(same(each, expected) for each in seen)


def test_plain_json_is_written_as_before() -> None:
    value = {"b": [1, 2.5, None, True], "a": {"text": "\\ud800 é\x00", "big": 2**200}, "": []}
    assert Codec().encode(value) == encode(value)


def test_equal_values_have_equal_bytes() -> None:
    codec = Codec(CLASSES)
    words = [f"word {number}" for number in range(50)]
    one = {"set": set(words), "dict": {(word,): word for word in words}, "plain": {"a": 1, "b": ()}}
    other = {
        "plain": {"b": (), "a": 1},
        "dict": {(word,): word for word in reversed(words)},
        "set": frozenset(words) | set(),
    }
    assert codec.encode(one) != codec.encode(other)
    other["set"] = {*reversed(words)}
    assert codec.encode(one) == codec.encode(other)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ((1, {Decimal("1.0")}), b'{"$perdure":"tuple","items":[1,{"$perdure":"set","items":['),
        ({"$perdure": 1}, b'{"$perdure":"dict","items":[["$perdure",1]]}'),
        ({1: "a"}, b'{"$perdure":"dict","items":[[1,"a"]]}'),
        ("\ud800\\", b'{"$perdure":"text","value":"\\\\ud800\\\\\\\\"}'),
        (Level.HIGH, b'{"$perdure":"enum","member":"HIGH","type":"Level"}'),
        (Point(1), b'{"$perdure":"object","fields":{"x":1,"y":0},"type":"Point"}'),
        (
            datetime(2026, 10, 25, 2, fold=1, tzinfo=UTC),
            b'{"$perdure":"datetime","fold":1,"value":"2026-10-25T02:00:00+00:00"}',
        ),
    ],
)
def test_what_is_stored_stays_readable_for_later_releases(value: Any, data: bytes) -> None:
    assert Codec(CLASSES).encode(value).startswith(data)


def test_a_fixed_offset_of_another_library_comes_back_as_the_same_offset() -> None:
    parsed = TypeAdapter(datetime).validate_python("2026-01-02T03:04:05+02:00")
    again = Codec().decode(Codec().encode(parsed))
    assert again == parsed
    assert again.utcoffset() == timedelta(hours=2)


class Summery(tzinfo):
    """Names the offset of its winter where it is asked for none."""

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        return timedelta(hours=2 if dt is not None and 4 <= dt.month < 10 else 1)

    def dst(self, dt: datetime | None) -> timedelta | None:
        return None


class Thoughtless(Summery):
    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        return timedelta(hours=2 if 4 <= dt.month < 10 else 1)  # type: ignore[union-attr]


class Moon(tzinfo):
    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        return None if dt is None else timedelta(hours=1)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"a": [{1: object()}]}, r"result\.a\[0\]\[1\] is an object, which cannot be stored"),
        (defaultdict(list), r"result is a collections\.defaultdict.*pass dict\(value\)"),
        (Point, "result is a type, which cannot be stored"),
        ([Moon()], r"result\[0\] is a .*Moon, which cannot"),
        (datetime(2026, 1, 1, tzinfo=Moon()), r"has a zone of the type .*Moon.*zoneinfo"),
        (datetime(2026, 7, 1, tzinfo=Summery()), r"has a zone of the type .*Summery.*zoneinfo"),
        (datetime(2026, 1, 1, tzinfo=Summery()), r"has a zone of the type .*Summery.*zoneinfo"),
        (datetime(2026, 1, 1, tzinfo=Thoughtless()), r"has a zone of the type .*Thoughtless"),
        ({(Colour.RED,): 1}, r"result\[\(<Colour.RED: 'red'>,\)\] \(the key\)\[0\] is a .*Colour"),
    ],
)
def test_what_cannot_come_back_is_refused_with_its_path(value: Any, complaint: str) -> None:
    with pytest.raises(InvalidPayload, match=complaint):
        Codec().encode(value)


def test_what_contains_itself_or_is_nested_too_deeply_is_refused() -> None:
    around: list[Any] = [()]
    around.append({"again": around})
    with pytest.raises(InvalidPayload, match=r"result\[1\]\.again contains itself"):
        Codec().encode(around)
    deep: Any = ()
    for _ in range(5000):
        deep = (deep,)
    with pytest.raises(InvalidPayload, match="nested more deeply"):
        Codec().encode(deep)
    shared = (1,)
    assert Codec().decode(Codec().encode([shared, shared])) == [shared, shared]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b'{"$perdure":"moon","value":1}', "holds a value of the kind 'moon', which this release"),
        (
            b'[{"$perdure":["tuple"]}]',
            r"payload\[0\] holds a value of the kind .*cannot be rebuilt",
        ),
        (b'{"$perdure":"decimal"}', "'decimal' that cannot be rebuilt: KeyError"),
        (b'{"$perdure":"bytes","value":"a"}', "'bytes' that cannot be rebuilt: Error"),
        (b'{"$perdure":"set","items":[[]]}', "'set' that cannot be rebuilt: TypeError"),
        (b'{"a":{"$perdure":"object","type":"Gone","fields":{}}}', r"payload\.a is a Gone, and no"),
        (b'{"$perdure":"enum","type":"Colour","member":"PINK"}', "'enum Colour' that cannot"),
        (b'{"$perdure":"enum","type":"Point","member":"x"}', "Point is another kind of class now"),
        (b'{"$perdure":"object","type":"Point","fields":[]}', "its members are no object"),
    ],
)
def test_what_cannot_be_read_is_an_error(data: bytes, complaint: str) -> None:
    with pytest.raises(InvalidPayload, match=complaint):
        Codec(CLASSES).decode(data)


@pytest.mark.usefixtures("storage")
def test_any_text_and_bytes_are_committed_beside_each_other(tmp_path: Path) -> None:
    """T41: strange values abort nothing, and what cannot be stored leaves no half of anything."""
    pause = Pause()
    calls: list[str] = []
    texts = ["\ud800", "\x00", "a\x00\udfff", "\\ud800", "\\u0000"]

    async def echo(value: Any) -> Any:
        calls.append("echo")
        return {value: value}

    async def odd() -> Any:
        return [texts, object()]

    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context, given: Any) -> Any:
        async def guarded(text: Any) -> Any:
            return await context.branch("b").call(echo, text)

        import asyncio

        results = await asyncio.gather(
            *(context.call(echo, value) for value in [*texts, b"\x00\xff"]),
            context.call(odd),
            return_exceptions=True,
        )
        failed = results.pop()
        assert isinstance(failed, OperationFailed)
        await pause()
        return OrderedDict(given=given, results=results)

    async def main() -> Any:
        await interrupt(app, pause, work, {text: [text] for text in texts})
        assert len(await operations(app)) == len(texts) + 2
        with pytest.raises(InvalidPayload):
            async with app.connect():
                await app.start(work, {"\ud800": object()}, run_id="never")
        return await finish(app)

    result = run(main())
    assert same(result["given"], {text: [text] for text in texts})
    assert same(result["results"], [{value: value} for value in [*texts, b"\x00\xff"]])
    assert len(calls) == len(texts) + 1


def test_people_see_what_a_value_is() -> None:
    codec = Codec(CLASSES)
    shown = {
        "decimal": Decimal("1.50"),
        "pair": (Colour.RED, {Rights.READ}),
        "model": VALUES["model"]["refunds"][0],
        "moment": VALUES["fold"],
        "mark": {"$perdure": [{}]},
    }
    assert msgspec.json.decode(readable(codec.encode(shown))) == {
        "decimal": {"decimal": "1.50"},
        "pair": {"tuple": [{"Colour": "RED"}, {"set": [{"Rights": 1}]}]},
        "model": {
            "Refund": {
                "amount": {"decimal": "1.50"},
                "note": None,
                "colour": {"Colour": "RED"},
                "_by": {"set": ["ada"]},
            }
        },
        "moment": {
            "datetime": {"fold": 1, "value": "2026-10-25T02:30:00", "zone": "Europe/Berlin"}
        },
        "mark": {"dict": [["$perdure", [{}]]]},
    }
    for data in (b'{"a":[1, 2]}', b'{"$perdure":[1]}', b'["$perdure",1' + b"0" * 5000 + b"]"):
        assert readable(data) == data
