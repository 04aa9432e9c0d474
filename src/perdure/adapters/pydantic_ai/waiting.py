from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, get_args

import msgspec
from pydantic import JsonValue
from pydantic_ai.exceptions import ToolFailed, UserError
from pydantic_ai.external_events import ExternalEventError, ExternalEventWaiter
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import (
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolApproved,
    ToolDenied,
)

from perdure.adapters.pydantic_ai.agent_run import AgentRun
from perdure.adapters.pydantic_ai.place import name_of
from perdure.adapters.pydantic_ai.shown import ask
from perdure.approvals import (
    ASKING,
    Answer,
    Answered,
    ApprovalKind,
    Approve,
    Deny,
    Result,
    item_of,
    shown_item,
)
from perdure.canonical import decode, encode
from perdure.errors import WaitTimedOut
from perdure.external_events import EventAnswer, message_named, token_of
from perdure.inbox import SAID, Message
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.record import Failure, Outcome, Success
from perdure.waits import Wait

_EVENT_HANDLER = "perdure.external_event"


class EventWaiter(ExternalEventWaiter):
    """Serves the SDK's waits for external events through the inbox of the run."""

    def __init__(self, run: AgentRun) -> None:
        self._run = run

    async def wait(
        self,
        name: str,
        *,
        ask: Callable[[str], Awaitable[JsonValue]],
        timeout: timedelta | None,  # noqa: ASYNC109 - the SDK's name
    ) -> JsonValue:
        """Ask once, and unless that answered, return what the token is resolved with."""
        run = self._run
        if run.context.nested:
            raise UserError(
                f"an agent inside of a tool cannot wait for {name!r}, which comes from outside: it"
                " would hold its worker; have the agent wait that the tool is of"
            )
        step = f"{run.prefix}event.{name_of(name)}"
        number = run.count(step)
        message = message_named(run.context.place(step), number)
        token = token_of(run.context.run_id, message)

        async def asked() -> Outcome:
            return Success(encode(await ask(token), what=f"the answer to {name}"))

        performed = await run.context.perform(
            OperationKind.TOOL_CALL,
            f"{step}.ask",
            number,
            "perdure.external_event.ask",
            encode({"event": message}),
            asked,
        )
        answer = decode(performed.output(token), what=f"the answer to {name}")
        return await self._resolved(step, number, message, timeout) if answer is None else answer

    async def _resolved(
        self, step: str, number: int, message: str, limit: timedelta | None
    ) -> JsonValue:
        async def said(found: Message) -> Outcome:
            return Success(found.payload_json or b"{}")

        seconds = None if limit is None else limit.total_seconds()
        late = Failure("WaitTimedOut", message=f"No resolution arrived within {limit}.")
        performed = await self._run.inside.wait(
            step,
            number,
            _EVENT_HANDLER,
            encode({"name": message, "timeout_ms": None if seconds is None else seconds * 1000}),
            Wait(message, said, seconds, late),
        )
        if isinstance(performed.outcome, Failure):
            raise ExternalEventError(performed.outcome.message)
        answer = msgspec.json.decode(performed.output(message), type=EventAnswer)
        if answer.failure is not None:
            raise ExternalEventError(answer.failure)
        return answer.payload


def ends_with_requests(ctx: RunContext[Any]) -> bool:
    """Return whether an agent says that it ends with the calls that need an answer."""
    output: Any = None if ctx.agent is None else ctx.agent.output_type
    outputs: list[Any] = [*output] if isinstance(output, list | tuple) else [output]
    return any(DeferredToolRequests in (each, *get_args(each)) for each in outputs)


async def answers_to(
    ctx: RunContext[Any], requests: DeferredToolRequests, seconds: float | None
) -> DeferredToolResults | None:
    """Wait for an answer to each call that an agent cannot make by itself; all are asked for.

    None where the agent runs inside an operation, which would hold its worker for as long.
    """
    run = AgentRun.of(ctx)
    if run.context.nested:
        return None
    calls = [
        *((call, ApprovalKind.APPROVAL) for call in requests.approvals),
        *((call, ApprovalKind.EXTERNAL) for call in requests.calls),
    ]
    waits = [_ask(run, ctx, call, kind, seconds) for call, kind in calls]
    answers = await asyncio.gather(*waits, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    results = DeferredToolResults()
    for (call, kind), answer in zip(calls, answers, strict=True):
        assert not isinstance(answer, BaseException)
        _add(results, call, kind, answer.answer)
        if answer.by:
            results.answered_by[call.tool_call_id] = answer.by
    return results


async def _ask(
    run: AgentRun,
    ctx: RunContext[Any],
    call: ToolCallPart,
    kind: ApprovalKind,
    seconds: float | None,
) -> Answered:
    number = run.call_number(ctx, call.tool_call_id)
    if number is None:
        raise UserError(
            f"the call {call.tool_call_id!r} of {call.tool_name} is in no response of the model,"
            " and inside a run only those calls can be answered later"
        )
    step_id = run.once(run.context.namespace, f"{run.prefix}{ASKING}", number)
    arguments = encode(call.args_as_dict(), what=f"{call.tool_name}: arguments")

    async def show() -> None:
        showing = run.inside.showing
        if showing is not None and kind is ApprovalKind.APPROVAL:
            asked = shown_item(run.context.run_id, item_of(run.context.place(step_id), number))
            await ask(showing, run.context.key(step_id, number), asked, call.tool_call_id)

    try:
        return await run.inside.ask(
            step_id, number, call.tool_name, arguments, kind, seconds, show=show
        )
    except WaitTimedOut as late:
        return Answered(Deny(f"No decision on this tool call arrived: {late}."), None)


def _add(
    results: DeferredToolResults, call: ToolCallPart, kind: ApprovalKind, answer: Answer
) -> None:
    match answer:
        case Approve(arguments=arguments):
            results.approvals[call.tool_call_id] = ToolApproved(override_args=arguments)
        case Deny(message=message) if kind is ApprovalKind.APPROVAL:
            denied = ToolDenied(message) if message else ToolDenied()
            results.approvals[call.tool_call_id] = denied
        case Deny(message=message):
            results.calls[call.tool_call_id] = ToolFailed(message or "The tool call was denied.")
        case Result(value=value, is_error=is_error):
            results.calls[call.tool_call_id] = ToolFailed(str(value)) if is_error else value


async def steering(ctx: RunContext[Any], name: str) -> list[str]:
    """Return what people have said so far, for the request that is about to be made."""
    run = AgentRun.of(ctx)
    context = run.inside
    said: list[str] = []
    while not context.nested:
        step_id = f"{run.prefix}steer"
        invocation = Invocation(
            context.run_id,
            context.place(step_id),
            run.count("steer"),
            OperationKind.APPROVAL_RESUME,
            "perdure.take",
            encode({"name": name}),
        )
        found = await context.poll(invocation, name)
        if found is None:
            break
        text = decode(found, what=f"message {name}")
        if name == SAID:
            if context.showing is not None:
                context.showing.take_up([text["codec_message_id"]])
            text = text["said"]
        said.append(text if isinstance(text, str) else encode(text).decode())
    return said
