from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from perdure.annotations import evaluated, meant, names_around, written
from perdure.errors import InvalidDocument, InvalidFunction, UnsupportedDocument
from perdure.journal.failures import failure_of
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.record import Failure, Outcome, Success, Suspended
from perdure.wording import named

if TYPE_CHECKING:
    from perdure.journal.exchange import Exchange

REFUSALS: Final = (InvalidDocument, UnsupportedDocument)
"""What a document is refused with."""


class TypedWorker:
    """A worker function that takes what an input says and returns what the output is to say.

    Called as any worker, it returns the failure of a document that is refused. Whoever has to know
    what became of an effect reads, calls and writes one after the other: before `call` nothing was
    done.
    """

    def __init__(
        self, kind: OperationKind, function: Callable[[Any], Awaitable[Any]], takes: frozenset[type]
    ) -> None:
        self.function = function
        self._kind = kind
        self._takes = takes

    async def __call__(self, invocation: Invocation) -> Outcome:
        """Return the outcome of an invocation."""
        try:
            exchange, request = self.read(invocation)
        except REFUSALS as refusal:
            return failure_of(refusal)
        answer = await self.function(request)
        try:
            return self.write(exchange, answer)
        except REFUSALS as refusal:
            return failure_of(refusal)

    def read(self, invocation: Invocation) -> tuple[Exchange, Any]:
        """Return the request of an invocation, and the exchange that it opens.

        Raises one of `REFUSALS`, also for a request of a type that the function does not take.
        """
        from perdure.journal.exchange import exchange_in

        exchange = exchange_in(self._kind, invocation.input_json)
        if exchange.request not in self._takes:
            taken = ", ".join(sorted(each.__name__ for each in self._takes))
            raise exchange.invalid_request(
                f"the input is a {exchange.request.__name__}, and the handler"
                f" {invocation.handler_id!r} takes a {taken}"
            )
        return exchange, exchange.read_request(invocation.input_json)

    def write(self, exchange: Exchange, answer: object) -> Outcome:
        """Return the outcome that an answer is; raise one of `REFUSALS`."""
        if isinstance(answer, Success | Failure | Suspended):
            return answer
        return Success(exchange.response_of(answer))


def taken_by(kind: OperationKind, function: Callable[..., Any]) -> frozenset[type] | None:
    """Return the types of requests that a function takes, or None for one that takes invocations.

    Its first parameter says so, and `InvalidFunction` is raised where it does not.
    """
    parameters = [*inspect.signature(function).parameters.values()]
    annotation = parameters[0].annotation if parameters else inspect.Parameter.empty
    if _resolved(function, annotation, {}) is Invocation:
        return None
    # Documents cost more at start-up than programs without them should pay.
    from perdure.journal.exchange import EXCHANGES

    known = {exchange.request.__name__: exchange.request for exchange in EXCHANGES[kind]}
    taken = frozenset(_members(_resolved(function, annotation, known)))
    if not taken or not taken <= frozenset(known.values()):
        raise InvalidFunction(
            f"{named(function)}: what a handler for {kind} is given is told from the annotation of"
            f" its first parameter, which is to be {' or '.join(known)}, or Invocation"
        )
    return taken


def _resolved(function: Callable[..., Any], annotation: Any, known: dict[str, Any]) -> Any:
    """Return what an annotation stands for where its function is written; None if nobody can say.

    A type may be named although the module imports it for type checkers only.
    """
    names = {Invocation.__name__: Invocation, **known, **names_around(written(function))}
    try:
        return meant(evaluated(annotation, names))
    except Exception:  # noqa: BLE001 - it is the program of a user that is evaluated here
        return None


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the only one."""
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        return typing.get_args(annotation)
    return () if annotation is None else (annotation,)
