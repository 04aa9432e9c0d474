"""Server-sent events as bytes. A frame is what readers take in whole or not at all."""

from __future__ import annotations

from typing import Any, Final

import msgspec

KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"


def frame(data: Any, *, event: str | None = None, cursor: str | None = None) -> bytes:
    """Return an event; from it on, a reader that breaks off goes on behind `cursor`."""
    lines: list[bytes] = []
    if cursor is not None:
        lines.append(b"id: " + cursor.encode())
    if event is not None:
        lines.append(b"event: " + event.encode())
    # JSON has no line breaks but those in strings, and they are escaped.
    lines.append(b"data: " + msgspec.json.encode(data))
    return b"\n".join(lines) + b"\n\n"


def first_frame(cursor: str, retry_seconds: float = 1.0) -> bytes:
    """Return a frame that is no event: where to go on from, and how soon after a break."""
    return f"retry: {retry_seconds * 1000:.0f}\nid: {cursor}\n\n".encode()
