from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, cast

import anyio
import mcp_types as types
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import HEADER_MISMATCH, LOG_LEVEL_META_KEY, SERVER_INFO_META_KEY
from mcp_types.methods import INPUT_REQUIRED_METHODS
from pydantic import TypeAdapter

from perdure.adapters.mcp.connection import Connection
from perdure.adapters.mcp.sending import Sending
from perdure.canonical import decode
from perdure.errors import InvalidMcpResponse
from perdure.journal.payloads import McpMetadata, McpRequest

OPERATION_KEY: Final = "perdure/operation_key"
"""Where a server finds the operation key, in the `_meta` of a request that has an effect."""

_MOST_PAGES: Final = 100
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.05, 0.25


class _AnyRequest(types.Request[dict[str, Any], str]):
    """A request of any method, with its params as they are."""


_RAW: Final[Any] = TypeAdapter(dict[str, Any])


class Exchange:
    """One request on one connection, with all that the server asks back in between."""

    def __init__(
        self,
        connection: Connection,
        request: McpRequest,
        sending: Sending,
        *,
        timeout_seconds: float | None,
        operation_key: str | None,
    ) -> None:
        self._connection = connection
        self._request = request
        self._sending = sending
        self._timeout_seconds = timeout_seconds
        self._params = _params(request, operation_key, modern=connection.modern)

    async def finish(self) -> dict[str, Any]:
        """Return the result of the request.

        Raises as the client of `mcp` does, and `InvalidMcpResponse` where the server asks back more
        often than the request allows.
        """
        # A result that asks has all questions of a round, which are counted as one.
        most = sys.maxsize if self._connection.modern else self._request.max_round_trips
        with self._connection.questions.allowed(most):
            return await self._rounds()

    async def _rounds(self) -> dict[str, Any]:
        wait = _FIRST_WAIT_SECONDS
        params = self._params
        most = self._request.max_round_trips
        for trip in range(most + 1):
            result = await self._listed(params)
            if not self._asks_back(result):
                return _plain(result)
            if trip == most:
                break
            asked = types.InputRequiredResult.model_validate(result, by_name=False)
            params = {**self._params}
            if asked.input_requests:
                wait = _FIRST_WAIT_SECONDS
                params["inputResponses"] = await self._answers(asked.input_requests)
            else:
                await anyio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
            if asked.request_state is not None:
                params["requestState"] = asked.request_state
        raise InvalidMcpResponse(
            f"the MCP server asked back more than {most} times in one {self._request.method}"
        )

    async def _listed(self, params: dict[str, Any]) -> dict[str, Any]:
        """Send it, once more after listing the tools where the server wants headers for one."""
        try:
            return await self._send(params)
        except MCPError as error:
            if error.code != HEADER_MISMATCH or self._request.method != "tools/call":
                raise
        self._sending.turned_back()
        await list_tools(self._connection, self._timeout_seconds)
        return await self._send(params)

    async def _send(self, params: dict[str, Any]) -> dict[str, Any]:
        connection, method, seconds = self._connection, self._request.method, self._timeout_seconds
        self._sending.begin()
        with self._sending:
            if "task" in params and not connection.modern:
                # The session takes what starts a task for a result that is none.
                version = str(connection.session.protocol_version)
                headers = {"headers": {"mcp-protocol-version": version}}
                timeout = {} if seconds is None else {"timeout": seconds}
                options: Any = {**headers, **timeout}
                return await connection.line.send_raw_request(method, params, options)
            return await connection.session.send_request(
                _AnyRequest(method=method, params=params), _RAW, seconds
            )

    def _asks_back(self, result: Mapping[str, Any]) -> bool:
        return (
            self._request.method in INPUT_REQUIRED_METHODS
            and result.get("resultType") == "input_required"
        )

    async def _answers(self, asked: Mapping[str, types.InputRequest]) -> dict[str, Any]:
        session = self._connection.session
        answers: dict[str, Any] = {}
        for key, request in asked.items():
            meta = request.params.meta if request.params else None
            context = ClientRequestContext(session=session, request_id=key, meta=meta)
            answer = await session.dispatch_input_request(context, request)
            if isinstance(answer, types.ErrorData):
                raise MCPError.from_error_data(answer)
            answers[key] = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        return answers


async def list_tools(connection: Connection, timeout_seconds: float | None) -> list[types.Tool]:
    """Return the tools of all pages, and let the session know them."""
    tools: list[types.Tool] = []
    cursor: str | None = None
    with anyio.fail_after(timeout_seconds):
        for _ in range(_MOST_PAGES):
            params = types.PaginatedRequestParams(cursor=cursor)
            page = await connection.session.list_tools(params=params)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
    return tools


def _params(request: McpRequest, operation_key: str | None, *, modern: bool) -> dict[str, Any]:
    given: Any = decode(request.params_json.encode(), what="the params of the MCP request")
    params = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    meta = {
        **_meta(request.metadata, modern=modern),
        **cast("dict[str, Any]", params.get("_meta") or {}),
    }
    if operation_key is not None:
        meta[OPERATION_KEY] = operation_key
    return {**params, "_meta": meta} if meta else params


def _meta(metadata: McpMetadata, *, modern: bool) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    if metadata.progress_token is not None:
        meta["progressToken"] = metadata.progress_token.value
    if metadata.log_level is not None and modern:
        meta[LOG_LEVEL_META_KEY] = metadata.log_level.value
    for name in ("traceparent", "tracestate", "baggage"):
        value = getattr(metadata, name)
        if value is not None:
            meta[name] = value
    return meta


def _plain(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without what says which server gave it."""
    meta = cast("dict[str, Any]", result.get("_meta") or {})
    if SERVER_INFO_META_KEY not in meta:
        return result
    left = {key: value for key, value in meta.items() if key != SERVER_INFO_META_KEY}
    rest = {key: value for key, value in result.items() if key != "_meta"}
    return {**rest, "_meta": left} if left else rest
