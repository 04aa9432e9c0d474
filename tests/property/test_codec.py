from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack
from datetime import timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import Context, operation
from perdure.canonical import exact_bytes
from perdure.codec import Codec
from tests.harness import app_on, finish, run
from tests.storages import kept_on_server
from tests.values import (
    CLASSES,
    Colour,
    Level,
    Order,
    Packet,
    Pair,
    Point,
    Rank,
    Refund,
    Rights,
    same,
)

text = st.text(st.characters()) | st.text("\ud83d\ude00\udfff\x00\\u$perdu", max_size=9)
zones = (
    st.none()
    | st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
    | st.builds(timezone, st.just(timedelta(hours=1)), text)
    | st.sampled_from(["Europe/Berlin", "America/New_York", "UTC", "Asia/Kolkata"]).map(ZoneInfo)
)
folds = st.integers(0, 1)
leaves: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(2**63, 2**90).map(lambda number: number * (-1) ** number),
    st.integers(0, 9).map(lambda number: number - 10 ** (4299 + number % 3)),
    st.floats(),
    text,
    st.binary(max_size=9),
    st.decimals(),
    st.builds(
        lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold), st.datetimes(), zones, folds
    ),
    st.builds(lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold), st.times(), zones, folds),
    st.dates(),
    st.timedeltas(),
    st.uuids(),
    text.map(lambda name: PurePosixPath(name.replace("\x00", ""))),
    st.sampled_from([Colour.RED, Colour.BLUE, Level.HIGH, Rank.FIRST, Rights.READ, Rights(0)]),
)


def _hashables(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(inner, inner),
        st.frozensets(inner, max_size=3),
        st.tuples(inner, inner).map(lambda xy: Point(*xy)),
        inner.map(Pair),
        inner.map(Packet),
    )


def _signalling(value: Any) -> bool:
    return isinstance(value, Decimal) and value.is_snan()


hashables = st.recursive(
    leaves.filter(lambda leaf: not _signalling(leaf)), _hashables, max_leaves=4
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.sets(hashables, max_size=3),
        st.dictionaries(text | st.just("$perdure"), inner, max_size=3),
        st.dictionaries(hashables, inner, max_size=3),
        inner.map(Order),
        st.tuples(inner, inner).map(lambda both: Packet(*both)),
        st.builds(lambda one, two: Refund(amount=one, colour=two), inner, inner),
    )


values = st.recursive(leaves | hashables, _containers, max_leaves=12)


@settings(max_examples=400)
@given(values)
def test_every_value_comes_back_equal_and_of_its_types(value: Any) -> None:
    codec = Codec(CLASSES)
    data = codec.encode(value)
    twin = codec.decode(data)
    assert same(twin, value)
    assert Codec(CLASSES).encode(twin) == data
    plain = exact_bytes(value)
    assert plain is None or plain == data or b'"$perdure"' in plain


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> str | None:
    """Name the server of the store, or None for a file."""
    return request.getfixturevalue("postgres") if request.param == "postgres" else None


@settings(max_examples=25)
@given(given_=st.lists(values, min_size=1, max_size=3), more=values)
def test_runs_give_back_every_value_now_and_on_a_replay(
    server: str | None, given_: list[Any], more: Any
) -> None:
    """T41, T42: through a database, and in a second App that replays."""
    calls: list[int] = []
    seen: list[Any] = []

    @operation(read_only=True)
    async def echo(value: Any) -> Any:
        calls.append(1)
        return value

    def app_of_a_process(folder: Any, *, ends: bool) -> Any:
        app = app_on(folder, types=CLASSES)

        @app.run(version=1)
        async def work(context: Context, value: Any) -> Any:
            seen.append([await context.call(echo, each) for each in value])
            reached.set()
            if not ends:
                await asyncio.Event().wait()
            return (value, {"more": more})

        return app

    async def main(folder: Any) -> Any:
        async with app_of_a_process(folder, ends=False) as app:
            await app.start("work", given_, run_id="run-1")
            await reached.wait()
        return await finish(app_of_a_process(folder, ends=True))

    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        if server is not None:
            stack.enter_context(kept_on_server(Path(name), server))
        reached = asyncio.Event()
        result = run(main(Path(name)))
    assert same(result, (given_, {"more": more}))
    assert len(seen) == 2
    assert all(same(each, given_) for each in seen)
    assert len(calls) == len(given_)
