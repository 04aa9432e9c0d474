from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from perdure.demo.story import ANSWER, ORDER, PAID_CENTS

_PACE_SECONDS: Final = 0.045
_WORD: Final = re.compile(r"\S+\s*")
_ABOUT_MONEY: Final = ("refund", "money", "broken", "lamp", ORDER.lower())

LOOKING: Final = (
    f"I am sorry to hear that. Let me look at order {ORDER} first, and ask where its parcel is."
)
ASKING: Final = (
    f"The lamp was delivered, and {PAID_CENTS / 100:.2f} EUR were paid for it. I would like to pay"
    " that back. This moves money, so I may not do it before somebody says yes."
)
REFUSED: Final = (
    "Nothing was paid back, because that was not approved. If you would like to have it checked"
    " once more, tell me, and I will ask again."
)
EXPLANATION: Final = (
    "You are reading words that one process writes and another one could finish. A worker executes"
    " this turn and shows each piece of my answer while it is made. Kill it right now, with the"
    " button beside this conversation: no goodbye, no clean-up, as when a machine loses its power."
    " What you see here stays for a moment. Then another worker takes the turn over, and as it"
    " begins this step anew, the half answer vanishes and comes once more, whole, and only once."
    " What was finished before is not asked for again: a tool that has answered is replayed from"
    " the journal, and money that was paid back is not paid twice. Reload the page in the middle of"
    " a sentence, open the same conversation in a second tab, or stop me: everybody who reads along"
    " sees the same. And if nobody kills anything, this is simply where the answer ends."
)


def scripted() -> FunctionModel:
    """Return a model that answers every message from a script, slowly enough to be interrupted."""
    return FunctionModel(stream_function=_answer, model_name="scripted")


async def _answer(
    messages: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[str | DeltaToolCalls]:
    del info
    text, calls = _reply(messages)
    for word in _WORD.findall(text):
        yield word
        await asyncio.sleep(_PACE_SECONDS)
    asked = 1 + sum(isinstance(message, ModelResponse) for message in messages)
    for index, (tool, arguments) in enumerate(calls.items(), 1):
        call_id = f"call-{asked}-{index}"
        yield {index: DeltaToolCall(tool, json.dumps(arguments), tool_call_id=call_id)}


def _reply(messages: Sequence[ModelMessage]) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the text of the next response, and the arguments of each tool that it calls."""
    prompt, since = _last_prompt(messages)
    if not any(word in prompt.lower() for word in _ABOUT_MONEY):
        return EXPLANATION, {}
    about = {"order": ORDER}
    answered = sum(isinstance(message, ModelResponse) for message in since)
    if answered == 0:
        return LOOKING, {"look_up_order": about, "track_parcel": about}
    if answered == 1:
        return ASKING, {"refund_order": {**about, "cents": PAID_CENTS}}
    return (REFUSED if _was_denied(since) else ANSWER), {}


def _last_prompt(messages: Sequence[ModelMessage]) -> tuple[str, Sequence[ModelMessage]]:
    """Return what was said last, and the messages that came after it."""
    for index in reversed(range(len(messages))):
        message = messages[index]
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart):
                said = part.content
                texts = [said] if isinstance(said, str) else list(said)
                words = " ".join(text for text in texts if isinstance(text, str))
                return words, messages[index + 1 :]
    return "", messages


def _was_denied(messages: Sequence[ModelMessage]) -> bool:
    return any(
        isinstance(part, ToolReturnPart) and part.outcome == "denied"
        for message in messages
        for part in message.parts
    )
