from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.session.codec.port import Event, FoldedMessage, Input, Output
from perdure.session.codec.repair import Repair
from perdure.session.codec.ui_inputs import USER_MESSAGE
from perdure.session.codec.ui_tools import (
    STATE_AFTER,
    Part,
    after_answer,
    after_chunk,
    after_input_text,
    tool_part,
)

_ANYWHERE: Final = {"tool-output-available", "tool-output-error"}
_SHOWS_NOTHING: Final = {"error", "abort"}
_OF_A_MESSAGE: Final = {"finish-step", "finish", "message-metadata"}
"""Chunks that begin no message: there is nothing to say them of."""
_PUSHED: Final = {"file", "source-url", "source-document"}


class _Message:
    """A message that is being put together; its parts are replaced, never changed."""

    def __init__(self, codec_message_id: str, message: dict[str, Any]) -> None:
        self.codec_message_id = codec_message_id
        self.envelope = {name: value for name, value in message.items() if name != "parts"}
        self.parts: list[Part] = list(message["parts"])
        self.open: dict[tuple[str, str], int] = {}

    def folded(self) -> FoldedMessage:
        return FoldedMessage(self.codec_message_id, {**self.envelope, "parts": list(self.parts)})

    def find(self, tool_call_id: str) -> int | None:
        """Return where the call stands that was last begun under an id."""
        found = (i for i, part in enumerate(self.parts) if part.get("toolCallId") == tool_call_id)
        return max(found, default=None)


class UiProjection:
    """The messages that the chunks and inputs of one node add up to."""

    def __init__(self) -> None:
        self._messages: dict[str, _Message] = {}
        self._tool_texts: dict[str, str] = {}
        self._unanswered: list[Input] = []
        self._repair = Repair()

    def messages(self) -> Sequence[FoldedMessage]:
        """Return the messages in the order in which they began."""
        return [message.folded() for message in self._messages.values()]

    def fold(self, event: Event) -> None:
        """Add a chunk or an input, and try the answers again whose calls were not there yet."""
        if isinstance(event, Output):
            for chunk in self._repair.missing_before(event.chunk, event.domain_id):
                self._chunk(event.message_id, chunk)
            self._chunk(event.message_id, event.chunk)
        elif event.kind == USER_MESSAGE:
            self._say(event)
        else:
            for seeded in event.payload.get("seed", []):
                key = seeded["codecMessageId"]
                self._messages.setdefault(key, _Message(key, seeded["message"]))
            self._unanswered.append(event)
        if self._unanswered:
            self._unanswered = [answer for answer in self._unanswered if not self._answer(answer)]

    def pass_over(self, event: Event) -> None:
        """Note that a start or a step was announced, which readers take as said once."""
        if isinstance(event, Output):
            self._repair.missing_before(event.chunk, event.domain_id)

    def _say(self, said: Input) -> None:
        message = self._messages.get(said.message_id)
        if message is None:
            named: Part = {
                "id": said.payload.get("id", said.message_id),
                "role": said.role,
                "parts": [],
            }
            message = self._messages[said.message_id] = _Message(said.message_id, named)
        message.parts.append(said.payload["part"])

    def _answer(self, answer: Input) -> bool:
        """Apply an answer to the call it is for; return False if that is not there."""
        message = self._messages.get(answer.message_id)
        index = message.find(answer.payload.get("toolCallId", "")) if message else None
        if message is None or index is None:
            return False
        message.parts[index] = after_answer(message.parts[index], answer)
        return True

    def _chunk(self, message_id: str, chunk: dict[str, Any]) -> None:
        kind: str = chunk["type"]
        if kind in _ANYWHERE:
            self._tool_output(chunk)
            return
        if kind in _SHOWS_NOTHING or chunk.get("transient"):
            return
        message = self._messages.get(message_id)
        if message is None:
            if kind in _OF_A_MESSAGE:
                return
            begun: Part = {"id": message_id, "role": "assistant", "parts": []}
            message = self._messages[message_id] = _Message(message_id, begun)
        family, _, verb = kind.rpartition("-")
        if family in ("text", "reasoning"):
            _stream(message, family, verb, chunk)
        elif kind in STATE_AFTER or kind == "tool-input-delta":
            self._tool(message, chunk)
        elif kind in _PUSHED:
            message.parts.append(_without(chunk, "providerMetadata"))
        elif kind.startswith("data-"):
            _data(message, chunk)
        else:
            _bound(message, kind, chunk)

    def _tool(self, message: _Message, chunk: dict[str, Any]) -> None:
        kind, call = chunk["type"], chunk.get("toolCallId", "")
        index = message.find(call)
        if kind == "tool-input-start":
            self._tool_texts[call] = ""
            message.parts.append(tool_part(chunk))
        elif kind == "tool-input-delta":
            if index is not None and call in self._tool_texts:
                self._tool_texts[call] += chunk["inputTextDelta"]
                message.parts[index] = after_input_text(
                    message.parts[index], self._tool_texts[call]
                )
        elif index is not None:
            message.parts[index] = after_chunk(message.parts[index], chunk)
        elif kind.startswith("tool-input-"):
            message.parts.append(after_chunk(tool_part(chunk), chunk))

    def _tool_output(self, chunk: dict[str, Any]) -> None:
        """Apply an output to its call, in whichever message of the run that stands."""
        call = chunk.get("toolCallId", "")
        for message in self._messages.values():
            index = message.find(call)
            if index is not None:
                message.parts[index] = after_chunk(message.parts[index], chunk)
                return


def _stream(message: _Message, family: str, verb: str, chunk: dict[str, Any]) -> None:
    key = (family, chunk.get("id", ""))
    if verb == "start":
        message.open[key] = len(message.parts)
        message.parts.append({"type": family, "text": ""})
    elif verb == "end":
        message.open.pop(key, None)
    elif key in message.open:
        index = message.open[key]
        message.parts[index] = {
            "type": family,
            "text": message.parts[index]["text"] + chunk["delta"],
        }


def _data(message: _Message, chunk: dict[str, Any]) -> None:
    """Push a part of data, or put it in the place of the one with its type and id."""
    part = _without(chunk, "transient")
    same = (
        i
        for i, other in enumerate(message.parts)
        if "id" in part and other["type"] == part["type"] and other.get("id") == part["id"]
    )
    index = next(same, None)
    if index is None:
        message.parts.append(part)
    else:
        message.parts[index] = part


def _bound(message: _Message, kind: str, chunk: dict[str, Any]) -> None:
    """Apply a chunk about the whole message or one of its steps."""
    if kind == "start-step":
        message.parts.append({"type": "step-start"})
    if kind == "start" and "messageId" in chunk:
        message.envelope["id"] = chunk["messageId"]
    if "messageMetadata" in chunk:
        message.envelope["metadata"] = chunk["messageMetadata"]


def _without(chunk: dict[str, Any], name: str) -> Part:
    return {key: value for key, value in chunk.items() if key != name}
