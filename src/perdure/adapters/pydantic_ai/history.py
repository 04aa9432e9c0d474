from __future__ import annotations

from datetime import datetime

from pydantic import TypeAdapter
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.ui.vercel_ai import VercelAIAdapter
from pydantic_ai.ui.vercel_ai.request_types import UIMessage

from perdure.turn import Turn


async def history_of(turn: Turn) -> list[ModelMessage]:
    """Return the conversation that a turn answers, for `agent.run(message_history=...)`; recorded.

    It ends with what was said, or with what a tool came to, so the agent needs no other prompt:
    texts of an answer that is to go on differently are left out at the end. What came to no answer
    is left out: whatever a run that was cancelled had half done never reaches a model.
    """
    messages = TypeAdapter(list[UIMessage]).validate_python(await turn.messages())
    history = VercelAIAdapter.load_messages(messages)
    for message in history:
        # Stamped as they are loaded, which each execution would do at another time.
        _date(message, turn.started_at)
    while history and isinstance(last := history[-1], ModelResponse) and not last.tool_calls:
        history.pop()
    return history


def _date(message: ModelMessage, at: datetime) -> None:
    for dated in (message, *message.parts):
        if getattr(dated, "timestamp", None) is not None:
            dated.timestamp = at  # pyright: ignore[reportAttributeAccessIssue]
