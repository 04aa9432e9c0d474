from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

from perdure.errors import InvalidFunction, MissingHandler
from perdure.ids import check_identifier
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.record import Outcome
from perdure.journal.typed_worker import TypedWorker, taken_by

if TYPE_CHECKING:
    from perdure.journal.worker_functions import (
        AnyFunction,
        ApprovalFunction,
        EventFunction,
        McpFunction,
        ModelFunction,
        RetryFunction,
        ToolFunction,
    )

Worker: TypeAlias = Callable[[Invocation], Awaitable[Outcome]]
"""What performs the operations of one kind and handler id."""

W = TypeVar("W", bound="AnyFunction")
Model = TypeVar("Model", bound="ModelFunction")
Tool = TypeVar("Tool", bound="ToolFunction")
Mcp = TypeVar("Mcp", bound="McpFunction")
Event = TypeVar("Event", bound="EventFunction")
Retry = TypeVar("Retry", bound="RetryFunction")
Approval = TypeVar("Approval", bound="ApprovalFunction")


class Handlers:
    """The worker functions that a process can call, by operation kind and handler id.

        handlers = Handlers()

        @handlers.tool_call("support-tools")
        async def support_tools(request: ToolRequest) -> ToolResponse: ...

    What a function is given is told from the annotation of its first parameter: the parsed request
    of the kind, for which it returns the response of the kind, a `Failure` or a `Suspended`; or
    the `Invocation` as it is, for which it returns an outcome. Requests and responses are those of
    `perdure.journal.payloads`; one that is malformed is a failure with the name of its error.
    Whoever calls a worker decides what an exception out of it means.
    """

    def __init__(self) -> None:
        self._workers: dict[tuple[OperationKind, str], Worker] = {}

    def __contains__(self, key: tuple[OperationKind, str]) -> bool:
        return key in self._workers

    def register(self, kind: OperationKind, handler_id: str, worker: AnyFunction) -> None:
        """Add a worker function.

        Raises `InvalidFunction` when there is one for this kind and id, or when what it is to be
        given cannot be told, and `InvalidInvocation` for an id that is not an identifier.
        """
        check_identifier(handler_id, "handler id")
        if (kind, handler_id) in self._workers:
            raise InvalidFunction(
                f"a {kind} handler {handler_id!r} is registered already: give this one another id"
            )
        taken = taken_by(kind, worker)
        self._workers[kind, handler_id] = (
            cast("Worker", worker) if taken is None else TypedWorker(kind, worker, taken)
        )

    def lookup(self, kind: OperationKind, handler_id: str) -> Worker:
        """Return what performs an invocation: the function, or a `TypedWorker` around it.

        Raises `MissingHandler` with what is registered.
        """
        worker = self._workers.get((kind, handler_id))
        if worker is None:
            known = ", ".join(self.ids(kind)) or "none"
            raise MissingHandler(
                f"no {kind} handler {handler_id!r} is registered (registered for {kind}: {known});"
                " register it before the worker starts"
            )
        return worker

    def ids(self, kind: OperationKind) -> list[str]:
        """Return the registered handler ids of a kind, sorted."""
        return sorted(handler_id for known, handler_id in self._workers if known is kind)

    def model_request(self, handler_id: str) -> Callable[[Model], Model]:
        """Register the decorated function for model requests."""
        return self._registrar(OperationKind.MODEL_REQUEST, handler_id)

    def model_stream(self, handler_id: str) -> Callable[[Model], Model]:
        """Register the decorated function for streamed model requests."""
        return self._registrar(OperationKind.MODEL_STREAM, handler_id)

    def tool_call(self, handler_id: str) -> Callable[[Tool], Tool]:
        """Register the decorated function for tool calls."""
        return self._registrar(OperationKind.TOOL_CALL, handler_id)

    def mcp_request(self, handler_id: str) -> Callable[[Mcp], Mcp]:
        """Register the decorated function for MCP requests."""
        return self._registrar(OperationKind.MCP_REQUEST, handler_id)

    def event_delivery(self, handler_id: str) -> Callable[[Event], Event]:
        """Register the decorated function for event deliveries."""
        return self._registrar(OperationKind.EVENT_DELIVERY, handler_id)

    def retry_delay(self, handler_id: str) -> Callable[[Retry], Retry]:
        """Register the decorated function for retry delays."""
        return self._registrar(OperationKind.RETRY_DELAY, handler_id)

    def approval_resume(self, handler_id: str) -> Callable[[Approval], Approval]:
        """Register the decorated function for approval resumptions."""
        return self._registrar(OperationKind.APPROVAL_RESUME, handler_id)

    def _registrar(self, kind: OperationKind, handler_id: str) -> Callable[[W], W]:
        def register(worker: W) -> W:
            self.register(kind, handler_id, worker)
            return worker

        return register
