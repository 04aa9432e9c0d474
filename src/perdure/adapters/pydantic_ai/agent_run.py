from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.tools import RunContext

from perdure.adapters.pydantic_ai.conversation import Conversation
from perdure.adapters.pydantic_ai.site import Site
from perdure.adapters.pydantic_ai.times import Times
from perdure.context import Context
from perdure.errors import NotInRun
from perdure.journal.budget import Budget

_entered: ContextVar[AgentRun | None] = ContextVar("perdure_agent_run", default=None)


class AgentRun:
    """One run of an agent inside a run of perdure: its numbers, and what the journal told it.

    Numbers come from the order of the code and from places in the model's responses, never from
    the order in which work finishes nor from ids that a provider chose.
    """

    def __init__(
        self,
        context: Context | Site,
        number: int,
        run_id: str,
        history: Sequence[ModelMessage],
        budgets: tuple[Budget, ...] = (),
    ) -> None:
        self.context = context
        self.budgets = budgets
        self.run_id = run_id
        self.prefix = "" if number == 1 else f"agent.{number}."
        self.conversation = Conversation()
        self.times = Times(context.started_at, history)
        self._counters: Counter[str] = Counter()
        self._places: Counter[tuple[str, str, int]] = Counter()
        self._calls_before: dict[int, int] = {}
        self._calls = 0
        self._newest: tuple[int, ModelResponse | None] = (0, None)

    @classmethod
    def begin(
        cls, context: Context | Site, ctx: RunContext[Any], budget: Budget | None = None
    ) -> AgentRun:
        """Begin the agent run that a run context belongs to.

        An agent that runs inside another is held to the budget of that one too.
        """
        run_id = ctx.run_id or next_run_id(context)
        number = _number_in(context, run_id) or context.counter("agent")
        outer = _entered.get()
        budgets = () if outer is None else outer.budgets
        if budget is not None:
            budgets = (*budgets, budget)
        return cls(context, number, run_id, ctx.messages, budgets)

    @classmethod
    def of(cls, ctx: RunContext[Any] | None) -> AgentRun:
        """Return the agent run that is under way in this task."""
        run = _entered.get()
        if run is None or (ctx is not None and ctx.run_id != run.run_id):
            raise NotInRun(
                "a durable operation of an agent was asked for outside of that agent's run; call it"
                " from within agent.run(...)"
            )
        return run

    @property
    def inside(self) -> Context:
        """The context of the run of perdure that this is part of, which alone can wait."""
        assert isinstance(self.context, Context)
        return self.context

    @contextmanager
    def entered(self) -> Generator[None]:
        """Make this the agent run of the operations that are asked for inside."""
        token = _entered.set(self)
        try:
            yield
        finally:
            _entered.reset(token)

    def count(self, name: str) -> int:
        """Return 1, 2, 3, … for each use of a name; for what happens strictly in turn."""
        self._counters[name] += 1
        return self._counters[name]

    def once(self, namespace: str, step_id: str, sequence: int) -> str:
        """Return the step id for one more operation at a place: `.repeat.2` from the second on.

        The same call is made again at its place when it was deferred and then approved, or when a
        capability around it tries it again.
        """
        self._places[namespace, step_id, sequence] += 1
        times = self._places[namespace, step_id, sequence]
        return step_id if times == 1 else f"{step_id}.repeat.{times}"

    def learn(self, run_step: int, response: ModelResponse) -> None:
        """Accept a response that came out of the journal in a step."""
        self.times.learn(response)
        self._newest = (run_step, response)

    def count_calls(self, run_step: int, response: ModelResponse) -> int:
        """Return how many tool calls came before a step's response, and count those in it."""
        before = self._calls_before.setdefault(run_step, self._calls)
        self._calls = max(self._calls, before + len(response.tool_calls))
        return before

    def call_number(self, ctx: RunContext[Any], tool_call_id: str | None) -> int | None:
        """Return the number of a tool call, from 1 over all calls of the run's responses.

        It is the call's place in the newest response that contains its id, because a model may use
        an id again in a later response. None for an id that no response contains.
        """
        if tool_call_id is None:
            return None
        for response in self._responses(ctx):
            for ordinal, call in enumerate(response.tool_calls, 1):
                if call.tool_call_id == tool_call_id:
                    return self.count_calls(ctx.run_step, response) + ordinal
        return None

    def _responses(self, ctx: RunContext[Any]) -> Iterator[ModelResponse]:
        """Yield the responses of the conversation, newest first."""
        step, newest = self._newest
        unread = not ctx.messages or isinstance(ctx.messages[-1], ModelRequest)
        if newest is not None and unread and step == ctx.run_step:
            # A streamed response enters the conversation only after its calls were made.
            yield newest
        for message in reversed(ctx.messages):
            if isinstance(message, ModelResponse):
                yield message


def next_run_id(context: Context | Site) -> str:
    """Return the id of the next agent run that starts in a context."""
    return f"{_ids_in(context)}{context.counter('agent')}"


def _number_in(context: Context | Site, run_id: str) -> int | None:
    """Return the number that `next_run_id` put into an id, or None for an id somebody chose."""
    number = run_id.removeprefix(_ids_in(context))
    return int(number) if number != run_id and number.isdecimal() else None


def _ids_in(context: Context | Site) -> str:
    place = f"{context.namespace}/" if context.namespace else ""
    return f"{context.origin}/{place}agent."
