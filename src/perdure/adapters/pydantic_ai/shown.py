from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any, Final

import msgspec
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities import ProcessEventStream
from pydantic_ai.messages import (
    AgentStreamEvent,
    EnqueuedMessagesEvent,
    FunctionToolCallEvent,
    PartEndEvent,
    PartStartEvent,
    ToolCallEvent,
    ToolCallPart,
    ToolResultEvent,
)
from pydantic_ai.tools import AgentDepsT, RunContext
from pydantic_ai.ui.vercel_ai import VercelAIEventStream
from pydantic_ai.ui.vercel_ai.response_types import BaseChunk, DoneChunk

from perdure.adapters.pydantic_ai.agent_run import AgentRun
from perdure.context import current
from perdure.session.codec.ui_texts import as_step
from perdure.showing import Showing

_FRAME: Final = frozenset({"start", "start-step", "finish-step", "finish"})
"""Chunks that begin and end a message of which one request is not the whole."""


_SEEN: Final = ToolCallEvent, EnqueuedMessagesEvent
"""What people see anyway: calls stand in the request that asked for them, words where they said."""


class ShownEvents:
    """An event stream handler that shows people what an agent does, and calls another one.

    What a model streams, and what tools come to, is shown where the agent answers in a session: not
    what an agent does inside of another one's tool, which is that tool's own affair.
    """

    def __init__(self, handler: EventStreamHandler[Any] | None) -> None:
        self.handler = handler

    def replaces(self) -> bool:
        """Return whether a second stream takes the place of one that broke off, for all who saw it.

        So it is for people on a session, and not for a handler.
        """
        context = current()
        return self.handler is None and context is not None and context.in_turn

    async def __call__(
        self, ctx: RunContext[AgentDepsT], events: AsyncIterable[AgentStreamEvent]
    ) -> None:
        """Take events in, those of one request or a single one."""
        context = current()
        showing = None if context is None else context.showing
        if showing is None or AgentRun.of(ctx).context.nested:
            if self.handler is not None:
                await self.handler(ctx, events)
            return
        if self.handler is not None:
            events = ProcessEventStream(self.handler).wrap_run_event_stream(ctx, stream=events)
        assert context is not None
        assert context.performing is not None
        await _show(showing, context.performing, events)


async def ask(showing: Showing, key: str, approval_id: str, tool_call_id: str) -> None:
    """Show that a call waits for somebody to say whether it may be made."""
    chunk = {
        "type": "tool-approval-request",
        "approvalId": approval_id,
        "toolCallId": tool_call_id,
    }
    await showing.once(key, [chunk], of_call=tool_call_id)


async def _show(showing: Showing, key: str, events: AsyncIterable[AgentStreamEvent]) -> None:
    """Show the events of a request as one step, and what is told of a call where the call is."""
    iterator = aiter(events)
    first = await anext(iterator, None)
    if isinstance(first, PartStartEvent):
        await showing.step(key, as_step(_chunks(_again(first, iterator))))
    elif first is not None and not isinstance(first, _SEEN):
        told = [chunk async for chunk in _chunks(_again(first, iterator))]
        call = first.part.tool_call_id if isinstance(first, ToolResultEvent) else None
        if told:
            await showing.once(key, told, of_call=call)
    async for _ in iterator:
        pass  # A handler of the user's hears of what is not shown, too.


async def _again(
    first: AgentStreamEvent, rest: AsyncIterable[AgentStreamEvent]
) -> AsyncGenerator[AgentStreamEvent]:
    yield first
    async for event in rest:
        yield event


async def _chunks(events: AsyncIterable[AgentStreamEvent]) -> AsyncGenerator[dict[str, Any]]:
    """Yield events as the SDK's own stream for user interfaces has them; raise what they raise."""
    reading = _Reading(events)
    stream = VercelAIEventStream[Any, Any](sdk_version=7)
    chunk: BaseChunk
    async for chunk in stream.transform_stream(reading.complete()):
        if not isinstance(chunk, DoneChunk):
            document = msgspec.json.decode(chunk.encode(stream.sdk_version))
            if document["type"] not in _FRAME:
                yield document
    if reading.failed is not None:
        # Raised here: the SDK would make a part of the message of it, and the next attempt is not
        # to begin with that.
        raise reading.failed


class _Reading:
    def __init__(self, events: AsyncIterable[AgentStreamEvent]) -> None:
        self._events = events
        self.failed: Exception | None = None

    async def complete(self) -> AsyncGenerator[Any]:
        """Yield events, and with the end of each call that it is to be made as it stands."""
        try:
            async for event in self._events:
                yield event
                if isinstance(event, PartEndEvent) and isinstance(event.part, ToolCallPart):
                    yield FunctionToolCallEvent(event.part, args_valid=True)
        except Exception as error:  # noqa: BLE001 - raised again behind the SDK's stream
            self.failed = error
