from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from perdure.storage.pieces import Split, pack_rest, rest_bytes

_LARGE_BYTES: Final = 16 * 1024


async def packed_apart(wholes: Sequence[Split]) -> list[Split]:
    """Return documents whose large rests are packed.

    Each is packed in a thread of its own, since that needs no interpreter: the event loop goes on
    meanwhile, on another core.
    """
    packed = {
        place: asyncio.to_thread(pack_rest, whole)
        for place, whole in enumerate(wholes)
        if whole.packed is None and rest_bytes(whole) >= _LARGE_BYTES
    }
    if not packed:
        return [*wholes]
    done = dict(zip(packed, await asyncio.gather(*packed.values()), strict=True))
    return [
        msgspec.structs.replace(whole, packed=done[place]) if place in done else whole
        for place, whole in enumerate(wholes)
    ]
