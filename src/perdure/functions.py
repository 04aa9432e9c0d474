from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

import msgspec

from perdure.errors import InvalidFunction, InvalidInvocation
from perdure.ids import check_identifier
from perdure.retry import RetryPolicy

P = ParamSpec("P")
T = TypeVar("T")

_DECLARATION: Final = "__perdure_operation__"


class Operation(msgspec.Struct, frozen=True):
    """How a function is performed: its handler id in the journal, its retries, its time limit."""

    handler_id: str
    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None


@overload
def operation(function: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def operation(
    *,
    name: str | None = None,
    version: int = 1,
    retry: RetryPolicy | None = None,
    timeout_seconds: float | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def operation(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: int = 1,
    retry: RetryPolicy | None = None,
    timeout_seconds: float | None = None,
) -> Callable[..., Any]:
    """Declare how `context.call` performs a function.

    `name` is the handler id that the journal keeps (default: the function's qualified name);
    keep it when the function is renamed or moved. Raise `version` when the function means
    something else: a run that recorded the old version then asks for attention instead of taking
    the old answer for the new question. `retry` says which failures are tried again, and when.
    `timeout_seconds` ends an attempt of an async function as a recorded failure with the code
    `TimeoutError`, so that a replay takes the same turn; a timeout around `context.call` is not
    recorded. Raises `InvalidFunction`.
    """

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        handler_id = _handler_id(function, name, version)
        if timeout_seconds is not None and not inspect.iscoroutinefunction(function):
            raise InvalidFunction(
                f"{handler_id} runs in a thread, which cannot be stopped: timeout_seconds needs an"
                " async function"
            )
        setattr(function, _DECLARATION, Operation(handler_id, retry, timeout_seconds))
        return function

    return declare if function is None else declare(function)


async def invoke(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    threads: Executor | None,
) -> Any:
    """Call a function, in one of `threads` when it is not async, and return its result."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
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
        thread.exception()
        raise
    return await result if inspect.isawaitable(result) else result


def _in_thread(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        # No future takes it, and whoever waits for one would wait for ever.
        raise RuntimeError("the function raised StopIteration") from error


def declared_of(function: Callable[..., Any]) -> Operation:
    """Return how a function is performed; raises `InvalidFunction`."""
    bare = _without_arguments(function)
    declared = getattr(bare, _DECLARATION, None)
    if isinstance(declared, Operation):
        return declared
    if not callable(bare):
        raise InvalidFunction(
            f"a run calls functions, and {bare!r} is none: pass the function and its arguments,"
            " as in context.call(charge, order), not what charge(order) returns"
        )
    try:
        return _undeclared(bare)
    except TypeError:  # it has no hash
        return Operation(_handler_id(bare, None, 1))


@functools.lru_cache(maxsize=1024)
def _undeclared(function: Callable[..., Any]) -> Operation:
    return Operation(_handler_id(function, None, 1))


def _handler_id(function: Callable[..., Any], name: str | None, version: int) -> str:
    if name is None:
        bare = _without_arguments(function)
        name = str(getattr(bare, "__qualname__", type(bare).__qualname__))
        name = name.replace(".<locals>", "")
        if "<lambda>" in name:
            raise InvalidFunction(
                "a lambda has no name that a later execution would find; give the operation one:"
                " operation(name='…')(function)"
            )
    try:
        return check_identifier(name if version == 1 else f"{name}.v{version}", "handler id")
    except InvalidInvocation as error:
        raise InvalidFunction(f"{error}; give it one: operation(name='…')(function)") from error


def _without_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = cast("Callable[..., Any]", function.func)
    return function
