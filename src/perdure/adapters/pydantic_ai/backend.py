from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec
from pydantic_ai.durable_exec import (
    BoundDurableOperation,
    DurableOperation,
    DurableOperationBackend,
    ModelRequestParams,
    ToolsetCallToolId,
    durable_unit_scope,
    record_durable_unit,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.toolsets.abstract import ToolsetTool
from pydantic_core import PydanticSerializationError

from perdure.adapters.pydantic_ai.agent_run import AgentRun
from perdure.adapters.pydantic_ai.conversation import slim
from perdure.adapters.pydantic_ai.document import document_of
from perdure.adapters.pydantic_ai.failures import UnitFailed, for_units, raised_from
from perdure.adapters.pydantic_ai.place import HandlerNames, place_of, run_context_of
from perdure.adapters.pydantic_ai.spending import Spending, add_spent
from perdure.canonical import decode, encode
from perdure.context import current
from perdure.errors import InvalidPayload, OperationFailed
from perdure.journal.record import Success
from perdure.perform import Performed
from perdure.retry import RetryPolicy

ParamsT = TypeVar("ParamsT")
WireT = TypeVar("WireT")
ResultT = TypeVar("ResultT")


class ToolConfig(msgspec.Struct, frozen=True):
    """How the calls of one tool are performed: `Tool(..., metadata={"perdure": ToolConfig(...)})`.

    `retry` says which of its exceptions are tried again, and when; None for none.
    """

    retry: RetryPolicy | None = None


class Backend(DurableOperationBackend[ToolConfig]):
    """Performs an agent's operations through the context of the run that the agent runs in."""

    def __init__(self, names: HandlerNames, retry: RetryPolicy | None) -> None:
        self._names = names
        self._retry = retry

    def bind(
        self, operation: DurableOperation[ParamsT, WireT, ResultT]
    ) -> BoundDurableOperation[ParamsT, WireT, ResultT]:
        """Return the operation as something to call."""
        return _Unit(operation, self._names, self._retry)

    def config_for_tool(
        self,
        operation: DurableOperation[ParamsT, WireT, ResultT],
        *,
        tool: object | None,
        tool_name: str,
    ) -> ToolConfig | Literal[False]:
        """Return what a tool's metadata says; False for a tool that is not to be journalled."""
        del operation
        metadata = tool.tool_def.metadata if isinstance(tool, ToolsetTool) else None
        declared = (metadata or {}).get("perdure")
        if declared is None:
            return ToolConfig()
        if declared is False or isinstance(declared, ToolConfig):
            return declared
        raise UserError(
            f"the metadata 'perdure' of tool {tool_name!r} is a ToolConfig or False, which leaves"
            f" the tool out of the journal; it is {declared!r}"
        )

    def registrations(self) -> Sequence[Callable[..., object]]:
        """Return nothing: operations are performed where they are asked for."""
        return ()


class _Unit(BoundDurableOperation[ParamsT, WireT, ResultT], Generic[ParamsT, WireT, ResultT]):
    """One operation of an agent, bound to the journal."""

    def __init__(
        self,
        operation: DurableOperation[ParamsT, WireT, ResultT],
        names: HandlerNames,
        retry: RetryPolicy | None,
    ) -> None:
        self._operation = operation
        self._names = names
        self._retry = retry
        self._calls_tool = isinstance(operation.operation_id, ToolsetCallToolId)

    @property
    def operation(self) -> DurableOperation[ParamsT, WireT, ResultT]:
        return self._operation

    async def __call__(self, params: ParamsT, *, config: object | None = None) -> ResultT:
        run = AgentRun.of(run_context_of(params))
        context = current() or run.context
        operation_id = self._operation.operation_id
        handler_id = self._names.name_of(operation_id, params)
        document = document_of(operation_id, params, run)
        kind, step_id, sequence = place_of(operation_id, params, document.data, run, context)
        key = context.key(step_id, sequence)
        raised: UnitFailed | None = None

        async def handler() -> Success:
            nonlocal raised
            try:
                return Success(await self._execute(params, handler_id))
            except Exception as error:
                raised = UnitFailed(key, error)
                raise raised from error

        performed = await context.perform(
            kind,
            step_id,
            sequence,
            handler_id,
            document.data,
            handler,
            retry=self._retry_for(params, config),
            cuts=document.cuts,
        )
        record_durable_unit(executed=not performed.replayed)
        return self._result(params, run, key, performed, raised)

    async def _execute(self, params: ParamsT, handler_id: str) -> bytes:
        """Call the operation and return its result as it is journalled."""
        spending: Spending | None = None
        ctx = run_context_of(params)
        if self._calls_tool and ctx is not None:
            spending = Spending(ctx.usage)
            params = spending.counted(params)
        with durable_unit_scope():
            result = await self._operation.handler(params)
        what = f"the result of {handler_id}"
        try:
            payload = self._operation.result_codec.dump(result)
        except (PydanticSerializationError, TypeError) as error:
            raise InvalidPayload(
                f"{what} cannot be written to the journal: {error}; return a value that JSON has"
            ) from error
        if isinstance(result, ModelResponse):
            payload = slim(cast("dict[str, Any]", payload))
        if spending is None:
            return encode(payload, what=what)
        written: dict[str, Any] = {"result": payload}
        if (spent := spending.written()) is not None:
            written["usage"] = spent
        return encode(written, what=what)

    def _result(
        self,
        params: ParamsT,
        run: AgentRun,
        key: str,
        performed: Performed,
        raised: UnitFailed | None,
    ) -> ResultT:
        """Return what the journal holds, read the same way on every execution."""
        try:
            payload = decode(performed.output(key))
        except OperationFailed as failure:
            cause = raised.error if raised is not None else None
            raise raised_from(failure) from cause
        ctx = run_context_of(params)
        if self._calls_tool and ctx is not None:
            if ctx.tool_call_id is not None:
                run.times.learn_return(ctx.tool_call_id, performed.finished_at)
            add_spent(payload.get("usage"), ctx)
            payload = payload["result"]
        result = self._operation.result_codec.load(payload)
        if isinstance(result, ModelResponse):
            run.learn(ctx.run_step if ctx is not None else 0, result)
        return result

    def _retry_for(self, params: ParamsT, config: object | None) -> RetryPolicy | None:
        if isinstance(params, ModelRequestParams):
            return None if self._retry is None else for_units(self._retry, of_model=True)
        if self._calls_tool and isinstance(config, ToolConfig) and config.retry is not None:
            return for_units(config.retry, of_model=False)
        return None
