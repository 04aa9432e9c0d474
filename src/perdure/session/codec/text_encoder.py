from __future__ import annotations

from typing import Any, Final

from perdure.errors import InvalidSessionArgument
from perdure.session.codec.ui_encoder import UiEncoder
from perdure.session.codec.written import Written

_STREAM: Final = "text"


class TextEncoder:
    """Writes fragments of text, as the one text of a message."""

    def __init__(self, message_id: str) -> None:
        self._chunks = UiEncoder(message_id)
        self._begun = False

    def encode(self, output: Any) -> list[Written]:
        """Return what a fragment is written as; `InvalidSessionArgument` if it is no text."""
        if not isinstance(output, str):
            raise InvalidSessionArgument(
                f"an output is text, not {type(output).__name__}; give the session another codec"
                " for more than text"
            )
        written: list[Written] = []
        if not self._begun:
            self._begun = True
            written += self._chunks.encode({"type": "text-start", "id": _STREAM})
        return written + self._chunks.encode({"type": "text-delta", "id": _STREAM, "delta": output})

    def finish(self) -> list[Written]:
        """Return what ends the text and the message, if there was any text."""
        if not self._begun:
            return []
        ends = [
            {"type": "text-end", "id": _STREAM},
            {"type": "finish-step"},
            {"type": "finish", "finishReason": "stop"},
        ]
        return [written for chunk in ends for written in self._chunks.encode(chunk)]
