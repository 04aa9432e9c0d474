from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, ClassVar, cast

from pydantic_ai.agent import Agent, EventStreamHandler
from pydantic_ai.capabilities import ModelFallback, RequestInput
from pydantic_ai.capabilities.abstract import (
    CapabilityOrdering,
    WrapModelRequestHandler,
    WrapRunHandler,
)
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    conversation_id_from_run_id,
    replay_scope,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.external_events import external_event_scope
from pydantic_ai.messages import AgentStreamEvent, ModelResponse
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import (
    AgentDepsT,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
)
from pydantic_ai.toolsets import AbstractToolset

from perdure.adapters.pydantic_ai.agent_run import AgentRun, next_run_id
from perdure.adapters.pydantic_ai.backend import Backend, Unit
from perdure.adapters.pydantic_ai.events import normalised, settled
from perdure.adapters.pydantic_ai.failures import for_units
from perdure.adapters.pydantic_ai.one_try import check_one_try, one_try
from perdure.adapters.pydantic_ai.place import HandlerNames
from perdure.adapters.pydantic_ai.shown import ShownEvents
from perdure.adapters.pydantic_ai.site import Site, ToolMode, here, on_site
from perdure.adapters.pydantic_ai.toolsets import Toolsets
from perdure.adapters.pydantic_ai.waiting import (
    EventWaiter,
    answers_to,
    ends_with_requests,
    steering,
)
from perdure.canonical import encode
from perdure.context import Context
from perdure.errors import RunSignal
from perdure.inbox import SAID
from perdure.journal.budget import Budget
from perdure.journal.invocation import OperationKind
from perdure.journal.record import Success
from perdure.retry import RetryPolicy


class Durable(BaseDurabilityCapability[AgentDepsT]):
    """Makes an agent durable inside a run: `Agent(..., name="support", capabilities=[Durable()])`.

    Every model request, tool call, MCP request and event delivery is then an operation of the run:
    recorded once, and answered from the journal when the run goes on in another process. Outside
    of a run the agent behaves as if this were not there, unless it is `durable_on` a runtime.
    Dependencies are never journalled.

    The agent needs a `name` and each of its toolsets an `id`: they name what is in the journal.
    Code between operations runs again on a replay, and so do output functions, validators,
    dynamic instructions and an `event_stream_handler` given to `agent.run`; the one given here is
    an operation of its own, and sees a stream while it arrives. Whether there is one decides
    whether requests are streamed, which a run under way must not see changed.

    `retry` is for model requests and replaces the retries of the provider's client, which are off
    inside a run; None for none. A tool declares its own, and what it does to the world, with
    `effect`, `operation` or `ToolConfig`. `trusted_servers` are the ids of MCP toolsets whose
    annotations are believed: which of their tools only read, and which drop a repeat.

    Calls that need approval, or that are done elsewhere, wait until `App.resolve` answers them, for
    `answer_seconds` or for ever; the run takes nothing but rows meanwhile. With
    `wait_for_answers=False` the agent ends with `DeferredToolRequests` instead, and so it does by
    default where that is one of its `output_type`.
    `steered_by` is the name of messages, sent by `App.send`, that are put into the conversation as
    the user's words before the model is asked next.

    Where the run answers in a session, people see there what the model streams and what tools come
    to, as it happens, and what they say meanwhile is put into the conversation in the same way.
    A stream that breaks off is asked for again there, and takes the place of what was seen of it,
    unless an `event_stream_handler` has seen its beginning.
    `budget` is what the whole run may use, with its other agents. Once it is used up, this agent
    and those inside of its tools end with `BudgetExceeded` instead of asking for more.
    """

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="perdure",
        durable_unit_noun="operation",
        durable_container_noun="run",
        codec=JSON_CODEC,
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-in-durable-unit",
            "dynamic": "enter-never",
        },
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key="perdure",
        cancellation_error_types=(RunSignal,),
    )

    def __init__(
        self,
        *,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        models: Mapping[str, Model] | None = None,
        name: str | None = None,
        retry: RetryPolicy | None = RetryPolicy(),  # noqa: B008 - a frozen value
        sequential_tools: bool = False,
        trusted_servers: Collection[str] = (),
        wait_for_answers: bool | None = None,
        answer_seconds: float | None = None,
        steered_by: str | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._shown = ShownEvents(event_stream_handler)
        super().__init__(models=models, event_stream_handler=self._shown, name=name)
        self.models = dict(models or {})
        self._retry = retry
        self._sequential_tools = sequential_tools
        self._trusted_servers = frozenset(trusted_servers)
        self._waits_for_answers = wait_for_answers
        self._answer_seconds = answer_seconds
        self._steered_by = steered_by
        self._budget = budget
        self._toolsets = Toolsets()

    @property
    def in_durable_context(self) -> bool:
        """Whether the agent runs inside a run, or on a runtime."""
        return here() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        """Return what performs the agent's operations."""
        names = HandlerNames(self.name, self.default_model_id)
        retry = self._retry
        if retry is not None:
            retry = for_units(retry, of_model=True, replaces=self._shown.replaces)
        return Backend(names, retry, self._toolsets, self._trusted_servers)

    @property
    def event_handler(self) -> EventStreamHandler[AgentDepsT] | None:
        """The handler of events that was given."""
        return self._shown.handler

    def operations(self) -> Iterator[tuple[AbstractToolset[Any], Unit[Any, Any, Any]]]:
        """Yield the agent's toolsets, each with an operation that it has."""
        return self._toolsets.operations(self.name)

    # --- identity --------------------------------------------------------------------------------

    def get_default_run_id(self) -> str | None:
        """Return the id of the next agent run, from its place in the run."""
        context = here()
        return None if context is None else next_run_id(context)

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return an id that follows from the agent run's."""
        return None if here() is None else conversation_id_from_run_id(run_id)

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return when the agent run first began, recorded: its deadline counts from then."""
        match here():
            case Site(started_at=at):
                return datetime.fromtimestamp(at, UTC)
            case Context() as context:
                return await self._begin(context, run_id)
            case None:
                return None

    def get_run_clock(self) -> Callable[[], datetime] | None:
        """Return the clock of a runtime, against which a deadline is measured there."""
        site = here()
        return site.clock if isinstance(site, Site) else None

    async def _begin(self, context: Context, run_id: str) -> datetime:
        async def handler() -> Success:
            return Success(b"null")

        performed = await context.perform(
            OperationKind.TOOL_CALL,
            "agent.begin",
            context.counter("agent.begin"),
            "perdure.agent.begin",
            encode({"run_id": run_id}),
            handler,
        )
        return datetime.fromtimestamp(performed.finished_at, UTC)

    # --- the run ---------------------------------------------------------------------------------

    async def wrap_run(
        self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler
    ) -> AgentRunResult[Any]:
        """Run the agent with its own numbers, in an order that a replay repeats."""
        context = here()
        if context is None:
            return await super().wrap_run(ctx, handler=handler)
        self._toolsets.check_servers(self._trusted_servers)
        run = AgentRun.begin(context, ctx, self._budget)
        if isinstance(context, Site):
            self._check_for_site()
            with replay_scope(), run.entered(), on_site(self._tool_mode):
                return await super().wrap_run(ctx, handler=handler)

        async def sleep(seconds: float) -> None:
            await _sleep(run, seconds)

        with (
            replay_scope(),
            run.entered(),
            external_event_scope(EventWaiter(run)),
            Agent.parallel_tool_call_execution_mode(self._tool_mode),
            Agent.using_sleep(sleep),
        ):
            return await super().wrap_run(ctx, handler=handler)

    @property
    def _tool_mode(self) -> ToolMode:
        return "sequential" if self._sequential_tools else "parallel_ordered_events"

    def _check_for_site(self) -> None:
        """Refuse what only a run of perdure has."""
        self._toolsets.check_lasting()
        waits = bool(self._waits_for_answers) or self._answer_seconds is not None
        if waits or self._steered_by is not None:
            raise UserError(
                "wait_for_answers, answer_seconds and steered_by wait for messages to a run of"
                " perdure, and this agent runs on a runtime: have it end with DeferredToolRequests"
                " in its output_type, and wait for the answers in the code around it"
            )

    async def after_run(
        self, ctx: RunContext[AgentDepsT], *, result: AgentRunResult[Any]
    ) -> AgentRunResult[Any]:
        """Settle the times of the history that the agent run leaves."""
        result = await super().after_run(ctx, result=result)
        if self.in_durable_context:
            AgentRun.of(ctx).times.settle(result.all_messages(), again=True)
        return result

    # --- what comes from outside -----------------------------------------------------------------

    def get_ordering(self) -> CapabilityOrdering:
        """Return that this is innermost, and asked for answers after whoever else has some."""
        return CapabilityOrdering(position="innermost", wrapped_by=(ModelFallback, RequestInput))

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Wait for the answers to calls that need one, where nobody else has answered."""
        waits = self._waits_for_answers
        if waits is None:
            waits = not ends_with_requests(ctx)
        if not isinstance(here(), Context) or not waits:
            return None
        return await answers_to(ctx, requests, self._answer_seconds)

    # --- requests --------------------------------------------------------------------------------

    def get_model_settings(self) -> Any:
        """Return the setting that turns off the retries of the provider's client in a run."""
        return one_try

    async def before_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Put what people said meanwhile into the conversation, before the model is asked."""
        if self.in_durable_context:
            await self._hear(ctx)
        return await super().before_model_request(ctx, request_context)

    async def _hear(self, ctx: RunContext[AgentDepsT]) -> None:
        for name in self._heard():
            for said in await steering(ctx, name):
                ctx.enqueue(said)

    def _heard(self) -> Sequence[str]:
        context = here()
        in_turn = context is not None and context.in_turn
        names = [SAID] if in_turn else []
        return names if self._steered_by is None else [*names, self._steered_by]

    async def wrap_model_request(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        request_context: ModelRequestContext,
        handler: WrapModelRequestHandler,
    ) -> ModelResponse:
        """Settle the conversation before a request, and number the calls of the response."""
        if not self.in_durable_context:
            return await super().wrap_model_request(
                ctx, request_context=request_context, handler=handler
            )
        run = AgentRun.of(ctx)
        run.times.settle(ctx.messages)
        run.times.settle(request_context.messages)
        response = await super().wrap_model_request(
            ctx, request_context=request_context, handler=handler
        )
        run.count_calls(ctx.run_step, response)
        outputs = {tool.name for tool in request_context.model_request_parameters.output_tools}
        if all(call.tool_name in outputs for call in response.tool_calls):
            # What was said while the model gave its last answer is heard before the agent ends.
            await self._hear(ctx)
        return response

    async def prepare_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Settle what others made of the conversation, and check that only one layer retries."""
        if self.in_durable_context:
            AgentRun.of(ctx).times.settle(request_context.messages)
            check_one_try(request_context)
        return await super().prepare_model_request(ctx, request_context)

    # --- events ----------------------------------------------------------------------------------

    @property
    def has_wrap_run_event_stream(self) -> bool:
        """Whether anybody listens, and requests are streamed therefore."""
        context = here()
        in_turn = context is not None and context.in_turn
        return in_turn or self._shown.handler is not None

    async def wrap_run_event_stream(
        self, ctx: RunContext[AgentDepsT], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncGenerator[AgentStreamEvent]:
        """Deliver events to the handler as operations; pass replayed responses on as streams."""
        durable = self.in_durable_context
        if durable:
            stream = settled(stream, AgentRun.of(ctx), ctx.messages)
        delivered = stream
        if self.has_wrap_run_event_stream:
            if durable and not (context := AgentRun.of(ctx).context).nested:
                context.has_streamed = True
            delivered = super().wrap_run_event_stream(ctx, stream=stream)
        events = cast("AsyncGenerator[AgentStreamEvent]", delivered)
        async with aclosing(normalised(events) if durable else events) as passed:
            async for event in passed:
                yield event


async def _sleep(run: AgentRun, seconds: float) -> None:
    """Wait between two looks at a response that a provider has not finished, once."""

    async def handler() -> Success:
        await asyncio.sleep(seconds)
        return Success(b"{}")

    await run.context.perform(
        OperationKind.RETRY_DELAY,
        f"{run.prefix}model.wait",
        run.count("wait"),
        "perdure.model.wait",
        encode({"delay_ms": round(seconds * 1000)}),
        handler,
    )
