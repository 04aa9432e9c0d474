from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from inspect import isawaitable
from typing import Any, cast

from pydantic_ai.durable_exec import (
    DurableOperation,
    DynamicToolsetCallToolParams,
    DynamicToolsResult,
    ParameterTransport,
    ParameterTransports,
    ToolsetCallToolParams,
    ToolsetGetToolsParams,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset, FunctionToolset, ToolsetTool
from pydantic_ai.toolsets.function import FunctionToolsetTool

from perdure.adapters.pydantic_ai.tool_config import ToolConfig
from perdure.adapters.pydantic_ai.watcher import watch


class Leaf(ParameterTransport[Any, Any]):
    """Passes parameters on as they are, and knows the toolset that an operation is of."""

    def __init__(self, toolset: AbstractToolset[Any]) -> None:
        self.toolset = toolset

    def dump(self, params: Any) -> Any:
        """Return the parameters."""
        return params

    def load(self, payload: Any, *, runtime: object) -> Any:
        """Return the parameters."""
        del runtime
        return payload


class Toolsets(ParameterTransports):
    """Meets the toolsets of an agent as its operations are made, and remembers its servers."""

    def __init__(self) -> None:
        self._servers: set[str] = set()
        self._made: set[str] = set()
        self._units: list[Any] = []

    def learn(self, unit: Any) -> None:
        """Accept an operation that was bound, to be found again if it calls a tool."""
        if leaf_of(unit.operation) is not None:
            self._units.append(unit)

    def operations(self, agent_name: str) -> Iterator[tuple[AbstractToolset[Any], Any]]:
        """Yield an agent's toolsets, each with an operation that it has."""
        for unit in self._units:
            leaf = leaf_of(unit.operation)
            if leaf is not None and unit.names.agent_name == agent_name:
                yield leaf, unit

    def function_call(
        self, toolset: FunctionToolset[Any]
    ) -> ParameterTransport[ToolsetCallToolParams, Any]:
        """Return what carries the calls of a toolset's functions."""
        return Leaf(toolset)

    def dynamic_call(
        self, toolset: DynamicToolset[Any]
    ) -> ParameterTransport[DynamicToolsetCallToolParams, Any]:
        """Return what carries the calls of a toolset that is made anew in each step."""
        self._servers.add(toolset.id or "")
        self._made.add(toolset.id or "")
        return Leaf(toolset)

    def mcp_call(
        self, toolset: AbstractToolset[Any]
    ) -> ParameterTransport[ToolsetCallToolParams, Any]:
        """Return what carries the calls of a server's tools, which are watched from now on."""
        self._servers.add(toolset.id or "")
        watch(toolset)
        return Leaf(toolset)

    def get_tools(
        self, toolset: AbstractToolset[Any]
    ) -> ParameterTransport[ToolsetGetToolsParams, Any]:
        """Return what carries the questions which tools a server has."""
        return Leaf(toolset)

    def get_instructions(
        self, toolset: AbstractToolset[Any]
    ) -> ParameterTransport[ToolsetGetToolsParams, Any]:
        """Return what carries the questions for a server's instructions."""
        return Leaf(toolset)

    def check_lasting(self) -> None:
        """Raise `UserError` for an agent with toolsets that are made in each step."""
        if self._made:
            raise UserError(
                "an agent on a runtime has toolsets that are there from the start, and the dynamic"
                f" ones are made in each step: {', '.join(map(repr, sorted(self._made)))}; give it"
                " their tools themselves, or run it inside a run of perdure"
            )

    def check_servers(self, named: Iterable[str]) -> None:
        """Raise `UserError` for the id of a server that there is not."""
        unknown = sorted(set(named) - self._servers)
        if unknown:
            there = ", ".join(map(repr, sorted(self._servers))) or "none"
            raise UserError(
                f"trusted_servers names {', '.join(map(repr, unknown))}; the agent's servers have"
                f" the ids: {there}"
            )


def leaf_of(operation: DurableOperation[Any, Any, Any]) -> AbstractToolset[Any] | None:
    """Return the toolset that an operation calls a tool of, or None for another operation."""
    transport = operation.parameter_transport
    return transport.toolset if isinstance(transport, Leaf) else None


def function_of(tool: object) -> Any:
    """Return the function of a tool, or None for a tool that has none."""
    call = cast("Any", tool).call_func if isinstance(tool, FunctionToolsetTool) else None
    schema = getattr(call, "__self__", None)
    return getattr(schema, "function", None)


def writable(listed: DynamicToolsResult) -> DynamicToolsResult:
    """Return what a dynamic toolset lists without the configurations that JSON cannot carry.

    They are read from the tool itself when it is called. Raises `UserError` for a server's tool,
    which cannot be had without asking the server.
    """
    tools = {
        name: replace(info, tool_def=_writable(info.tool_def))
        for name, info in listed.tools.items()
    }
    return replace(listed, tools=tools)


def _writable(tool_def: ToolDefinition) -> ToolDefinition:
    metadata = {**(tool_def.metadata or {})}
    if not isinstance(metadata.get("perdure"), ToolConfig):
        return tool_def
    if "annotations" in metadata:
        raise UserError(
            f"tool {tool_def.name!r} of a server has its ToolConfig inside of a dynamic toolset,"
            " where a replay does not find it: set it from outside, with SetToolMetadata"
        )
    del metadata["perdure"]
    return replace(tool_def, metadata=metadata)


async def tool_of(
    toolset: DynamicToolset[Any], params: DynamicToolsetCallToolParams
) -> ToolsetTool[Any] | None:
    """Return the tool that a call of a dynamic toolset will find, or None.

    The toolset is made once more to look. A server in it is not asked, and so hides the functions
    that stand under other names than their own beside it.
    """
    made = toolset.toolset_func(params.ctx)
    inner = await made if isawaitable(made) else made
    if inner is None:
        return None
    leaves: list[AbstractToolset[Any]] = []
    inner.apply(leaves.append)
    if all(isinstance(leaf, FunctionToolset) for leaf in leaves):
        return (await inner.get_tools(params.ctx)).get(params.name)
    for leaf in leaves:
        if isinstance(leaf, FunctionToolset) and params.name in leaf.tools:
            return (await leaf.get_tools(params.ctx)).get(params.name)
    return None
