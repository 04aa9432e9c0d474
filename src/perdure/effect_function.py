from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

import msgspec

from perdure.context import current
from perdure.declaration import EffectDeclaration, ErrorTypes
from perdure.effects.answer import Lookup
from perdure.effects.identity import OperationIdentity
from perdure.effects.support import EffectPolicy, OnAmbiguous, SideEffectSupport, member_of
from perdure.errors import InvalidFunction, NotInRun
from perdure.functions import (
    Operation,
    check_performable,
    declaration_of,
    declare_as,
    handler_id_of,
    redeclare,
)
from perdure.identity_parameter import PARAMETER, identity_parameter
from perdure.ids import new_run_id
from perdure.retry import RetryPolicy
from perdure.wording import named

P = ParamSpec("P")
R = TypeVar("R")
ResultT_co = TypeVar("ResultT_co", covariant=True)
LookupT = TypeVar("LookupT", bound=Lookup)

_identity: ContextVar[OperationIdentity | None] = ContextVar("perdure_identity", default=None)


class EffectFunction(Protocol[P, ResultT_co]):
    """A function that changes the world, as `effect` returns it: called as before."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ResultT_co:
        """Apply the effect, with the identity of the operation put in."""
        ...

    def lookup(self, lookup: LookupT, /) -> LookupT:
        """Register an `async def find(operation)` that asks what became of an attempt.

        It returns an `Answer`: `Landed(result)` with what the function would have returned,
        `NeverWill()`, `NotYet()` or `Unknown()`, from `perdure.effects.answer`.
        """
        ...


class Decorator(Protocol):
    """What `effect` returns: applied to a function, it makes an `EffectFunction` of it."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[OperationIdentity, P], R], /
    ) -> EffectFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> EffectFunction[P, R]: ...


def effect(
    *,
    support: SideEffectSupport | str = SideEffectSupport.AT_LEAST_ONCE,
    target: str = "",
    on_ambiguous: OnAmbiguous | str = OnAmbiguous.ASK,
    timeout_seconds: float | None = None,
    key_valid_for_seconds: float | None = None,
    settle_seconds: float = 0.0,
    reconcile_attempts: int = 3,
    rejected: type[Exception] | ErrorTypes = (),
    not_sent: type[Exception] | ErrorTypes = (),
    retry: RetryPolicy | None = None,
    name: str | None = None,
    version: int = 1,
) -> Decorator:
    """Declare what a function does to the world, and what can be done when nobody knows.

    For a function that `context.call` performs, or that is a tool of an agent; not for a generator
    function, which does nothing when it is called. A parameter `operation: OperationIdentity`, with
    or without `| None`, gets the identity of the operation, and is hidden from callers and models:
    its `operation_key` is what a target that drops repeats is to be given.

    `support`, `target`, `on_ambiguous`, `timeout_seconds`, `key_valid_for_seconds`,
    `settle_seconds` and `reconcile_attempts` are those of `EffectPolicy`; the target is the
    function's name by default. With `outcome_queryable`, `@function.lookup` registers who asks;
    without one the function is refused when it is first called.
    Exceptions of the types in `rejected` mean that the target refused, and those in `not_sent`
    that nothing left the process, as `EffectRejected` and `EffectNotSent` do. Any other leaves the
    effect ambiguous.

    `retry` says which exceptions are tried again, and when. It applies where a repeat does no
    harm or is wanted: nothing was sent, the support is `idempotent`, or `on_ambiguous` is `retry`.
    `name` and `version` are those of `operation`.

    Raises `InvalidFunction`.
    """
    policy = EffectPolicy(
        support=member_of(SideEffectSupport, "support", support),
        target=target,
        on_ambiguous=member_of(OnAmbiguous, "on_ambiguous", on_ambiguous),
        timeout_seconds=timeout_seconds,
        key_valid_for_seconds=key_valid_for_seconds,
        settle_seconds=settle_seconds,
        reconcile_attempts=reconcile_attempts,
    )
    declaration = EffectDeclaration(
        policy=policy, rejected=_types(rejected), not_sent=_types(not_sent)
    )

    def decorate(function: Callable[..., Any]) -> Any:
        handler_id = handler_id_of(function, name, version)
        check_performable(function, timeout_seconds)
        wrapper = _injecting(function)
        declare_as(wrapper, Operation(handler_id, retry, effect=declaration))
        wrapper.lookup = functools.partial(_add_lookup, wrapper)
        return wrapper

    return cast("Decorator", decorate)


def _add_lookup(function: Callable[..., Any], lookup: LookupT) -> LookupT:
    declared = declaration_of(function)
    assert declared is not None
    assert declared.effect is not None
    if not inspect.iscoroutinefunction(lookup):
        raise InvalidFunction(
            f"{named(lookup)}: the lookup of {declared.handler_id} is to be an async function"
        )
    effect = msgspec.structs.replace(declared.effect, lookup=lookup, function=function)
    redeclare(function, effect)
    return lookup


def _injecting(function: Callable[..., Any]) -> Any:
    """Return the function without its parameter for the identity, which is put in here."""
    parameter = identity_parameter(function)

    def filled(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        identity = _identity_here(function)
        return args if parameter is None else parameter.put(identity, args, kwargs)

    async def apply_async(*args: Any, **kwargs: Any) -> Any:
        return await function(*filled(args, kwargs), **kwargs)

    def apply(*args: Any, **kwargs: Any) -> Any:
        return function(*filled(args, kwargs), **kwargs)

    is_async = inspect.iscoroutinefunction(function)
    wrapper: Any = apply_async if is_async else apply
    if parameter is None:
        return functools.wraps(function)(wrapper)
    wrapper = functools.wraps(function)(_at_home(wrapper, function))
    _hide_identity(wrapper, inspect.signature(function))
    return wrapper


def _at_home(wrapper: Any, function: Callable[..., Any]) -> Any:
    """Return the wrapper as a function of the module that the other one is of.

    Its annotations may be written as texts, and their names mean something there only.
    """
    home = getattr(inspect.unwrap(function), "__globals__", None)
    if home is None:
        return wrapper
    return FunctionType(wrapper.__code__, home, closure=wrapper.__closure__)


def _hide_identity(wrapper: Any, signature: inspect.Signature) -> None:
    # Whoever makes a schema of it must not find the parameter, wherever one looks for it.
    del wrapper.__wrapped__
    kept = [each for name, each in signature.parameters.items() if name != PARAMETER]
    wrapper.__signature__ = signature.replace(parameters=kept)
    annotations = wrapper.__annotations__
    wrapper.__annotations__ = {
        name: value for name, value in annotations.items() if name != PARAMETER
    }


def _identity_here(function: Callable[..., Any]) -> OperationIdentity:
    name = str(getattr(function, "__qualname__", type(function).__qualname__))
    identity = identity_here()
    if identity is not None:
        return identity
    if current() is None:
        # Outside of any run: an effect of its own each time, as for a function without a receipt.
        return OperationIdentity(new_run_id(), name, name)
    raise NotInRun(
        f"{name} has an effect, which the run would not know of: call it through"
        f" context.call({name.rpartition('.')[2]}, …)"
    )


@contextmanager
def identified(identity: OperationIdentity) -> Generator[None]:
    """Give functions that are called outside of a run the identity of the operation they are of."""
    token = _identity.set(identity)
    try:
        yield
    finally:
        _identity.reset(token)


def identity_here() -> OperationIdentity | None:
    """Return the identity of the operation that the running code is part of, or None outside."""
    context = current()
    return _identity.get() if context is None else context.operation


def _types(types: type[Exception] | ErrorTypes) -> ErrorTypes:
    return types if isinstance(types, tuple) else (types,)
