from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Iterator,
    Sequence,
)
from contextlib import aclosing
from dataclasses import replace

from pydantic_ai.messages import (
    AgentStreamEvent,
    EnqueuedMessagesEvent,
    ModelMessage,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolResultEvent,
)

from perdure.adapters.pydantic_ai.agent_run import AgentRun


async def settled(
    events: AsyncIterable[AgentStreamEvent], run: AgentRun, messages: Sequence[ModelMessage]
) -> AsyncGenerator[AgentStreamEvent]:
    """Give events the times that the journal knows, and ids that a replay gives too.

    So before anybody sees them. `messages` is the conversation before them. Closes the events.
    """
    try:
        async for event in events:
            if isinstance(event, ToolResultEvent):
                run.times.settle_part(event.part, messages)
            elif isinstance(event, EnqueuedMessagesEvent):
                run.times.settle(messages)
                run.times.settle(event.messages)
                event.enqueue_id = f"{run.run_id}/enqueued/{run.count('enqueued')}"
            yield event
    finally:
        close: Callable[[], Awaitable[None]] | None = getattr(events, "aclose", None)
        if close is not None:
            await close()


async def normalised(
    events: AsyncGenerator[AgentStreamEvent],
) -> AsyncGenerator[AgentStreamEvent]:
    """Give text and thinking as an empty start and one delta, and everything else as it is.

    A response out of the journal has its parts whole. Written like this it reads as a stream does,
    and those who look only at deltas miss nothing. Closes the events.
    """
    async with aclosing(events):
        async for event in events:
            if isinstance(event, PartStartEvent):
                for piece in _started(event):
                    yield piece
            else:
                yield event


def _started(event: PartStartEvent) -> Iterator[ModelResponseStreamEvent]:
    part = event.part
    match part:
        case TextPart():
            yield replace(event, part=replace(part, content=""))
            yield PartDeltaEvent(index=event.index, delta=TextPartDelta(part.content))
        case ThinkingPart():
            yield replace(event, part=replace(part, content="", signature=None))
            delta = ThinkingPartDelta(
                content_delta=part.content,
                signature_delta=part.signature,
                provider_name=part.provider_name,
            )
            yield PartDeltaEvent(index=event.index, delta=delta)
        case _:
            yield event
