from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias, cast

import msgspec
from pydantic import ValidationError
from pydantic_ai.durable_exec import (
    DurableOperation,
    DynamicToolsetCallToolParams,
    ResultCodec,
    ToolsetCallToolId,
    ToolsetCallToolParams,
)
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset

from perdure.adapters.pydantic_ai.ending import NoWatch, Watch
from perdure.adapters.pydantic_ai.failures import for_units
from perdure.adapters.pydantic_ai.function_call import FunctionCall, UnseenCall
from perdure.adapters.pydantic_ai.mcp_call import McpCall
from perdure.adapters.pydantic_ai.tool_config import ToolConfig, check_agreement, config_of
from perdure.adapters.pydantic_ai.toolsets import function_of, leaf_of, tool_of
from perdure.adapters.pydantic_ai.watcher import calls_as, connected, is_watched
from perdure.canonical import encode
from perdure.codec import Codec
from perdure.declaration import EffectDeclaration
from perdure.effects.support import EffectPolicy, SideEffectSupport
from perdure.functions import Operation, check_lookup, check_performable, declaration_of
from perdure.retry import RetryPolicy

Failed: TypeAlias = Callable[[Exception], Exception]

_HINTS: Final = "annotations"


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How one tool call is performed: what it does to the world, and who watches it."""

    effect: EffectDeclaration | None = None
    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None
    watch: Callable[[], Watch] = NoWatch


class ToolTerms:
    """Tells the terms of the tool calls of one toolset.

    What the function of a tool declares stands, else what the tool's metadata says, else what a
    trusted server says of it. A tool of which nobody says anything has an effect at a target that
    can neither drop a repeat nor be asked.
    """

    def __init__(self, operation: DurableOperation[Any, Any, Any], trusted: frozenset[str]) -> None:
        operation_id = operation.operation_id
        assert isinstance(operation_id, ToolsetCallToolId)
        self._toolset = leaf_of(operation)
        self._of_server = operation_id.toolset_kind == "mcp"
        self._toolset_id = operation_id.toolset_id
        self._trusted = operation_id.toolset_id in trusted
        self._output_of = partial(_output_of, operation.result_codec)

    async def of(self, params: object, config: ToolConfig, failed: Failed) -> Terms:
        """Return the terms of a call; `failed` makes the exception of what fails before it."""
        match params:
            case ToolsetCallToolParams() if self._of_server:
                return self._of_server_tool(params, config, failed)
            case ToolsetCallToolParams():
                declared = declared_by(params.tool)
                terms = self._terms(declared, config, params.name, None)
                return msgspec.structs.replace(terms, watch=self._function_watch(params))
            case DynamicToolsetCallToolParams():
                return await self._of_dynamic_tool(params, config)
            case _:
                return Terms()

    def _of_server_tool(
        self, params: ToolsetCallToolParams, config: ToolConfig, failed: Failed
    ) -> Terms:
        toolset = self._toolset
        assert toolset is not None
        hints = _hints_of(params.tool.tool_def if params.tool else None)
        terms = self._terms(None, config, f"{self._toolset_id}.{params.name}", hints)
        effect = terms.effect
        if effect is not None:
            prepare = partial(connected, toolset, failed)
            effect = msgspec.structs.replace(effect, prepare=prepare)
        watch = partial(
            McpCall,
            trusted=self._trusted,
            harmless=effect is None,
            must_pass=is_watched(toolset),
        )
        return msgspec.structs.replace(terms, effect=effect, watch=watch)

    async def _of_dynamic_tool(
        self, params: DynamicToolsetCallToolParams, config: ToolConfig
    ) -> Terms:
        hints = _hints_of(params.tool_def)
        target = params.name if hints is None else f"{self._toolset_id}.{params.name}"
        tool = None
        if hints is None and isinstance(self._toolset, DynamicToolset):
            tool = await tool_of(self._toolset, params)
        if tool is not None:
            try:
                tool.args_validator.validate_python(
                    params.tool_args, context=params.ctx.validation_context
                )
            except ValidationError:
                return Terms()  # these arguments get no further
            if config == ToolConfig():
                config = config_of(tool.tool_def, params.name) or config
        declared = declared_by(tool)
        check_agreement(config, declared, params.name)
        terms = self._terms(declared, config, target, hints)
        watch = partial(UnseenCall, of_server=hints is not None)
        return msgspec.structs.replace(terms, watch=watch)

    def _function_watch(self, params: ToolsetCallToolParams) -> Callable[[], Watch]:
        seen = calls_as(self._toolset, FunctionToolset) and function_of(params.tool) is not None
        return FunctionCall if seen else NoWatch

    def _terms(
        self,
        declared: Operation | None,
        config: ToolConfig,
        target: str,
        hints: dict[str, Any] | None,
    ) -> Terms:
        retry = config.retry
        timeout_seconds = None
        if declared is not None:
            retry = declared.retry or retry
            timeout_seconds, effect = declared.timeout_seconds, declared.effect
        elif config.read_only:
            effect = None
        elif config.effect is not None:
            effect = EffectDeclaration(policy=config.effect, lookup=config.lookup)
        else:
            effect = self._hinted(hints or {})
        return Terms(
            effect=None if effect is None else self._aimed(effect, target),
            retry=None if retry is None else for_units(retry, of_model=False),
            timeout_seconds=timeout_seconds,
        )

    def _hinted(self, hints: dict[str, Any]) -> EffectDeclaration | None:
        """Return what a server says of its tool, if that counts."""
        if self._trusted and hints.get("readOnlyHint") is True:
            return None
        if self._trusted and hints.get("idempotentHint") is True:
            return EffectDeclaration(policy=EffectPolicy(support=SideEffectSupport.IDEMPOTENT))
        return EffectDeclaration()

    def _aimed(self, effect: EffectDeclaration, target: str) -> EffectDeclaration:
        policy = effect.policy
        if not policy.target:
            policy = msgspec.structs.replace(policy, target=target)
        return msgspec.structs.replace(effect, policy=policy, output_of=self._output_of)


def declared_by(tool: object) -> Operation | None:
    """Return what the function of a tool declares, or None; raises `InvalidFunction`."""
    function = function_of(tool)
    if function is None:
        return None
    declared = declaration_of(function)
    if declared is None:
        check_performable(function)
    else:
        check_lookup(function, declared)
    return declared


def returned(codec: ResultCodec[Any], value: Any) -> Any:
    """Return a JSON value as the SDK writes the result of a tool that returned it."""
    # What looks like the SDK's own wrapping must not be taken for it.
    is_object = isinstance(value, dict)
    members = cast("dict[str, Any]", value) if is_object else {}
    kind = "tool_content_result" if members.get("kind") == "tool-return" else "tool_return"
    document: dict[str, Any] = {"kind": kind, "result": value}
    return codec.dump(codec.load(document))


def _output_of(codec: ResultCodec[Any], answer: bytes) -> bytes:
    # A person may have said more than JSON does.
    return encode({"result": returned(codec, Codec().decode(answer))})


def _hints_of(tool_def: ToolDefinition | None) -> dict[str, Any] | None:
    """Return what a server says of a tool, or None for a tool that is no server's."""
    metadata: dict[str, Any] = (tool_def and tool_def.metadata) or {}
    if _HINTS not in metadata:
        return None
    return metadata[_HINTS] or {}
