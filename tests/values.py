"""Values of every type that is stored, classes for them, and a comparison that sees types."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import Counter, OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
from pydantic import BaseModel, ConfigDict, PrivateAttr, RootModel


class Colour(enum.Enum):
    RED = "red"
    BLUE = ("blue", 2)


class Level(enum.StrEnum):
    HIGH = "high"


class Rank(enum.IntEnum):
    FIRST = 1


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: Any
    right: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: Any
    y: Any = 0


@dataclasses.dataclass
class Order:
    lines: Any
    total: Any = dataclasses.field(init=False, default=0)
    seen: int = dataclasses.field(default=0, compare=False)

    def __post_init__(self) -> None:
        self.seen += 1
        self.index = [self.lines]


class Packet(msgspec.Struct, frozen=True):
    body: Any
    kind: Any = msgspec.UNSET


class Refund(BaseModel):
    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    amount: Any
    note: Any = None
    _by: Any = PrivateAttr(default="nobody")


class Totals(RootModel[list[Any]]):
    pass


CLASSES: list[Any] = [Colour, Level, Rank, Rights, Pair, Point, Order, Packet, Refund, Totals]
BERLIN = ZoneInfo("Europe/Berlin")


def refund() -> Refund:
    made = Refund(amount=Decimal("1.50"), colour=Colour.RED)
    made._by = {"ada"}
    return made


VALUES: dict[str, Any] = {
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"\x00\xff"),
    "set": {1, "a", None, (2, frozenset({3}))},
    "frozenset": frozenset({b"a"}),
    "tuple": (1, [2, (3,)], ()),
    "decimal": [Decimal("1.50"), Decimal("-0"), Decimal("1E+500"), Decimal("sNaN12")],
    "naive": datetime(2026, 1, 2, 3, 4, 5, 6),
    "utc": datetime(2026, 1, 2, tzinfo=UTC),
    "zone": datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN),
    "fold": datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
    "offset": [
        datetime(1, 1, 1, tzinfo=timezone(offset))
        for offset in (timedelta(hours=-5, seconds=7), timedelta(microseconds=1))
    ],
    "named": datetime(2026, 1, 2, fold=1, tzinfo=timezone(timedelta(hours=1), "CET")),
    "date": date(1, 2, 3),
    "time": [time(1, 2, 3, 4), time(1, 2, fold=1, tzinfo=UTC), time(1, tzinfo=BERLIN)],
    "timedelta": timedelta(days=-1, microseconds=1),
    "uuid": UUID(int=7),
    "enum": [Colour.RED, Colour.BLUE, Level.HIGH, Rank.FIRST, Rights.READ | Rights.WRITE],
    "floats": [math.nan, math.inf, -math.inf, -0.0, 1e300, 5e-324],
    "ints": [2**64, -(2**64), 10**5000, -(10**5000), True, 1, 1.0],
    "text": ["\ud800", "\udc00\ud800", "\ud83d\ude00", "\\ud800", "\x00", "\u2028é\U0001f600"],
    "keys": {1: "int", "1": "str", (1, 2): "tuple", None: 0, b"x": 0, "\ud800": 0, 10**5000: 0},
    "ordered": OrderedDict([("b", 1), ("a", {2})]),
    "counter": Counter({"a": 2, (1,): 1}),
    "paths": [Path("/a/b"), PurePosixPath("c"), PureWindowsPath("C:\\d"), Path("caf\udce9")],
    "marks": [{"$perdure": "tuple", "items": []}, {"a": {"$perdure": {"$perdure": 1}}}, "$perdure"],
    "named tuple": Pair(Pair(1), (2,)),
    "dataclass": Order([Point(Decimal(1)), Point({Point(1): {1}})]),
    "struct": [Packet(b"x"), Packet({Packet(1): Colour.RED}, kind=None)],
    "model": {"refunds": [refund(), Refund(amount=1, note=Totals([refund()]))]},
}


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal, and every part of them of the same type."""
    if type(one) is not type(other):
        return False
    parts = _parts(one)
    if parts is None:
        return repr(one) == repr(other) if isinstance(one, float | Decimal) else bool(one == other)
    others = _parts(other)
    if isinstance(one, dict) and not isinstance(one, OrderedDict):
        return _same_unordered(list(one.items()), list(other.items()))
    if isinstance(one, set | frozenset):
        return _same_unordered(list(one), list(other))
    assert others is not None
    return len(parts) == len(others) and all(map(same, parts, others))


def _parts(value: Any) -> list[Any] | None:
    if isinstance(value, enum.Enum):
        return None
    if isinstance(value, datetime | time):
        zone = value.tzinfo
        return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, type(zone), str(zone)]
    if isinstance(value, OrderedDict):
        return list(value.items())
    if isinstance(value, list | tuple | set | frozenset | dict):
        return list(value)
    if isinstance(value, BaseModel):
        return [*value.__getstate__().values()]
    if isinstance(value, msgspec.Struct):
        return list(msgspec.structs.astuple(value))
    if dataclasses.is_dataclass(value):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return [*fields, getattr(value, "index", None)]
    return None


def _same_unordered(some: list[Any], others: list[Any]) -> bool:
    left = list(others)
    for one in some:
        found = [index for index, other in enumerate(left) if same(one, other)]
        if not found:
            return False
        del left[found[0]]
    return not left
