from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter
from pydantic_ai.agent import Agent
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    EventStreamHandlerId,
    ModelRequestId,
    ToolsetCallToolId,
    ToolsetCallToolParams,
    ToolsetGetToolsParams,
    durable_unit_scope,
    revalidate_function_call,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import AgentStreamEvent, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset
from pydantic_ai.usage import RunUsage

from perdure.adapters.pydantic_ai.backend import Unit
from perdure.adapters.pydantic_ai.capability import Durable
from perdure.adapters.pydantic_ai.conversation import slim
from perdure.adapters.pydantic_ai.failures import UnitFailed
from perdure.adapters.pydantic_ai.place import HandlerNames
from perdure.adapters.pydantic_ai.raised import telling
from perdure.canonical import decode, encode
from perdure.journal.failures import failure_of
from perdure.journal.handlers import Handlers, Worker
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.record import Outcome, Success

DepsT = TypeVar("DepsT")

_NOTHING = Success(b"null")


def agent_handlers(
    agent: Agent[DepsT, Any],
    handlers: Handlers,
    *,
    deps: Callable[[Invocation], DepsT] | None = None,
) -> list[tuple[OperationKind, str]]:
    """Register what performs the operations of an agent that runs `durable_on` a runtime elsewhere.

    Returns their kinds and handler ids, which are the registrations that a runtime asks for.

    They are its model requests, its tools, its MCP servers and its handler of events: call it once
    the agent has all of its tools. `deps` makes the dependencies of each of them, None for none,
    since those of `agent.run` stay where that is. What it registers is called at least once.

    Raises `UserError` for an agent without `Durable`, and `InvalidFunction` for one of a name that
    another one has.
    """
    durable = Durable[Any].from_agent(agent)
    if durable is None:
        raise UserError(f"agent {agent.name!r} has no Durable() among its capabilities")
    workers = dict(_Served(agent, durable, deps).workers())
    for (kind, handler_id), worker in workers.items():
        handlers.register(kind, handler_id, worker)
    return [*workers]


class _Served:
    """An agent whose operations are performed one by one, as they are asked for."""

    def __init__(
        self,
        agent: Agent[Any, Any],
        durable: Durable[Any],
        deps: Callable[[Invocation], Any] | None,
    ) -> None:
        self._agent = agent
        self._durable = durable
        self._deps = deps

    def workers(self) -> Iterator[tuple[tuple[OperationKind, str], Worker]]:
        """Yield what performs each kind of operation and handler id."""
        durable = self._durable
        names = HandlerNames(durable.name, durable.default_model_id)
        models = {
            names.named(ModelRequestId(each, streaming=streams, model_name="")): (each, streams)
            for each in (None, *durable.models)
            for streams in (False, True)
        }
        for handler_id, (model_id, streams) in models.items():
            kind = OperationKind.MODEL_STREAM if streams else OperationKind.MODEL_REQUEST
            yield (kind, handler_id), self._asking(model_id, streams=streams)
        for toolset, unit in durable.operations():
            operation_id = unit.operation.operation_id
            if isinstance(toolset, FunctionToolset):
                for name in toolset.tools:
                    handler_id = names.named(operation_id, name)
                    yield (OperationKind.TOOL_CALL, handler_id), self._calling(toolset, unit)
            elif not isinstance(toolset, DynamicToolset):
                handler_id = names.named(operation_id)
                yield (OperationKind.MCP_REQUEST, handler_id), self._asking_server(toolset, unit)
        if durable.event_handler is not None:
            delivery = OperationKind.EVENT_DELIVERY
            yield (delivery, names.named(EventStreamHandlerId())), self._delivering

    def _asking(self, model_id: str | None, *, streams: bool) -> Worker:
        async def ask(invocation: Invocation) -> Outcome:
            async def asked() -> Success:
                model = self._model(model_id)
                document = decode(invocation.input_json, what="a model request")
                messages = ModelMessagesTypeAdapter.validate_python(document["messages"])
                parameters = _parameters().validate_python(document["parameters"])
                request = (messages, document["settings"], parameters)
                if streams:
                    response = await self._streamed(invocation, model, request)
                else:
                    response = await model.request(*request)
                written = cast("dict[str, Any]", JSON_CODEC.dump(ModelResponse, response))
                return Success(encode(slim(written), what="the model's response"))

            return await _made(invocation, asked)

        return ask

    async def _streamed(
        self, invocation: Invocation, model: Model, request: tuple[Any, Any, Any]
    ) -> ModelResponse:
        ctx = self._context(invocation, model)
        async with model.request_stream(*request, ctx) as stream:
            handler = self._durable.event_handler
            if handler is not None:
                await handler(ctx, stream)
            async for _ in stream:
                pass
            return stream.get()

    def _calling(self, toolset: FunctionToolset[Any], unit: Unit[Any, Any, Any]) -> Worker:
        async def call(invocation: Invocation) -> Outcome:
            try:
                params = await self._params(toolset, invocation)
            except Exception as error:  # noqa: BLE001 - recorded, and raised where the agent is
                return _failed(invocation, error)
            return await unit.perform(params, invocation)

        return call

    def _asking_server(self, server: Any, unit: Unit[Any, Any, Any]) -> Worker:
        async def ask(invocation: Invocation) -> Outcome:
            document = decode(invocation.input_json, what="a request to a server")
            if not isinstance(unit.operation.operation_id, ToolsetCallToolId):
                ctx = self._context(invocation, self._model(None), run_step=document["run_step"])
                return await unit.perform(ToolsetGetToolsParams(ctx), invocation)
            ctx = self._context_of_call(invocation, document)
            tool = server.tool_for_tool_def(ToolDefinition(name=document["tool"]), ctx=ctx)
            arguments = document["arguments"]
            params = ToolsetCallToolParams(
                document["tool"], tool_args=arguments, ctx=ctx, tool=tool
            )
            return await unit.perform(params, invocation)

        return ask

    async def _params(
        self, toolset: FunctionToolset[Any], invocation: Invocation
    ) -> ToolsetCallToolParams:
        """Return a call as the tool was called in the agent's code."""
        document = decode(invocation.input_json, what="a tool call")
        name = document["tool"]
        definition = toolset.tools[name].tool_def
        ctx = self._context_of_call(invocation, document)
        tool = toolset.tool_for_tool_def(definition, ctx=ctx, original_name=name)
        ctx.max_retries = tool.max_retries
        params = ToolsetCallToolParams(name, tool_args=document["arguments"], ctx=ctx, tool=tool)
        return await revalidate_function_call(
            toolset, params, engine_spec=self._durable.engine_spec
        )

    def _context_of_call(self, invocation: Invocation, document: Any) -> RunContext[Any]:
        call = document["call"]
        return self._context(
            invocation,
            self._model(None),
            tool_name=document["tool"],
            tool_call_id=call["id"],
            retry=call["retry"],
            tool_call_approved=call.get("approved", False),
            tool_call_metadata=call.get("metadata"),
        )

    async def _delivering(self, invocation: Invocation) -> Outcome:
        handler = self._durable.event_handler
        assert handler is not None

        async def delivered() -> Success:
            document = decode(invocation.input_json, what="an event")
            event = _events().validate_python(document["event"])
            await handler(self._context(invocation, self._model(None)), _alone(event))
            return _NOTHING

        return await _made(invocation, delivered)

    def _context(self, invocation: Invocation, model: Model, **call: Any) -> RunContext[Any]:
        deps = None if self._deps is None else self._deps(invocation)
        return RunContext(deps=deps, model=model, usage=RunUsage(), agent=self._agent, **call)

    def _model(self, model_id: str | None) -> Model:
        known = self._agent.model if model_id is None else self._durable.models[model_id]
        assert known is not None
        return infer_model(known)


async def _made(invocation: Invocation, work: Callable[[], Awaitable[Success]]) -> Outcome:
    try:
        with durable_unit_scope():
            return await work()
    except Exception as error:  # noqa: BLE001 - recorded, and raised where the agent is
        return _failed(invocation, error)


def _failed(invocation: Invocation, error: Exception) -> Outcome:
    return telling(failure_of(UnitFailed(invocation.stable_key, error)))


async def _alone(event: AgentStreamEvent) -> AsyncGenerator[AgentStreamEvent]:
    yield event


@functools.cache
def _parameters() -> TypeAdapter[ModelRequestParameters]:
    return TypeAdapter(ModelRequestParameters)


@functools.cache
def _events() -> TypeAdapter[AgentStreamEvent]:
    return TypeAdapter(AgentStreamEvent)
