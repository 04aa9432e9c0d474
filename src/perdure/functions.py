from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextvars import copy_context
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

import msgspec

from perdure.declaration import EffectDeclaration
from perdure.effects.effect import NO_LOOKUP
from perdure.effects.support import EffectPolicy, SideEffectSupport
from perdure.errors import InvalidFunction, InvalidInvocation
from perdure.identity_parameter import check_takes_none
from perdure.ids import check_identifier
from perdure.retry import RetryPolicy
from perdure.wording import named

P = ParamSpec("P")
T = TypeVar("T")

_DECLARATION: Final = "__perdure_operation__"


class Operation(msgspec.Struct, frozen=True):
    """How a function is performed: its handler id in the journal, its retries, its effect.

    `effect` is None for a function that changes nothing; `timeout_seconds` is for such a one, and
    that of an effect stands in its policy.
    """

    handler_id: str
    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None
    effect: EffectDeclaration | None = EffectDeclaration()


@overload
def operation(function: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def operation(
    *,
    name: str | None = None,
    version: int = 1,
    read_only: bool = False,
    retry: RetryPolicy | None = None,
    timeout_seconds: float | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def operation(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: int = 1,
    read_only: bool = False,
    retry: RetryPolicy | None = None,
    timeout_seconds: float | None = None,
) -> Callable[..., Any]:
    """Declare how `context.call` performs a function.

    `read_only` says that it changes nothing by itself: it may run again, and its exceptions are
    failures. Any other function is taken to have an effect at a target that can neither drop a
    repeat nor be asked; `effect` says more about one.

    `name` is the handler id that the journal keeps (default: the function's qualified name);
    keep it when the function is renamed or moved. Raise `version` when the function means
    something else: a run that recorded the old version then asks for attention instead of taking
    the old answer for the new question. `retry` says which failures are tried again, and when,
    wherever that can do no harm: see `effect`. `timeout_seconds` ends an attempt of an async
    function: as a recorded failure with the code `TimeoutError`, so that a replay takes the same
    turn, or as an effect that is ambiguous. A timeout around `context.call` is not recorded.
    Raises `InvalidFunction`.
    """

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        handler_id = handler_id_of(function, name, version)
        check_performable(function, timeout_seconds)
        check_takes_none(function)
        if read_only:
            declared = Operation(handler_id, retry, timeout_seconds, effect=None)
        else:
            policy = EffectPolicy(timeout_seconds=timeout_seconds)
            declared = Operation(handler_id, retry, effect=EffectDeclaration(policy=policy))
        declare_as(function, declared)
        return function

    return declare if function is None else declare(function)


def check_performable(function: Callable[..., Any], timeout_seconds: float | None = None) -> None:
    """Raise `InvalidFunction` for what no call performs, and a limit on what cannot be stopped."""
    called = function if hasattr(function, "__code__") else type(function).__call__
    if any(map(_is_generator, (function, called))):
        raise InvalidFunction(
            f"{named(function)}: it is a generator function, whose body has not run when a call of"
            " it returns; return a list instead of yielding"
        )
    if timeout_seconds is not None and not inspect.iscoroutinefunction(function):
        raise InvalidFunction(
            f"{named(function)}: it runs in a thread, which cannot be stopped: timeout_seconds"
            " needs an async function"
        )


def _is_generator(function: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def declare_as(function: Callable[..., Any], operation: Operation) -> None:
    """Fix how a function is performed; raises `InvalidFunction` when that was done before."""
    if hasattr(function, _DECLARATION):
        raise InvalidFunction(
            f"{named(function)}: it is declared twice; give everything to one decorator, effect or"
            " operation"
        )
    setattr(function, _DECLARATION, operation)


def redeclare(function: Callable[..., Any], effect: EffectDeclaration) -> None:
    """Complete what a function declares of its effect."""
    declared = declaration_of(function)
    assert declared is not None
    setattr(function, _DECLARATION, msgspec.structs.replace(declared, effect=effect))


class EndedMeanwhile(asyncio.CancelledError):
    """A cancellation that waited for a thread, and what the thread came to."""

    def __init__(self, result: Any) -> None:
        self.result = result
        super().__init__()


async def invoke(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    threads: Executor | None,
) -> Any:
    """Call a function, in one of `threads` when it is not async, and return its result.

    Raises `EndedMeanwhile` for a thread that came to a result after the caller was cancelled.
    """
    if inspect.iscoroutinefunction(function):
        return _run(function, await function(*args, **kwargs))
    here = copy_context()
    thread = asyncio.get_running_loop().run_in_executor(
        threads, lambda: here.run(_in_thread, function, args, kwargs)
    )
    try:
        result = await asyncio.shield(thread)
    except asyncio.CancelledError:
        # A thread cannot be stopped. To leave before it ends, however often one is told to, would
        # let another worker begin the operation while this one still acts.
        while not thread.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([thread])
        if thread.exception() is None and not inspect.isawaitable(thread.result()):
            raise EndedMeanwhile(thread.result()) from None
        raise
    return await result if inspect.isawaitable(result) else result


def _in_thread(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    try:
        return _run(function, function(*args, **kwargs))
    except StopIteration as error:
        # No future takes it, and whoever waits for one would wait for ever.
        raise RuntimeError("the function raised StopIteration") from error


def _run(function: Callable[..., Any], result: Any) -> Any:
    """Return what a function came to, unless most of it is still to be run."""
    if isinstance(result, GeneratorType | AsyncGeneratorType):
        raise InvalidFunction(
            f"{named(function)}: it returned a generator, whose body has not run; return a list"
        )
    return result


def declaration_of(function: Callable[..., Any]) -> Operation | None:
    """Return what a function declares of itself, or None when it declares nothing."""
    declared = getattr(_without_arguments(function), _DECLARATION, None)
    return declared if isinstance(declared, Operation) else None


def declared_of(function: Callable[..., Any]) -> Operation:
    """Return how a function is performed; raises `InvalidFunction`."""
    declared = declaration_of(function)
    if declared is not None:
        check_lookup(function, declared)
        return declared
    bare = _without_arguments(function)
    if not callable(bare):
        raise InvalidFunction(
            f"a run calls functions, and {bare!r} is none: pass the function and its arguments,"
            " as in context.call(charge, order), not what charge(order) returns"
        )
    try:
        return _undeclared(bare)
    except TypeError:  # it has no hash
        return _undeclared.__wrapped__(bare)


def effect_of(function: Callable[..., Any]) -> tuple[str, EffectDeclaration]:
    """Return the handler id and the effect of a function; raises `InvalidFunction` without one."""
    declared = declared_of(function)
    if declared.effect is None:
        raise InvalidFunction(f"{declared.handler_id} is read_only: it has no effect to ask about")
    return declared.handler_id, declared.effect


@functools.lru_cache(maxsize=1024)
def _undeclared(function: Callable[..., Any]) -> Operation:
    check_performable(function)
    check_takes_none(function)
    return Operation(handler_id_of(function, None, 1))


def check_lookup(function: Callable[..., Any], declared: Operation) -> None:
    """Raise `InvalidFunction` where a target is to be asked and no lookup says how."""
    effect = declared.effect
    if effect is None or effect.lookup is not None:
        return
    if effect.policy.support is SideEffectSupport.OUTCOME_QUERYABLE:
        name = getattr(_without_arguments(function), "__name__", "function")
        raise InvalidFunction(f"{named(function)}: {NO_LOOKUP} put @{name}.lookup on it")


def handler_id_of(function: Callable[..., Any], name: str | None, version: int) -> str:
    """Return what the journal calls a function; raises `InvalidFunction`."""
    if name is None:
        bare = _without_arguments(function)
        name = str(getattr(bare, "__qualname__", type(bare).__qualname__))
        name = name.replace(".<locals>", "")
        if "<lambda>" in name:
            raise InvalidFunction(
                f"{named(bare)}: a lambda has no name that a later execution would find; give the"
                " operation one: operation(name='…')(function)"
            )
    try:
        return check_identifier(name if version == 1 else f"{name}.v{version}", "handler id")
    except InvalidInvocation as error:
        raise InvalidFunction(
            f"{named(function)}: {error}; give it one: operation(name='…')(function)"
        ) from error


def fits(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a function can be called with arguments at all."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # nobody knows: it has no signature
        pass
    return True


def _without_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = cast("Callable[..., Any]", function.func)
    return function
