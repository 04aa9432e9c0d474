"""What a function declares of itself, and what is refused before anything can happen."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NewType, Optional, Union

import pytest

import perdure
from perdure import (
    App,
    Context,
    EffectPolicy,
    OperationIdentity,
    RunFailed,
    SideEffectSupport,
    effect,
    guard,
    operation,
)
from perdure.effects.answer import NeverWill
from perdure.effects.support import OnAmbiguous
from perdure.errors import InvalidFunction
from perdure.receipts import ReceiptStore
from perdure.sync import guard_sync
from tests.harness import app_on, once, run, sql
from tests.paying import IDENTITY
from tests.receipts import CHARGE

if TYPE_CHECKING:
    from fractions import Fraction as Unheard

Alias = OperationIdentity
Named = NewType("Named", OperationIdentity)
HERE = r"test_declarations\.py:\d+"
QUERYABLE = EffectPolicy(support=SideEffectSupport.OUTCOME_QUERYABLE, target="bank")


class Yielding:
    def __call__(self) -> Iterator[int]:
        yield 1


def numbers() -> Iterator[int]:
    yield 1


async def later() -> AsyncIterator[int]:
    yield 1


def returned() -> Iterator[int]:
    return numbers()


async def awaited() -> AsyncIterator[int]:
    return later()


GENERATORS = [numbers, later, functools.partial(numbers), Yielding()]


@pytest.mark.parametrize("function", GENERATORS)
@pytest.mark.parametrize("declare", [effect(name="f"), operation(read_only=True, name="f")])
def test_a_generator_function_is_no_operation(declare: Any, function: Any) -> None:
    with pytest.raises(InvalidFunction, match=f"{HERE}.: it is a generator function"):
        declare(function)


@pytest.mark.parametrize("function", GENERATORS)
def test_a_generator_function_that_nobody_declared_is_not_called(
    tmp_path: Path, function: Any
) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> None:
        await context.call(function)

    with pytest.raises(RunFailed, match="it is a generator function") as failed:
        run(once(app, work))
    assert failed.value.code == "InvalidFunction"
    assert sql(tmp_path, "SELECT * FROM receipts") == []


@pytest.mark.parametrize("function", [returned, awaited])
def test_a_generator_that_a_function_returns_is_no_result(tmp_path: Path, function: Any) -> None:
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> None:
        await context.call(operation(read_only=True, name="f")(function))

    with pytest.raises(RunFailed, match=f"{HERE}.: it returned a generator"):
        run(once(app, work))


def test_guards_send_no_generators(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    with pytest.raises(InvalidFunction, match="it is a generator function"):
        run(guard(ReceiptStore(url), CHARGE, later))  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidFunction, match="it is a generator function"):
        guard_sync(ReceiptStore(url), CHARGE, lambda identity: (yield))
    assert not (tmp_path / "runs.db").exists()


async def plain(operation: OperationIdentity, cents: int = 0) -> Any:
    return operation, cents


async def optional(cents: int = 0, operation: OperationIdentity | None = None) -> Any:
    return operation, cents


async def older(cents: int = 0, operation: Optional[OperationIdentity] = None) -> Any:  # noqa: UP045
    return operation, cents


async def aliased(cents: int = 0, operation: Alias | None = None) -> Any:
    return operation, cents


async def qualified(cents: int = 0, *, operation: perdure.OperationIdentity | None = None) -> Any:
    return operation, cents


async def annotated(cents: int = 0, operation: Annotated[Alias | None, "key"] = None) -> Any:
    return operation, cents


async def renamed(cents: int = 0, operation: Named | None = None) -> Any:
    return operation, cents


async def first(operation: OperationIdentity | None = None, /, cents: int = 0) -> Any:
    return operation, cents


async def placed(cents: int = 0, operation: OperationIdentity | None = None, /) -> Any:
    return operation, cents


async def needing(cents: int, operation: OperationIdentity | None = None, /) -> Any:
    return operation, cents


def _elsewhere(annotation: Any) -> Callable[..., Any]:
    """Return a function whose annotation was written where names mean something else."""

    async def elsewhere(cents: int = 0, operation: Any = None) -> Any:
        return operation, cents

    elsewhere.__annotations__["operation"] = annotation
    return elsewhere


def _for_checkers() -> Callable[..., Any]:
    """Return a function of a module that imports the identity for type checkers only."""
    module: dict[str, Any] = {}
    exec(
        "async def charge(cents=0, operation: 'OperationIdentity | None' = None):\n"
        "    return operation, cents",
        module,
    )
    return module["charge"]


FOUND = [
    plain,
    optional,
    older,
    aliased,
    qualified,
    annotated,
    renamed,
    first,
    placed,
    _elsewhere(OperationIdentity | None),
    _elsewhere(Union[None, "OperationIdentity"]),
    _for_checkers(),
]


@pytest.mark.parametrize("function", FOUND)
def test_an_identity_is_found_however_its_annotation_is_written(
    tmp_path: Path, function: Any
) -> None:
    seen: list[Any] = []
    app = app_on(tmp_path)

    async def noting(*args: Any, **kwargs: Any) -> None:
        seen.append(await function(*args, **kwargs))

    charge = effect(target="bank")(functools.wraps(function)(noting))

    @app.run(version=1)
    async def work(context: Context) -> None:
        await context.call(charge)
        await context.call(charge, 5)

    run(once(app, work))
    assert [each.ordinal for each, _ in seen] == [1, 2]
    assert seen == [(IDENTITY, 0), (OperationIdentity("run-1", "call", "bank", 2), 5)]


def test_a_place_for_the_identity_does_not_hide_that_an_argument_is_missing() -> None:
    charge: Any = effect()(needing)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'cents'"):
        run(charge())


async def starred(*operation: OperationIdentity) -> None: ...
async def double(**operation: OperationIdentity) -> None: ...
async def several(operation: list[OperationIdentity]) -> None: ...
async def mixed(operation: OperationIdentity | str) -> None: ...
async def unheard(operation: Unheard) -> None: ...
async def bare(operation=None) -> None: ...  # pyright: ignore[reportMissingParameterType]
async def other(identity: OperationIdentity | None = None) -> None: ...


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (starred, r"called 'operation', not '\*operation'"),
        (double, r"called 'operation', not '\*\*operation'"),
        (several, "'operation' is to get the identity of the operation cannot be told"),
        (mixed, "write operation: OperationIdentity"),
        (unheard, "write operation: OperationIdentity"),
        (bare, "write operation: OperationIdentity"),
        (other, "called 'operation', not 'identity'"),
    ],
)
def test_an_identity_that_would_silently_stay_away_is_refused(
    function: Any, complaint: str
) -> None:
    with pytest.raises(InvalidFunction, match=f"^{function.__name__} .*{HERE}.*{complaint}"):
        effect()(function)


def test_who_waits_for_an_identity_that_only_an_effect_gets_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidFunction, match=f"^optional .*{HERE}.*@effect.*'operation'"):
        operation(optional)
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> None:
        await context.call(aliased)

    with pytest.raises(RunFailed, match="only @effect"):
        run(once(app, work))


def test_a_target_that_can_be_asked_has_somebody_who_asks_it(tmp_path: Path) -> None:
    @effect(support="outcome-queryable", target="bank")
    async def charge() -> None: ...

    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> None:
        await context.call(charge)

    advice = rf"charge \(.*{HERE}\): .*async def find\(.*@charge\.lookup"
    with pytest.raises(RunFailed, match=advice):
        run(once(app, work))
    with pytest.raises(InvalidFunction, match=advice):
        App(app.url, effects=[charge])
    for apply in (guard_sync, lambda *args, **named: run(guard(*args, **named))):
        with pytest.raises(InvalidFunction, match="lookup=find"):
            apply(ReceiptStore(app.url), CHARGE, lambda identity: None, policy=QUERYABLE)
    assert sql(tmp_path, "SELECT * FROM receipts") == []

    @charge.lookup
    async def find(operation: OperationIdentity) -> NeverWill:
        return NeverWill()

    assert App(app.url, effects=[charge])


@pytest.mark.parametrize("spelled", ["at_least_once", "at-least-once"])
def test_a_policy_may_be_spelled(spelled: str) -> None:
    policy = EffectPolicy(support=spelled, on_ambiguous="tell")  # pyright: ignore[reportArgumentType]
    assert policy.support is SideEffectSupport.AT_LEAST_ONCE
    assert policy.on_ambiguous is OnAmbiguous.TELL


@pytest.mark.parametrize("wrong", ["sometimes", None, []])
def test_a_policy_of_no_known_support_is_refused(wrong: Any) -> None:
    choices = "one of 'idempotent', 'outcome_queryable', 'at_least_once', not"
    with pytest.raises(InvalidFunction, match=choices):
        EffectPolicy(support=wrong)
    with pytest.raises(InvalidFunction, match="one of 'ask', 'retry', 'tell', not"):
        effect(on_ambiguous=wrong)


def test_a_declaration_error_names_the_function_and_its_line() -> None:
    def slow() -> None: ...

    def find(operation: OperationIdentity) -> NeverWill:
        return NeverWill()

    declared = effect()(slow)
    where = r"function_and_its_line\.{} \(.*" + HERE
    with pytest.raises(InvalidFunction, match=where.format("slow")):
        effect(timeout_seconds=1)(slow)
    with pytest.raises(InvalidFunction, match=where.format("slow")):
        operation(declared)
    with pytest.raises(InvalidFunction, match=where.format("find")):
        declared.lookup(find)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidFunction, match=HERE):
        operation(lambda: None)
