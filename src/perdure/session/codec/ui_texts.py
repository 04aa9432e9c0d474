from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from typing import Any, Final

_TEXT_ID: Final = "text-{}"


async def as_step(source: AsyncIterable[str | dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
    """Yield what a source yields as the chunks of one step of a UI message stream.

    Texts in a row are one part; chunks are passed on as they are, and what begins or ends the
    message or the step is added where it is missing.
    """
    yield {"type": "start"}
    yield {"type": "start-step"}
    async with aclosing(_parts(source)) as chunks:
        async for chunk in chunks:
            if chunk.get("type") not in {"start", "start-step", "finish-step", "finish"}:
                yield chunk
    yield {"type": "finish-step"}


async def _parts(source: AsyncIterable[str | dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
    number, is_open = 0, False
    async for piece in source:
        if isinstance(piece, str):
            if not is_open:
                number, is_open = number + 1, True
                yield {"type": "text-start", "id": _TEXT_ID.format(number)}
            if piece:
                yield {"type": "text-delta", "id": _TEXT_ID.format(number), "delta": piece}
        else:
            if is_open:
                is_open = False
                yield {"type": "text-end", "id": _TEXT_ID.format(number)}
            yield piece
    if is_open:
        yield {"type": "text-end", "id": _TEXT_ID.format(number)}
