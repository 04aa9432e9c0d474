from __future__ import annotations

from typing import Any

from perdure.canonical import INPUT_LIMIT_BYTES, check_size, encode
from perdure.inbox import SAID, NewMessage
from perdure.session.received import Received


def letter_of(run_id: str, said: Received, now: float) -> NewMessage:
    """Return what was said to a run in its session as a message to its inbox; `now` is wall time.

    Its payload is `{"said", "codec_message_id"}`: the text, or the UI message where it says more.
    However it comes to be sent, and how often, it is the same message. Raises `InvalidPayload` if
    it is too large.
    """
    what = f"what {said.client_id!r} said"
    payload = {"said": _words_of(said.payload), "codec_message_id": said.codec_message_id}
    document = encode(payload, what=what)
    check_size(document, what=what, limit_bytes=INPUT_LIMIT_BYTES)
    return NewMessage(run_id, said.event_id, SAID, document, said.client_id, now)


def _words_of(message: dict[str, Any]) -> Any:
    parts = message.get("parts", [])
    if all(part.get("type") == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return message
