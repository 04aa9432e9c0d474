from __future__ import annotations

from collections.abc import Iterable

from perdure.errors import InvalidOptions, MissingHandler
from perdure.ids import check_identifier
from perdure.journal.binding import Binding
from perdure.journal.invocation import Invocation, OperationKind
from perdure.preflight import Preflight

Registration = tuple[OperationKind, str]


class Registrations:
    """The kinds and handler ids that the workers of a task queue have functions for.

    Raises `InvalidOptions` where there are none or one of them twice, and `InvalidInvocation` for a
    handler id that is none.
    """

    def __init__(self, registrations: Iterable[Registration]) -> None:
        given = list(registrations)
        self._known = frozenset(given)
        if not given or len(self._known) < len(given):
            raise InvalidOptions(
                "registrations name each kind and handler id once, and at least one of them:"
                f" {_named(given) or 'there are none'}"
            )
        for _, handler_id in given:
            check_identifier(handler_id, "handler id")

    def check(self, invocation: Invocation, task_queue: str) -> None:
        """Raise `MissingHandler` for what none of the workers of a queue is known to perform."""
        if (invocation.kind, invocation.handler_id) not in self._known:
            raise MissingHandler(
                f"no worker of the task queue {task_queue!r} is known to have a {invocation.kind}"
                f" handler {invocation.handler_id!r} (known: {_named(sorted(self._known))}): add it"
                " to the runtime's registrations"
            )

    def preflight(self, binding: Binding) -> Preflight:
        """Return what checks that all is registered that a run will need."""
        return Preflight(binding, self._known, mending=_add)


def _named(registrations: Iterable[Registration]) -> str:
    return ", ".join(f"{kind} {name!r}" for kind, name in registrations)


def _add(kind: OperationKind, handler_id: str) -> str:
    return f"add {kind} {handler_id!r} to the runtime's registrations, and a worker that has it"
