from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Final, cast

from pydantic import BaseModel, TypeAdapter
from pydantic_ai.durable_exec import (
    CapabilityOperationParams,
    DurableOperationId,
    DynamicToolsetCallToolParams,
    EventStreamHandlerParams,
    ModelCancelSuspendedResponseParams,
    ModelCompactMessagesParams,
    ModelRequestId,
    ModelRequestParams,
    ToolsetCallToolParams,
    ToolsetGetToolsParams,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import RunContext
from pydantic_core import PydanticSerializationError, to_jsonable_python

from perdure.adapters.pydantic_ai.agent_run import AgentRun
from perdure.adapters.pydantic_ai.conversation import Document
from perdure.canonical import encode
from perdure.errors import InvalidPayload

# Sets whose order differs from process to process, and what only this application reads.
_SETS: Final = ("deferred_capability_ids", "introduced_tool_names", "revealed_tool_names")
_UNSENT: Final = {
    "function_tools": {"__all__": {"metadata"}},
    "output_tools": {"__all__": {"metadata"}},
}


def document_of(operation_id: DurableOperationId, params: object, run: AgentRun) -> Document:
    """Return the input of an operation: what decides its outcome, in the same bytes each time.

    Dependencies, live objects, running totals, clocks and ids that a process made up stay out.
    Raises `InvalidPayload` for what JSON cannot carry, such as NaN.
    """
    match params:
        case ModelRequestParams():
            name = operation_id.model_name if isinstance(operation_id, ModelRequestId) else ""
            head = {
                "model": {"id": params.model_id or "default", "name": name},
                "parameters": _parameters(params.model_request_parameters),
                "settings": jsonable(params.model_settings, "model settings"),
            }
            return _conversation(run, head, params.messages)
        case ModelCompactMessagesParams():
            context = params.request_context
            head = {
                "instructions": params.instructions,
                "model": {"id": params.model_id or "default"},
                "parameters": _parameters(context.model_request_parameters),
                "settings": jsonable(context.model_settings, "model settings"),
            }
            return _conversation(run, head, context.messages)
        case _:
            return Document(encode(_members(params), what="input"))


def _members(params: object) -> dict[str, Any]:
    match params:
        case ToolsetCallToolParams() | DynamicToolsetCallToolParams():
            return {
                "arguments": jsonable(params.tool_args, f"arguments of {params.name}"),
                "call": _call(params.ctx),
                "tool": params.name,
            }
        case ToolsetGetToolsParams():
            return {"run_step": params.ctx.run_step}
        case EventStreamHandlerParams():
            return {"event": jsonable(params.event, "event")}
        case CapabilityOperationParams():
            arguments = {
                name: value
                for name, value in params.arguments.items()
                if not isinstance(value, RunContext)
            }
            return {"arguments": jsonable(arguments, "arguments"), "model": params.model_id}
        case ModelCancelSuspendedResponseParams():
            response = params.response
            return {
                "model": params.model_id,
                "provider": response.provider_name,
                "response": response.provider_response_id,
            }
        case _:
            return {}


def _call(ctx: RunContext[Any]) -> dict[str, Any]:
    call: dict[str, Any] = {"id": ctx.tool_call_id, "retry": ctx.retry}
    if ctx.tool_call_approved:
        call["approved"] = True
        call["metadata"] = jsonable(ctx.tool_call_metadata, "approval metadata")
    return call


def _conversation(run: AgentRun, head: dict[str, Any], messages: list[Any]) -> Document:
    opened = encode(head, what="request").removesuffix(b"}") + b","
    return run.conversation.document(opened, messages)


def _parameters(parameters: ModelRequestParameters) -> dict[str, Any]:
    written = _parameters_adapter().dump_python(
        parameters, mode="json", exclude=_UNSENT, exclude_none=True
    )
    for name in _SETS:
        written[name] = sorted(written[name])
    return written


@functools.cache
def _parameters_adapter() -> TypeAdapter[ModelRequestParameters]:
    return TypeAdapter(ModelRequestParameters)


def jsonable(value: object, what: str) -> Any:
    """Return a value in JSON's terms, with every set in an order that all processes agree on.

    Floats that JSON has no number for are left in, to be refused with their path.
    """
    try:
        return to_jsonable_python(_ordered(value), bytes_mode="base64", inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise InvalidPayload(
            f"{what} cannot be written to the journal: {error}; use values that JSON has"
        ) from error


def _ordered(value: object) -> Any:
    if isinstance(value, Mapping):
        members = cast("Mapping[object, object]", value)
        return {key: _ordered(member) for key, member in members.items()}
    if isinstance(value, list | tuple):
        return [_ordered(member) for member in cast("list[object]", value)]
    if isinstance(value, set | frozenset):
        members = [jsonable(member, "a set") for member in cast("set[object]", value)]
        return sorted(members, key=lambda member: encode(member, what="a set"))
    if isinstance(value, BaseModel):
        return _ordered(value.model_dump(mode="python", by_alias=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        value = {field.name: _ordered(getattr(value, field.name)) for field in fields}
    return value
