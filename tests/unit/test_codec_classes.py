from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, NewType, TypedDict, TypeVar

import msgspec
import pytest
from pydantic import BaseModel, field_validator

from perdure import (
    App,
    Context,
    EffectAmbiguous,
    OperationIdentity,
    ReceiptStore,
    RunNeedsAttention,
    effect,
    guard,
    guard_sync,
    operation,
)
from perdure.codec import Codec
from perdure.effects.answer import Landed
from perdure.errors import EffectConflict, InvalidOptions, InvalidPayload
from tests.harness import RUN, Pause, app_on, finish, interrupt, once, run
from tests.receipts import CHARGE, KEY, shop
from tests.values import Colour, Level, Point, Rank, same


class Inner(enum.Enum):
    ONE = 1


@dataclasses.dataclass
class Outer:
    inner: dict[str, list[Inner | None]]
    next: Outer | None = None


class Note(msgspec.Struct):
    text: str = ""


class Said(TypedDict):
    note: Note


class Money(BaseModel):
    perdure_name: ClassVar[str] = "money"
    cents: int


T = TypeVar("T", bound=Money)
Alias = NewType("Alias", Note)


class Box(BaseModel, Generic[T]):
    content: T


ANNOTATED: list[tuple[Any, list[Any]]] = [
    (Outer, [Outer({"a": [Inner.ONE, None]}), Inner.ONE]),
    (Money | None, [Money(cents=1)]),
    ("list[tuple[int, Money]]", [Money(cents=1)]),
    (dict[str, Sequence[Money]], [Money(cents=1)]),
    (Callable[[Money], Alias], [Money(cents=1), Note("x")]),
    (Annotated[Said, "what"], [Note("x")]),
    (Literal[Inner.ONE, "two"], [Inner.ONE]),
    (Box[Money], [Box[Money](content=Money(cents=1))]),
    (T, [Money(cents=1)]),
]


@pytest.mark.parametrize(("annotation", "values"), ANNOTATED)
def test_classes_in_annotations_are_known(annotation: Any, values: list[Any]) -> None:
    def taken(value: Any, other: Missing) -> None: ...  # noqa: F821 - as under TYPE_CHECKING

    def returned() -> Any: ...

    taken.__annotations__["value"] = annotation
    returned.__annotations__["return"] = annotation
    for function in (taken, returned):
        told = Codec()
        told.learn(function)
        for value in values:
            data = Codec().encode(value, function=function)
            assert told.encode(value) == data
            assert same(told.decode(data), value)
            with pytest.raises(InvalidPayload, match="would not come back: make the class known"):
                Codec().encode(value)


def test_a_class_has_its_short_name_or_the_one_it_was_given() -> None:
    @dataclasses.dataclass
    class Local:
        perdure_name = "local"

    class Level(enum.Enum):
        perdure_name = enum.nonmember("level")
        HIGH = 1

    class Child(Money):
        """Has no name of its own from the class that it derives from."""

    types = [Local, Level, Money, Child, Outer, ("renamed", Point), ("colour", Colour)]
    codec = Codec(types)
    values = [Local(), Level.HIGH, Money(cents=1), Child(cents=1), Outer({}), Point(1), Colour.RED]
    names = [msgspec.json.decode(codec.encode(value))["type"] for value in values]
    prefix = "test_a_class_has_its_short_name_or_the_one_it_was_given."
    assert names == ["local", "level", "money", f"{prefix}Child", "Outer", "renamed", "colour"]
    assert all(same(codec.decode(codec.encode(value)), value) for value in values)


def test_a_renamed_class_is_read_under_its_old_name_too() -> None:
    old = Codec([("Old", Point)]).encode(Point(1))
    codec = Codec([("Old", Point), Point])
    assert codec.decode(old) == Point(1)
    assert codec.encode(Point(1)) == Codec([Point]).encode(Point(1))


def test_two_classes_with_one_name_are_refused_at_registration(tmp_path: Path) -> None:
    other = dataclasses.make_dataclass("Point", ["z"])
    with pytest.raises(
        InvalidOptions, match=r"are both called 'Point': give one a name of its own"
    ):
        app_on(tmp_path, types=[Point, other])
    with pytest.raises(InvalidOptions, match="are both called 'a'"):
        ReceiptStore("sqlite:///x.db", types=[("a", Point), ("a", other)])
    for nothing in (object, "Point", dict, Callable):
        with pytest.raises(InvalidOptions, match="is no enum, dataclass, named tuple"):
            App("sqlite:///x.db", types=[nothing])  # type: ignore[list-item]
    Codec([Point, Point])


def test_two_classes_of_annotations_with_one_name_are_both_refused() -> None:
    other = dataclasses.make_dataclass("Point", ["z"])
    codec = Codec()

    def first() -> Point: ...

    def second(it: Any) -> None: ...

    second.__annotations__["it"] = other
    data = codec.encode(Point(1), function=first)
    for value in (other(1), Point(1)):
        with pytest.raises(
            InvalidPayload, match=r"Point and types\.Point have one name: give this"
        ):
            codec.encode(value, function=second)
    with pytest.raises(InvalidPayload, match="are both called so: register the one that was"):
        codec.decode(data)
    registered = Codec([Point])
    assert registered.decode(registered.encode(Point(1), function=second)) == Point(1)
    with pytest.raises(InvalidPayload, match="have one name"):
        registered.encode(other(1), function=second)


def test_fields_that_were_added_have_their_defaults_and_none_is_lost() -> None:
    old_kind = dataclasses.make_dataclass("Thing", ["a"])
    default = dataclasses.make_dataclass(
        "Thing", ["a", ("b", list, dataclasses.field(default_factory=list))]
    )
    required = dataclasses.make_dataclass("Thing", ["a", "b"])
    old_model = type("Thing", (BaseModel,), {"__annotations__": {"a": int}})
    new_model = type("Thing", (BaseModel,), {"__annotations__": {"a": int, "b": int}, "b": 7})
    old = Codec([old_kind]).encode(old_kind(1))
    assert Codec([default]).decode(old) == default(1, [])
    again = Codec([new_model]).decode(Codec([old_model]).encode(old_model(a=1)))
    assert (again.b, again.model_fields_set) == (7, {"a"})
    for kind, data, complaint in [
        (required, old, "Thing was stored without the field 'b', which has no default"),
        (old_kind, Codec([default]).encode(default(1)), "Thing has no field 'b' any more"),
        (old_model, Codec([new_model]).encode(new_model(a=1)), "Thing has no field 'b' any more"),
        (msgspec.defstruct("Thing", ["c"]), old, "Unexpected keyword argument 'a'"),
    ]:
        with pytest.raises(InvalidPayload, match=complaint):
            Codec([kind]).decode(data)


def test_models_come_back_without_being_validated_again() -> None:
    class Password(BaseModel):
        hashed: str
        plain: str = ""

        @field_validator("hashed")
        @classmethod
        def hash(cls, value: str) -> str:
            return f"#{value}"

    codec = Codec([Password])
    for value in (Password(hashed="x"), Password.model_construct(hashed=3)):
        again = codec.decode(codec.encode(value))
        assert same(again, value)
        assert again.model_fields_set == {"hashed"}


def test_a_class_that_changes_what_it_holds_is_refused() -> None:
    class Counted(msgspec.Struct):
        times: int

        def __post_init__(self) -> None:
            self.times += 1

    @dataclasses.dataclass
    class Made:
        start: dataclasses.InitVar[int]

        def __post_init__(self, start: int) -> None:
            self.at = start

    class Named(dict[str, int]):
        pass

    codec = Codec([Counted, Made])
    with pytest.raises(InvalidPayload, match=r"result\.a\[0\]\.times does not come back as it is"):
        codec.encode({"a": (Counted(1),)})
    with pytest.raises(InvalidPayload, match="takes InitVars, which are not stored"):
        codec.encode(Made(1))
    with pytest.raises(InvalidPayload, match=r"result is incomplete: .*'x'"):
        Codec([Point]).encode(object.__new__(Point))
    with pytest.raises(InvalidPayload, match=r"Named, which cannot be stored: pass dict\(value\)"):
        codec.encode(Named())


def test_what_was_recorded_as_an_unknown_class_parks_the_run_until_it_is_known(
    tmp_path: Path,
) -> None:
    pause = Pause()

    @operation(read_only=True)
    async def first(value: int) -> Any:
        return {"points": [Point(value)]}

    def process(**options: Any) -> App:
        app = app_on(tmp_path, **options)

        @app.run(version=1)
        async def work(context: Context, value: Any) -> Any:
            try:
                result = await context.call(first, 1)
            except Exception:  # noqa: BLE001 - no code can swallow it
                return "swallowed"
            await pause()
            return (value, result)

        return app

    unknown = r"first: result\.points\[0\] is a Point, and no class of that name is known here"

    async def main() -> Any:
        await interrupt(process(types=[Point, Colour]), pause, "work", Colour.RED)
        with pytest.raises(RunNeedsAttention, match="input is a Colour, and no class"):
            await finish(process())
        async with process(types=[Colour]) as app:
            await app.resume(RUN)
            with pytest.raises(RunNeedsAttention, match=unknown):
                await app.handle(RUN).result()
        async with process(types=[Point, Colour]) as app:
            await app.resume(RUN)
            result = await app.handle(RUN).result()
        async with process().connect() as app:
            with pytest.raises(InvalidPayload, match=r"result\[0\] is a Colour, and no class"):
                await app.handle(RUN).result()
        return result

    assert run(main()) == (Colour.RED, {"points": [Point(1)]})


def test_what_a_lookup_says_is_what_the_function_would_have_returned(tmp_path: Path) -> None:
    answer = [Point({Colour.RED}), (Decimal("1.50"),)]

    @effect(support="outcome_queryable", timeout_seconds=60.0)
    async def charge(cents: int) -> list[Point | tuple[Decimal | Colour]]:
        raise ConnectionResetError

    @charge.lookup
    async def find(operation: OperationIdentity) -> Landed:
        return Landed(answer)

    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> Any:
        return await context.call(charge, 1)

    assert same(run(once(app, work)), answer)


def test_guards_keep_what_they_are_told(tmp_path: Path) -> None:
    said = {"at": (Point(1), Colour.RED)}

    async def send(identity: OperationIdentity) -> dict[str, tuple[Point, Colour]]:
        return said

    async def main() -> list[Any]:
        answers: list[Any] = []
        for _ in range(2):
            async with shop(tmp_path, types=[Rank]) as it:
                answers.append(await guard(it.store, CHARGE, send, arguments=(Point(Rank.FIRST),)))
                with pytest.raises(EffectConflict):
                    await guard(it.store, CHARGE, send, arguments=[Point(Rank.FIRST)])
                with pytest.raises(
                    InvalidPayload, match=r"arguments\[0\] is a .*Level, which would"
                ):
                    await guard(it.store, CHARGE, send, arguments=[Level.HIGH])
        return answers

    first, second = run(main())
    assert same(first, said)
    assert same(second, said)


def test_a_person_may_say_what_a_class_holds(tmp_path: Path) -> None:
    def send(identity: OperationIdentity) -> list[Point]:
        raise ConnectionResetError

    with ReceiptStore(f"sqlite:///{tmp_path / 'runs.db'}", types=[Point]) as store:
        with pytest.raises(EffectAmbiguous):
            guard_sync(store, CHARGE, send)

        async def settle(_: Any) -> None:
            (receipt,) = await store.list()
            said = Landed([Point({1})])
            await store.settle(KEY, said, by="ada", why="seen", expect_version=receipt.version)

        store.background().call(settle)
        assert same(guard_sync(store, CHARGE, send), [Point({1})])
