from __future__ import annotations

import hashlib
import re
from typing import Any, Final, NamedTuple, cast

from pydantic_ai.durable_exec import (
    CapabilityOperationId,
    DurableOperationId,
    DynamicToolsetCallToolParams,
    EventStreamHandlerId,
    EventStreamHandlerParams,
    JournalOperationNamer,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    ToolsetCallToolId,
    ToolsetCallToolParams,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
)
from pydantic_ai.messages import CapabilityEvent, CustomEvent
from pydantic_ai.tools import RunContext

from perdure.adapters.pydantic_ai.agent_run import AgentRun
from perdure.adapters.pydantic_ai.site import Site
from perdure.context import Context
from perdure.ids import IDENTIFIER_LIMIT
from perdure.journal.invocation import OperationKind

_NAME_LIMIT: Final = 24
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9._-]")
_PUNCTUATION: Final = str.maketrans({":": ".", "/": ".", "<": None, ">": None})


class Place(NamedTuple):
    """Where an operation stands in its agent run: what the journal finds it by."""

    kind: OperationKind
    step_id: str
    sequence: int


def place_of(
    operation_id: DurableOperationId,
    params: object,
    input_json: bytes,
    run: AgentRun,
    context: Context | Site,
) -> Place:
    """Return the place of an operation in a context, from what asks for it and in which step."""
    ctx = run_context_of(params)
    step = ctx.run_step if ctx is not None else 0
    call = run.call_number(ctx, ctx.tool_call_id) if ctx is not None else None
    match operation_id:
        case ModelRequestId() | ModelCompactMessagesId() | ModelCancelSuspendedResponseId():
            place = _place_at_model(operation_id, run)
        case EventStreamHandlerId():
            assert isinstance(params, EventStreamHandlerParams)
            place = _place_of_event(params, input_json, run)
        case ToolsetGetToolsId() | ToolsetGetInstructionsId():
            place = _place_of_listing(operation_id, step)
        case ToolsetCallToolId() | ToolsetValidateToolArgumentsId():
            place = _place_of_call(operation_id, call, context)
        case _:
            place = _place_of_other(operation_id, step, call)
    step_id = f"{run.prefix}{place.step_id}" if context is run.context else place.step_id
    step_id = run.once(context.namespace, step_id, place.sequence)
    return place._replace(step_id=step_id)


def _place_of_call(
    operation_id: ToolsetCallToolId | ToolsetValidateToolArgumentsId,
    call: int | None,
    context: Context | Site,
) -> Place:
    kind, step_id = OperationKind.TOOL_CALL, "tool.call"
    if isinstance(operation_id, ToolsetValidateToolArgumentsId):
        step_id = "tool.validate"
    elif operation_id.toolset_kind == "mcp":
        kind, step_id = OperationKind.MCP_REQUEST, "mcp.request"
    if call is None:
        # Made by code, such as a tool that calls tools: numbered in the order of that code.
        step_id += ".inner"
        call = context.counter(step_id)
    return Place(kind, step_id, call)


def _place_at_model(
    operation_id: ModelRequestId | ModelCompactMessagesId | ModelCancelSuspendedResponseId,
    run: AgentRun,
) -> Place:
    match operation_id:
        case ModelRequestId(streaming=True):
            return Place(OperationKind.MODEL_STREAM, "model.stream", run.count("model"))
        case ModelRequestId():
            return Place(OperationKind.MODEL_REQUEST, "model.request", run.count("model"))
        case ModelCompactMessagesId():
            return Place(OperationKind.MODEL_REQUEST, "model.compact", run.count("compact"))
        case ModelCancelSuspendedResponseId():
            return Place(OperationKind.MODEL_REQUEST, "model.cancel", run.count("cancel"))


def _place_of_listing(
    operation_id: ToolsetGetToolsId | ToolsetGetInstructionsId, step: int
) -> Place:
    name = name_of(operation_id.toolset_id)
    if isinstance(operation_id, ToolsetGetInstructionsId):
        return Place(OperationKind.MCP_REQUEST, f"mcp.instructions.{name}", step)
    if operation_id.toolset_kind == "mcp":
        return Place(OperationKind.MCP_REQUEST, f"mcp.list.{name}", step)
    return Place(OperationKind.TOOL_CALL, f"tool.list.{name}", step)


def _place_of_other(operation_id: DurableOperationId, step: int, call: int | None) -> Place:
    """Return the place of a capability's operation, or of a kind that came with a later SDK."""
    if isinstance(operation_id, CapabilityOperationId):
        name = name_of(f"{operation_id.capability_id}.{operation_id.operation}")
        step_id = f"capability.{name}"
    else:
        step_id = f"operation.{name_of(type(operation_id).__name__)}"
    if call is not None:
        step_id += f".call.{call}"
    return Place(OperationKind.TOOL_CALL, step_id, step)


def _place_of_event(params: EventStreamHandlerParams, input_json: bytes, run: AgentRun) -> Place:
    """Return the place of an event: its kind and call in its step.

    What a tool's body emits comes again, and may come in other words, when the body runs again
    after a crash. It has no place in a response, so it is known by what it says: said again, it is
    not delivered again; new words are a new event.
    """
    event, ctx = params.event, params.run_context
    step_id = f"event.{ctx.run_step}.{event.event_kind}"
    call = run.call_number(ctx, getattr(event, "tool_call_id", None))
    if isinstance(event, CustomEvent | CapabilityEvent):
        step_id += f".{hashlib.sha256(input_json).hexdigest()[:12]}"
    return Place(OperationKind.EVENT_DELIVERY, step_id, call or 0)


class HandlerNames:
    """Names what performs an operation, after the agent, the toolset and the tool."""

    def __init__(self, agent_name: str, default_model_id: str | None) -> None:
        self.agent_name = agent_name
        self._namer = JournalOperationNamer(
            agent_name, default_model_id=default_model_id or "default"
        )
        self._names: dict[tuple[DurableOperationId, str], str] = {}

    def name_of(self, operation_id: DurableOperationId, params: object) -> str:
        """Return the handler id of an operation."""
        tool = ""
        if isinstance(params, ToolsetCallToolParams | DynamicToolsetCallToolParams):
            tool = params.name
        return self.named(operation_id, tool)

    def named(self, operation_id: DurableOperationId, tool: str = "") -> str:
        """Return the handler id of an operation, of one tool where it calls one."""
        known = self._names.get((operation_id, tool))
        if known is None:
            name = self._namer.operation_name(operation_id)
            known = name_of(f"{name}.{tool}" if tool else name, IDENTIFIER_LIMIT)
            self._names[operation_id, tool] = known
        return known


def name_of(text: str, limit: int = _NAME_LIMIT) -> str:
    """Return a text as a part of an identifier; one that had to be changed gets its digest."""
    plain = text.translate(_PUNCTUATION)
    legal = _ILLEGAL.sub("_", plain)
    if legal == plain and 0 < len(plain) <= limit:
        return plain
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{legal[: limit - 9]}-{digest}"


def run_context_of(params: Any) -> RunContext[Any] | None:
    """Return the run context that an operation was asked for with, if there is one."""
    ctx = getattr(params, "ctx", None) or getattr(params, "run_context", None)
    return cast("RunContext[Any]", ctx) if isinstance(ctx, RunContext) else None
