from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias, cast

import msgspec

from perdure.adapters.mcp.events import deliver_events
from perdure.adapters.mcp.identity import DurableRequest, DurableRequestSequence
from perdure.canonical import decode, encode
from perdure.codec import Codec
from perdure.errors import (
    DurableMcpEventsRequireRouting,
    InvalidInvocation,
    InvalidMcpRequest,
    InvalidMcpResponse,
    InvalidPayload,
    MissingHandler,
    MissingMcpClientCapability,
)
from perdure.journal.binding import Binding
from perdure.journal.invocation import OperationKind
from perdure.journal.payloads import (
    Header,
    McpMetadata,
    McpRequest,
    McpResponse,
    encode_mcp_request,
)

EventSink: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
"""Gets the events of a direct request, one after another, each a JSON-RPC notification."""

_TASKS: Final = "io.modelcontextprotocol/tasks"


class Direct(Protocol):
    """Sends requests at once, as an `McpWorker` does."""

    async def send(self, request: McpRequest) -> McpResponse:
        """Send a request and return the response."""
        ...


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in every request of a client, and so in the journal.

    `name` and `version` are who asks; `capabilities` what the client can do, as the protocol spells
    it. `max_round_trips` bounds how often the server may ask back within one request. No header may
    authenticate: the worker adds those. `routing_name` is for workers that serve several servers.
    """

    name: str = "perdure"
    version: str = "1"
    capabilities: Mapping[str, Any] = {}
    max_round_trips: int = 16
    routing_name: str | None = None
    headers: tuple[Header, ...] = ()
    metadata: McpMetadata = McpMetadata()


class Routing:
    """Asks for MCP requests: as operations of a run, or directly.

    A request is durable if it has an identity, its own or the next one of the sequence. Any other
    goes straight to `direct`.
    """

    def __init__(
        self,
        binding: Binding | None,
        sequence: DurableRequestSequence | None,
        direct: Direct | None,
        options: ClientOptions,
    ) -> None:
        self._binding = binding
        self._sequence = sequence
        self._direct = direct
        self._options = options

    async def ask(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        at: DurableRequest | None = None,
        deliver: bool = False,
        on_event: EventSink | None = None,
    ) -> Any:
        """Return the result of a request, as JSON; its events have been delivered then."""
        durable = at is not None or self._sequence is not None
        self._check_sinks(durable=durable, deliver=deliver, on_event=on_event)
        binding = self._bound(durable=durable, deliver=deliver)
        if binding is None:
            return await self._ask_directly(self._request(method, params), on_event)
        identity = at or self._claim()
        request = self._request(method, params, deliver=deliver)
        response = await binding.mcp_request(identity.step_id, identity.sequence, request)
        events = response.events_json
        if events and not deliver:
            raise InvalidMcpResponse(
                f"the response to {method} has {len(events)} events that nobody asked for: the"
                " worker is to collect them only where the request says deliver_events"
            )
        await deliver_events(binding, identity.sequence, events)
        return _result_of(response)

    def _check_sinks(self, *, durable: bool, deliver: bool, on_event: EventSink | None) -> None:
        if durable and on_event is not None:
            raise DurableMcpEventsRequireRouting(
                "on_event is for direct requests: a durable one has its events delivered by the"
                " event_delivery handler of the binding, with deliver_events=True"
            )
        if deliver and not durable:
            raise DurableMcpEventsRequireRouting(
                "events are delivered as operations for durable requests only: give the request an"
                " identity, or take its events with on_event"
            )

    def _bound(self, *, durable: bool, deliver: bool) -> Binding | None:
        if not durable:
            if self._direct is None:
                raise InvalidInvocation(
                    "the request has no identity: give it one (at=DurableRequest(sequence=…)), or"
                    " give the client a DurableRequestSequence, or a worker to ask directly"
                )
            return None
        binding = self._binding
        if binding is None:
            raise InvalidInvocation(
                "a durable request needs the Binding of its run: McpClient(binding, …)"
            )
        if deliver and OperationKind.EVENT_DELIVERY not in binding.handler_ids:
            raise MissingHandler(
                f"run {binding.run_id} has no handler id for event_delivery, which the events of"
                " this request need: add it to the binding's handler_ids; nothing was asked"
            )
        return binding

    def _claim(self) -> DurableRequest:
        assert self._sequence is not None
        return self._sequence.claim()

    def _request(
        self, method: str, params: Mapping[str, Any], *, deliver: bool = False
    ) -> McpRequest:
        options = self._options
        if _is_of_tasks(method, params) and not _has_tasks(options.capabilities):
            raise MissingMcpClientCapability(
                f"{method} is about tasks, and the client does not say that it knows them: add"
                f' "tasks": {{}} to its capabilities, or the extension {_TASKS}'
            )
        return McpRequest(
            method=method,
            params_json=_written(dict(params), f"the params of {method}"),
            routing_name=options.routing_name,
            headers=options.headers,
            metadata=options.metadata,
            client_name=options.name,
            client_version=options.version,
            capabilities_json=_written(dict(options.capabilities), "the client's capabilities"),
            max_round_trips=options.max_round_trips,
            deliver_events=deliver,
        )

    async def _ask_directly(self, request: McpRequest, on_event: EventSink | None) -> Any:
        assert self._direct is not None
        if on_event is not None:
            request = msgspec.structs.replace(request, deliver_events=True)
        encode_mcp_request(request)  # refuses what a durable request would be refused for
        response = await self._direct.send(request)
        if on_event is not None:
            for event in response.events_json:
                await on_event(decode(event.encode(), what="the event"))
        return _result_of(response)


def _result_of(response: McpResponse) -> Any:
    try:
        return decode(response.result_json.encode(), what="the result of the MCP request")
    except InvalidPayload as error:
        raise InvalidMcpResponse(str(error)) from error


def _written(value: dict[str, Any], what: str) -> str:
    try:
        encode(value, what=what)
        Codec().encode(value, what=what)  # refuses what is secret
    except InvalidPayload as error:
        raise InvalidMcpRequest(str(error)) from error
    # In the order of the members, as other writers of this document do.
    return msgspec.json.encode(value).decode()


def _is_of_tasks(method: str, params: Mapping[str, Any]) -> bool:
    wanted = params.get("notifications")
    filtered = isinstance(wanted, dict) and "taskIds" in cast("dict[str, Any]", wanted)
    return method.startswith("tasks/") or "task" in params or filtered


def _has_tasks(capabilities: Mapping[str, Any]) -> bool:
    return "tasks" in capabilities or _TASKS in (capabilities.get("extensions") or {})
