from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from mcp_types import (
    CallToolResult,
    CompleteResult,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedResult,
    Prompt,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    Tool,
)
from pydantic import BaseModel, ValidationError

from perdure.adapters.mcp.identity import DurableRequest, DurableRequestSequence
from perdure.adapters.mcp.notifications import Notifications
from perdure.adapters.mcp.routing import ClientOptions, Direct, EventSink, Routing
from perdure.errors import InvalidMcpResponse
from perdure.journal.binding import Binding

ResultT = TypeVar("ResultT", bound=BaseModel)
PageT = TypeVar("PageT", bound=PaginatedResult)

_MOST_PAGES: Final = 1000


class McpClient:
    """Asks an MCP server from within a run, each request an operation of that run.

    A request with `at` has that identity, any other the next one of `sequence`. Without either it
    goes straight to `direct`, and nothing of it is recorded. A result is of the `mcp_types` class
    of its method.

    What every request of it may raise, besides what `Binding.execute` does: `InvalidMcpRequest` or
    `SensitiveMcpHeader` before anything is asked, and `InvalidMcpResponse` for what no server may
    answer. A request that fails has used up its number.
    """

    def __init__(
        self,
        binding: Binding | None = None,
        sequence: DurableRequestSequence | None = None,
        *,
        direct: Direct | None = None,
        options: ClientOptions | None = None,
    ) -> None:
        self._routing = Routing(binding, sequence, direct, options or ClientOptions())

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        at: DurableRequest | None = None,
        deliver_events: bool = False,
        on_event: EventSink | None = None,
    ) -> Any:
        """Make any request and return its result as JSON.

        With `deliver_events` the notifications that the server sends meanwhile are delivered before
        this returns, in their order and each as an operation of its own. `on_event` gets those of a
        direct request instead.

        Durable when it returns: the response, and the delivery of each event.
        If it raises: `DurableMcpEventsRequireRouting` or `MissingHandler` before a number is taken,
        or as every request.
        """
        return await self._routing.ask(
            method, params or {}, at=at, deliver=deliver_events, on_event=on_event
        )

    async def ask(
        self,
        kind: type[ResultT],
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        at: DurableRequest | None = None,
        deliver_events: bool = False,
        on_event: EventSink | None = None,
    ) -> ResultT:
        """Make any request, as `request` does, and return its result as an instance of `kind`."""
        result = await self.request(
            method, params, at=at, deliver_events=deliver_events, on_event=on_event
        )
        try:
            return kind.model_validate(result, by_name=False)
        except ValidationError as error:
            raise InvalidMcpResponse(
                f"the server answered {method} with what is no {kind.__name__}:"
                f" {error.error_count()} faults, the first at {error.errors()[0]['loc']}"
            ) from error

    # --- collections ---------------------------------------------------------------------------

    async def list_tools(self) -> list[Tool]:
        """Return the tools of all pages; each page is a request of its own."""
        pages = await self._pages(ListToolsResult, "tools/list")
        return [tool for page in pages for tool in page.tools]

    async def list_resources(self) -> list[Resource]:
        """Return the resources of all pages; each page is a request of its own."""
        pages = await self._pages(ListResourcesResult, "resources/list")
        return [resource for page in pages for resource in page.resources]

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """Return the resource templates of all pages; each page is a request of its own."""
        pages = await self._pages(ListResourceTemplatesResult, "resources/templates/list")
        return [template for page in pages for template in page.resource_templates]

    async def list_prompts(self) -> list[Prompt]:
        """Return the prompts of all pages; each page is a request of its own."""
        pages = await self._pages(ListPromptsResult, "prompts/list")
        return [prompt for page in pages for prompt in page.prompts]

    async def page(
        self,
        kind: type[PageT],
        method: str,
        cursor: str | None = None,
        *,
        at: DurableRequest | None = None,
    ) -> PageT:
        """Return one page of a collection, the first where there is no cursor."""
        return await self.ask(kind, method, {} if cursor is None else {"cursor": cursor}, at=at)

    async def _pages(self, kind: type[PageT], method: str) -> list[PageT]:
        pages = [await self.page(kind, method)]
        while (cursor := pages[-1].next_cursor) is not None:
            if len(pages) == _MOST_PAGES:
                raise InvalidMcpResponse(
                    f"{method} goes on after {_MOST_PAGES} pages: read it page by page, and stop"
                )
            pages.append(await self.page(kind, method, cursor))
        return pages

    # --- single requests -----------------------------------------------------------------------

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        at: DurableRequest | None = None,
        deliver_events: bool = False,
        on_event: EventSink | None = None,
    ) -> CallToolResult:
        """Call a tool; what the tool itself says of its failure is a result with `is_error`.

        Durable when it returns: the result, and with it the receipt of an effect.
        If it raises: what leaves its effect ambiguous parks the run, or as every request.
        """
        return await self.ask(
            CallToolResult,
            "tools/call",
            {"name": name, "arguments": dict(arguments or {})},
            at=at,
            deliver_events=deliver_events,
            on_event=on_event,
        )

    async def read_resource(
        self, uri: str, *, at: DurableRequest | None = None
    ) -> ReadResourceResult:
        """Read a resource."""
        return await self.ask(ReadResourceResult, "resources/read", {"uri": uri}, at=at)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        at: DurableRequest | None = None,
    ) -> GetPromptResult:
        """Fill in a prompt."""
        params = {"name": name, "arguments": dict(arguments or {})}
        return await self.ask(GetPromptResult, "prompts/get", params, at=at)

    async def complete(
        self,
        ref: Mapping[str, str],
        argument: Mapping[str, str],
        *,
        at: DurableRequest | None = None,
    ) -> CompleteResult:
        """Complete an argument of a prompt or of a resource template, both as the wire has them."""
        params = {"ref": dict(ref), "argument": dict(argument)}
        return await self.ask(CompleteResult, "completion/complete", params, at=at)

    async def listen_durable(
        self, notifications: Notifications, *, at: DurableRequest | None = None
    ) -> None:
        """Listen to a server for as long as its worker does.

        Each notification is delivered as an operation of its own before this returns; nothing is
        told of what changes between two of these.

        Durable when it returns: the delivery of each event.
        If it raises: as `request`.
        """
        params = {"notifications": notifications.filter()}
        await self.request("subscriptions/listen", params, at=at, deliver_events=True)
