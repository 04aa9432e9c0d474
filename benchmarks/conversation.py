from __future__ import annotations

import json
from typing import Any

from benchmarks.payload import text

_TEXT_BYTES = 475
"""With its frame about 500 bytes a message, so that a question and its reply are 1 KB."""

Message = dict[str, Any]


def question(turn: int) -> Message:
    return {"role": "user", "content": text(_TEXT_BYTES, 2 * turn)}


def reply(turn: int) -> Message:
    return {"role": "assistant", "content": text(_TEXT_BYTES, 2 * turn + 1)}


def transcript_bytes(turns: int) -> int:
    """Return the length of a whole conversation, as JSON without a blank."""
    messages = [message for turn in range(turns) for message in (question(turn), reply(turn))]
    return len(json.dumps(messages, separators=(",", ":")))
