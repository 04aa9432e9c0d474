from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, Literal, TypeVar, cast

from pydantic_ai.durable_exec import (
    BoundDurableOperation,
    DurableOperation,
    DurableOperationBackend,
    DurableOperationId,
    DynamicToolsResult,
    EventStreamHandlerId,
    ModelRequestId,
    ModelRequestParams,
    ToolsetCallToolId,
    ToolsetCallToolParams,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
    durable_unit_scope,
    record_durable_unit,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import ToolsetTool
from pydantic_core import PydanticSerializationError

from perdure.adapters.pydantic_ai.agent_run import AgentRun
from perdure.adapters.pydantic_ai.conversation import slim
from perdure.adapters.pydantic_ai.document import document_of
from perdure.adapters.pydantic_ai.ending import Ending
from perdure.adapters.pydantic_ai.failures import UnitFailed, raised_from, unknown_of
from perdure.adapters.pydantic_ai.place import HandlerNames, Place, place_of, run_context_of
from perdure.adapters.pydantic_ai.raised import telling
from perdure.adapters.pydantic_ai.site import Site, here
from perdure.adapters.pydantic_ai.spending import Spending, add_spent
from perdure.adapters.pydantic_ai.terms import Terms, ToolTerms, declared_by, returned
from perdure.adapters.pydantic_ai.tool_config import ToolConfig, check_agreement, config_of
from perdure.adapters.pydantic_ai.toolsets import Toolsets, writable
from perdure.asked_effect import identity_of
from perdure.canonical import decode, encode
from perdure.context import Context
from perdure.declaration import Reported
from perdure.effect_function import identified
from perdure.effects.support import EffectPolicy
from perdure.errors import InvalidPayload, OperationFailed
from perdure.journal.budget import Meter
from perdure.journal.failures import failure_of
from perdure.journal.invocation import Invocation
from perdure.journal.record import Outcome, Success
from perdure.recorder import Performed
from perdure.retry import RetryPolicy

ParamsT = TypeVar("ParamsT")
WireT = TypeVar("WireT")
ResultT = TypeVar("ResultT")

Failed = Callable[[Exception], UnitFailed]


class Backend(DurableOperationBackend[ToolConfig]):
    """Performs an agent's operations through the context of the run that the agent runs in."""

    def __init__(
        self,
        names: HandlerNames,
        retry: RetryPolicy | None,
        toolsets: Toolsets,
        trusted: frozenset[str],
    ) -> None:
        self.parameter_transports = toolsets
        self._toolsets = toolsets
        self._names = names
        self._retry = retry
        self._trusted = trusted

    def bind(
        self, operation: DurableOperation[ParamsT, WireT, ResultT]
    ) -> BoundDurableOperation[ParamsT, WireT, ResultT]:
        """Return the operation as something to call."""
        unit = Unit(operation, self._names, self._retry, self._trusted)
        self._toolsets.learn(unit)
        return unit

    def config_for_tool(
        self,
        operation: DurableOperation[ParamsT, WireT, ResultT],
        *,
        tool: object | None,
        tool_name: str,
    ) -> ToolConfig | Literal[False]:
        """Return what a tool's metadata says; False for a tool that is not to be journalled."""
        del operation
        found = cast("ToolsetTool[Any]", tool) if isinstance(tool, ToolsetTool) else None
        config = config_of(found.tool_def if found is not None else None, tool_name)
        check_agreement(config, declared_by(found), tool_name)
        return config

    def registrations(self) -> Sequence[Callable[..., object]]:
        """Return nothing: operations are performed where they are asked for."""
        return ()


class Unit(BoundDurableOperation[ParamsT, WireT, ResultT], Generic[ParamsT, WireT, ResultT]):
    """One operation of an agent, bound to the journal."""

    def __init__(
        self,
        operation: DurableOperation[ParamsT, WireT, ResultT],
        names: HandlerNames,
        retry: RetryPolicy | None,
        trusted: frozenset[str],
    ) -> None:
        self._operation = operation
        self.names = names
        self._retry = retry
        calls_tool = isinstance(operation.operation_id, ToolsetCallToolId)
        self._tool_terms = ToolTerms(operation, trusted) if calls_tool else None

    @property
    def operation(self) -> DurableOperation[ParamsT, WireT, ResultT]:
        """The operation that this is bound to."""
        return self._operation

    async def __call__(self, params: ParamsT, *, config: object | None = None) -> ResultT:
        """Perform the operation at its place, and return what is recorded of it."""
        run = AgentRun.of(run_context_of(params))
        context = here() or run.context
        operation_id = self._operation.operation_id
        if isinstance(context, Site):
            _check_performable(operation_id)
        handler_id = self._handler_id(params, context)
        document = document_of(operation_id, params, run)
        place = place_of(operation_id, params, document.data, run, context)
        key = context.key(place.step_id, place.sequence)
        raised: UnitFailed | None = None

        def failed(error: Exception) -> UnitFailed:
            nonlocal raised
            raised = UnitFailed(key, error)
            return raised

        terms = Terms()
        if not context.recorded(place.step_id, place.sequence):
            terms = await self._terms(params, config, failed)

        async def handler() -> Reported | Outcome:
            return await self._attempted(params, handler_id, terms, failed)

        with await self._room(params, run, context, place):
            performed = await context.perform(
                *place,
                handler_id,
                document.data,
                handler,
                retry=terms.retry,
                cuts=document.cuts,
                effect=terms.effect,
            )
        record_durable_unit(executed=not performed.replayed)
        return self._result(params, run, key, performed, raised)

    def _handler_id(self, params: ParamsT, context: Context | Site) -> str:
        operation_id = self._operation.operation_id
        of_server = isinstance(operation_id, ToolsetCallToolId) and (
            operation_id.toolset_kind == "mcp"
        )
        if isinstance(context, Site) and of_server:
            # Who performs it has one handler for all tools of the server, which alone knows them.
            return self.names.named(operation_id)
        return self.names.name_of(operation_id, params)

    async def perform(self, params: ParamsT, invocation: Invocation) -> Outcome:
        """Return what the operation comes to, which was asked for on a runtime elsewhere."""

        def failed(error: Exception) -> UnitFailed:
            return UnitFailed(invocation.stable_key, error)

        config = None
        if isinstance(params, ToolsetCallToolParams):
            config = config_of(params.tool.tool_def if params.tool else None, params.name)
        terms = await self._terms(params, config or None, failed)
        policy = EffectPolicy() if terms.effect is None else terms.effect.policy
        with identified(identity_of(invocation, policy)):
            made = await self._attempted(params, invocation.handler_id, terms, failed)
        return telling(made.outcome if isinstance(made, Reported) else made)

    async def _attempted(
        self, params: ParamsT, handler_id: str, terms: Terms, failed: Failed
    ) -> Reported | Outcome:
        try:
            return await self._attempt(params, handler_id, terms, failed)
        except Exception as error:  # noqa: BLE001 - recorded, and raised from the record
            return Reported(failure_of(failed(error)), None, error=error)

    async def _room(
        self, params: ParamsT, run: AgentRun, context: Context | Site, place: Place
    ) -> AbstractContextManager[None]:
        """Return what holds a request or a tool call to the budgets, unless it is recorded."""
        counts = self._tool_terms is not None or isinstance(params, ModelRequestParams)
        if not (run.budgets and counts) or context.recorded(place.step_id, place.sequence):
            return nullcontext()
        meter = Meter(*run.budgets, spending=await context.spending())
        return meter.admitted(context.key(place.step_id, place.sequence), place.kind)

    async def _terms(self, params: ParamsT, config: object | None, failed: Failed) -> Terms:
        if self._tool_terms is not None:
            config = config if isinstance(config, ToolConfig) else ToolConfig()
            return await self._tool_terms.of(params, config, failed)
        return Terms(retry=self._retry if isinstance(params, ModelRequestParams) else None)

    async def _attempt(
        self, params: ParamsT, handler_id: str, terms: Terms, failed: Failed
    ) -> Reported | Outcome:
        """Call the operation once and return what is journalled of it."""
        what = f"the result of {handler_id}"
        ctx = run_context_of(params)
        if self._tool_terms is None or ctx is None:
            result: Any = await self._call(params)
            if isinstance(result, DynamicToolsResult):
                result = writable(result)
            return Success(encode(self._dumped(result, what), what=what))
        async with asyncio.timeout(terms.timeout_seconds):
            return await self._attempt_tool(params, ctx, what, terms, failed)

    async def _attempt_tool(
        self, params: ParamsT, ctx: RunContext[Any], what: str, terms: Terms, failed: Failed
    ) -> Reported | Outcome:
        spending = Spending(ctx.usage)
        watch = terms.watch()
        result: Any = None
        try:
            result = await watch.make(self._call, spending.counted(params))
            written: dict[str, Any] = {"result": self._dumped(result, what)}
            if (spent := spending.written()) is not None:
                written["usage"] = spent
            ending = Ending.of(result, Success(encode(written, what=what)))
        except Exception as error:  # noqa: BLE001 - what became of the effect is told first
            ending = Ending.of(result, failure_of(failed(error)), error)
        if terms.effect is None:
            return Reported(ending.outcome, None, error=ending.error)
        return watch.report(ending)

    async def _call(self, params: Any) -> Any:
        with durable_unit_scope():
            return await self._operation.handler(params)

    def _dumped(self, result: Any, what: str) -> Any:
        try:
            payload = self._operation.result_codec.dump(result)
        except (PydanticSerializationError, TypeError) as error:
            raise InvalidPayload(
                f"{what} cannot be written to the journal: {error}; return a value that JSON has"
            ) from error
        if isinstance(result, ModelResponse):
            payload = slim(cast("dict[str, Any]", payload))
        return payload

    def _result(
        self,
        params: ParamsT,
        run: AgentRun,
        key: str,
        performed: Performed,
        raised: UnitFailed | None,
    ) -> ResultT:
        """Return what the journal holds, read the same way on every execution."""
        codec = self._operation.result_codec
        try:
            payload = decode(performed.output(key))
        except OperationFailed as failure:
            unknown = unknown_of(failure)
            if self._tool_terms is None or unknown is None:
                cause = raised.error if raised is not None else None
                raise raised_from(failure) from cause
            payload = {"result": returned(codec, unknown)}
        ctx = run_context_of(params)
        if self._tool_terms is not None and ctx is not None:
            if ctx.tool_call_id is not None:
                run.times.learn_return(ctx.tool_call_id, performed.finished_at)
            add_spent(payload.get("usage"), ctx)
            payload = payload["result"]
        result = codec.load(payload)
        if isinstance(result, ModelResponse):
            run.learn(ctx.run_step if ctx is not None else 0, result)
        return result


def _check_performable(operation_id: DurableOperationId) -> None:
    """Refuse what nobody performs for an agent on a runtime."""
    if not isinstance(
        operation_id,
        ModelRequestId
        | EventStreamHandlerId
        | ToolsetCallToolId
        | ToolsetGetInstructionsId
        | ToolsetGetToolsId
        | ToolsetValidateToolArgumentsId,
    ):
        raise UserError(
            f"an agent on a runtime has no {type(operation_id).__name__}: handlers perform model"
            " requests, tool calls and events; run it inside a run of perdure"
        )
