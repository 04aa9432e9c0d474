from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from temporalio import activity

_BEATS: Final = 3
"""How often an attempt tells that it lives, in the time after which it is given up."""


@asynccontextmanager
async def heartbeats() -> AsyncGenerator[None]:
    """Tell the server that this attempt lives, where it wants to know.

    So it hears as well if nobody wants it any more.
    """
    timeout = activity.info().heartbeat_timeout
    if timeout is None:
        yield
        return
    beating = asyncio.create_task(_beat(timeout.total_seconds() / _BEATS))
    try:
        yield
    finally:
        beating.cancel()


async def _beat(every_seconds: float) -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(every_seconds)
