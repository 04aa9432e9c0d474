from __future__ import annotations

import enum
from collections.abc import Callable, Container, Iterator
from typing import Final

import msgspec

from perdure.errors import UndeclaredOrigins, UnmetNeeds
from perdure.journal.binding import Binding
from perdure.journal.invocation import OperationKind


class Origin(enum.StrEnum):
    """Where a tool comes from, and so what performs its calls: a workflow does so by itself."""

    APPLICATION = "application"
    MCP = "mcp"
    WORKFLOW = "workflow"


_KIND_OF: Final = {
    Origin.APPLICATION: OperationKind.TOOL_CALL,
    Origin.MCP: OperationKind.MCP_REQUEST,
}


class NeededTool(msgspec.Struct, frozen=True):
    """A tool that is known before the run begins."""

    name: str
    origin: Origin = Origin.APPLICATION


class NeededToolset(msgspec.Struct, frozen=True):
    """A toolset that lists its tools only while the run is at work.

    `origins` are those that its tools may have: none at all, where there are none; None where
    nobody said, which is refused. A client of an MCP server has `(Origin.MCP,)`.
    """

    name: str
    origins: tuple[Origin, ...] | None = None


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a run will come to ask for.

    `retries` are model requests that are tried again after a delay; `streams` tells that requests
    are streamed, where the run makes `model_requests` at all.
    """

    model_requests: bool = True
    streams: bool = False
    retries: bool = False
    tools: tuple[NeededTool, ...] = ()
    toolsets: tuple[NeededToolset, ...] = ()
    event_deliveries: bool = False
    approvals: bool = False

    def kinds(self) -> Iterator[tuple[OperationKind, str]]:
        """Yield each kind of operation that is needed, and what it is needed for."""
        if self.model_requests and self.streams:
            yield OperationKind.MODEL_STREAM, "streamed model requests"
        elif self.model_requests:
            yield OperationKind.MODEL_REQUEST, "model requests"
        if self.retries:
            yield OperationKind.RETRY_DELAY, "retries after a delay"
        for tool in self.tools:
            if tool.origin is not Origin.WORKFLOW:
                yield _KIND_OF[tool.origin], f"tool {tool.name!r}"
        for toolset in self.toolsets:
            for origin in toolset.origins or ():
                if origin is not Origin.WORKFLOW:
                    yield _KIND_OF[origin], f"toolset {toolset.name!r}"
        if self.event_deliveries:
            yield OperationKind.EVENT_DELIVERY, "events"
        if self.approvals:
            yield OperationKind.APPROVAL_RESUME, "approvals"


def _register(kind: OperationKind, handler_id: str) -> str:
    return f"register its handler with @handlers.{kind}({handler_id!r})"


class Preflight:
    """Finds out whether everything that a run will need is there, before it does anything.

    A binding has a handler id for each kind; `handlers` are those of this process, or what else
    tells which there are, None where nobody knows. `mending` says how a handler that is missing
    gets there. What was found to be there is not looked for again, so that a run can check before
    each request and whenever its capabilities have changed. Nobody else is asked anything.
    """

    def __init__(
        self,
        binding: Binding,
        handlers: Container[tuple[OperationKind, str]] | None = None,
        *,
        mending: Callable[[OperationKind, str], str] = _register,
    ) -> None:
        self._binding = binding
        self._handlers = handlers
        self._mending = mending
        self._met: Needs | None = None

    def check(self, needs: Needs) -> None:
        """Raise `UnmetNeeds` with all that is missing and how it is registered.

        It is an `UndeclaredOrigins` where a toolset does not say where its tools come from.
        """
        if needs == self._met:
            return
        needed: dict[OperationKind, list[str]] = {}
        for kind, purpose in needs.kinds():
            needed.setdefault(kind, []).append(purpose)
        missing = [
            f"{', '.join(purposes)}: {absence}"
            for kind, purposes in needed.items()
            if (absence := self._absence(kind)) is not None
        ]
        undeclared = [toolset.name for toolset in needs.toolsets if toolset.origins is None]
        missing += [
            f"toolset {name!r}: it lists its tools only later, and does not say where they come"
            f" from; give it origins ({', '.join(Origin)}), or none at all: ()"
            for name in undeclared
        ]
        if undeclared:
            raise UndeclaredOrigins(self._binding.run_id, undeclared, missing)
        if missing:
            raise UnmetNeeds(self._binding.run_id, missing)
        self._met = needs

    def _absence(self, kind: OperationKind) -> str | None:
        """Return why nobody performs a kind and how that is mended, or None if somebody does."""
        handler_id = self._binding.handler_ids.get(kind)
        if handler_id is None:
            return f"add a handler id for {kind} to the binding's handler_ids"
        if self._handlers is not None and (kind, handler_id) not in self._handlers:
            return self._mending(kind, handler_id)
        return None
