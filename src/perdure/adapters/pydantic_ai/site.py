from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from traceback import walk_tb
from typing import Literal, TypeAlias

from pydantic_ai.agent import Agent
from pydantic_ai.exceptions import UserError

from perdure.adapters.pydantic_ai.failures import raised_from
from perdure.adapters.pydantic_ai.raised import told
from perdure.context import Context, current
from perdure.ids import check_identifier
from perdure.journal.binding import check_record
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.record import Failure, Outcome, failed_of
from perdure.journal.runtime import Runtime
from perdure.journal.spending import Spending
from perdure.ports import Handler
from perdure.recorder import Performed
from perdure.retry import RetryPolicy, advice_of

ToolMode: TypeAlias = Literal["sequential", "parallel_ordered_events"]

_site: ContextVar[Site | None] = ContextVar("perdure_agents_on", default=None)


class Site:
    """Where agents are durable outside of a run of perdure: a runtime that has their operations.

    Its operations have the same identities and inputs as inside a run. Whoever performs them knows
    the agent too: what it does is told by handler id and input alone.
    """

    nested = False
    in_turn = False
    showing = None
    has_streamed = False

    def __init__(
        self, runtime: Runtime, run_id: str, namespace: str, now: Callable[[], float]
    ) -> None:
        self.run_id = run_id
        self.namespace = namespace
        self.now = now
        self.started_at = now()
        self._runtime = runtime
        self._counters: Counter[str] = Counter()
        self._spending = Spending()

    def clock(self) -> datetime:
        """Return the time at which the code is, also on a replay."""
        return datetime.fromtimestamp(self.now(), UTC)

    @property
    def origin(self) -> str:
        """The run whose ids this one draws: itself."""
        return self.run_id

    def counter(self, name: str) -> int:
        """Return 1, 2, 3, … for each use of a name."""
        self._counters[name] += 1
        return self._counters[name]

    def place(self, step_id: str) -> str:
        """Return the whole step id of an operation."""
        return f"{self.namespace}.{step_id}" if self.namespace else step_id

    def key(self, step_id: str, sequence: int) -> str:
        """Return the stable key of an operation."""
        return f"{self.run_id}/{self.place(step_id)}/{sequence}"

    def recorded(self, step_id: str, sequence: int) -> bool:
        """Return whether an operation is known to be recorded, which a runtime does not tell."""
        del step_id, sequence
        return False

    async def spending(self) -> Spending:
        """Return what agents have spent here."""
        return self._spending

    async def perform(
        self,
        kind: OperationKind,
        step_id: str,
        sequence: int,
        handler_id: str,
        input_json: bytes,
        handler: Handler,
        *,
        retry: RetryPolicy | None = None,
        cuts: tuple[int, ...] = (),
        effect: object = None,
    ) -> Performed:
        """Have the runtime perform an operation, which nobody does in this process.

        Each retry is an operation of its own, `.retry.1` and so on, after a delay by `retry`: with
        an effect there is none, since its target would not recognise it.

        Durable when it returns and if it raises: as the runtime promises.
        """
        del handler, cuts
        if effect is not None:
            retry = None
        attempt, spent_ms = 1, 0
        outcome = await self._executed(kind, step_id, sequence, handler_id, input_json)
        while isinstance(outcome, Failure) and retry is not None:
            delay_ms = self._delay_ms(outcome, retry, sequence, attempt)
            if delay_ms is None or not retry.affords(delay_ms, spent_ms):
                break
            await asyncio.sleep(delay_ms / 1000)
            spent_ms += delay_ms
            again = f"{step_id}.retry.{attempt}"
            attempt += 1
            outcome = await self._executed(kind, again, sequence, handler_id, input_json)
        return Performed(outcome, replayed=False, attempt=attempt, finished_at=self.now())

    async def _executed(
        self, kind: OperationKind, step_id: str, sequence: int, handler_id: str, input_json: bytes
    ) -> Outcome:
        step = self.place(step_id)
        invocation = Invocation(self.run_id, step, sequence, kind, handler_id, input_json)
        record = await self._runtime.execute(invocation)
        check_record(record, invocation)
        outcome = told(record.outcome)
        self._spending.count(invocation.stable_key, kind, outcome)
        return outcome

    def _delay_ms(
        self, failure: Failure, retry: RetryPolicy, sequence: int, attempt: int
    ) -> int | None:
        """Return how long to wait before another try, or None where none is to follow."""
        error = raised_from(failed_of(self.run_id, failure))
        if attempt >= retry.attempts or not retry.allows(error, attempt):
            return None
        advice = advice_of(error, self.now())
        return retry.delay_ms(self.run_id, attempt, sequence, advice.retry_after_seconds)


@contextmanager
def durable_on(
    runtime: Runtime, *, run_id: str, namespace: str = "", now: Callable[[], float] = time.time
) -> Generator[None]:
    """Make agents that have `Durable` durable on a runtime, for as long as this is entered.

        with durable_on(workflow_runtime(), run_id=workflow.info().workflow_id, now=workflow.time):
            answer = await agent.run(question)

    Each of their operations is one of `run_id` on the runtime, performed by handlers that
    `agent_handlers` registers. Steps are named below `namespace`. `now` stamps messages: give that
    of a workflow inside of one.

    Raises `InvalidInvocation` for a name that is no identifier, and `UserError` where an agent
    inside of a workflow calls a function that is not async.
    """
    check_identifier(run_id, "run id")
    if namespace:
        check_identifier(namespace, "namespace")
    token = _site.set(Site(runtime, run_id, namespace, now))
    try:
        with _in_one_thread():
            yield
    finally:
        _site.reset(token)


@contextmanager
def on_site(mode: ToolMode) -> Generator[None]:
    """Keep the code of an agent in an order that can be repeated."""
    with Agent.parallel_tool_call_execution_mode(mode), Agent.using_sleep(asyncio.sleep):
        yield


@contextmanager
def _in_one_thread() -> Generator[None]:
    """Refuse what would need a thread in a loop that has none, as that of a workflow."""
    loop = type(asyncio.get_running_loop())
    if loop.run_in_executor is not asyncio.AbstractEventLoop.run_in_executor:
        yield
        return
    # Otherwise anyio would start a thread, of which such a loop knows nothing.
    with ThreadPoolExecutor() as unused, Agent.using_thread_executor(unused):
        try:
            yield
        except NotImplementedError as error:
            *_, (frame, _) = walk_tb(error.__traceback__)
            if frame.f_code is not asyncio.AbstractEventLoop.run_in_executor.__code__:
                raise
            raise UserError(
                "a function of an agent inside of a workflow is not async, such as one for"
                " instructions or an output validator, and a workflow has no threads: make it"
                " async def"
            ) from error


def here() -> Context | Site | None:
    """Return what agents are durable on in this code: the run that it is part of, or a runtime."""
    return current() or _site.get()
