"""What an instance holds beside its fields comes back, or the value is refused."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections import Counter, OrderedDict
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, PrivateAttr, computed_field
from pydantic import dataclasses as checked

from perdure.codec import Codec
from perdure.errors import InvalidPayload

T = TypeVar("T")


class Slotted:
    __slots__ = ("seen",)


@dataclasses.dataclass(slots=True)
class Inheriting(Slotted):
    x: int


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: int


@dataclasses.dataclass(frozen=True)
class Wider(Point):
    z: int = 3


@dataclasses.dataclass
class Line:
    start: Point


@dataclasses.dataclass
class Made:
    x: int
    twice: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        self.twice = 2 * self.x
        self.seen: Any = [self.x]
        self.lock = threading.Lock()

    @functools.cached_property
    def area(self) -> int:
        return self.x**2


@dataclasses.dataclass
class Box(Generic[T]):
    value: T


class Pair(NamedTuple):
    a: int


class Named(Pair):
    pass


class Open(msgspec.Struct, dict=True):
    a: int


class Money(BaseModel):
    cents: int
    _seen: int = PrivateAttr(1)

    @computed_field
    @functools.cached_property
    def euros(self) -> float:
        return self.cents / 100


@checked.dataclass(config=ConfigDict(extra="allow"))
class Loose:
    a: int


TYPES = [Point, Wider, Line, Inheriting, Made, Box, Pair, Named, Open, Money, Loose]


def having(value: Any, name: str, held: Any) -> Any:
    if isinstance(value, Slotted):
        setattr(value, name, held)
    else:
        vars(value)[name] = held
    return value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (having(Point(1, 2), "seen", 3), "result.seen is no field of Point"),
        ({"at": [Point(1, 2), having(Point(1, 2), "seen", 3)]}, "result.at[1].seen"),
        (Line(having(Wider(1, 2), "seen", 3)), "result.start.seen is no field of Wider"),
        (having(Inheriting(1), "seen", 3), "result.seen"),
        (having(Made(1), "seen", [2]), "result.seen"),
        (having(Made(1), "lock", threading.RLock()), "result.lock"),
        (having(Named(1), "seen", 3), "result.seen"),
        (having(Open(1), "seen", 3), "result.seen"),
        (having(Money(cents=1), "seen", 3), "result.seen"),
        (having(Loose(1), "seen", 3), "result.seen"),
        (having(OrderedDict(a=1), "seen", 3), "result.seen"),
        (having(Counter("ab"), "seen", OSError()), "result.seen"),
    ],
)
def test_an_attribute_that_would_be_lost_is_refused(value: Any, path: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        Codec(TYPES).encode(value)
    assert str(caught.value).startswith(path)


def test_what_a_class_makes_again_by_itself_keeps_nothing_from_being_stored() -> None:
    codec = Codec(TYPES)
    made, money = Made(2), Money(cents=150)
    assert made.area + money.euros == 5.5
    values = [made, money, Box[int](1), Inheriting(1), Wider(1, 2), Line(Wider(1, 2)), Named(1)]
    back = codec.decode(codec.encode(values))
    assert back == values
    assert [type(value) for value in back] == [type(value) for value in values]
    assert (back[0].seen, back[0].twice) == ([2], 4)


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Members(dict[str, int]):
    pass


class Items(list[int]):
    pass


@pytest.mark.parametrize("value", [Text("a"), Whole(1), Members(a=1), Items([1])])
def test_a_subclass_of_what_json_carries_is_refused(value: Any) -> None:
    with pytest.raises(InvalidPayload, match=r"result\[1\] is a .*cannot be stored"):
        Codec().encode([0, value])
