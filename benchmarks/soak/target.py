from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from typing import Any

SETTLE_SECONDS = 0.5
"""For how long after it was sent a request may still be applied, and never later."""

_LOST, _SILENT = 0.01, 0.02


class CountingTarget:
    """Applies what is asked of it, counts it by key, and loses some requests and some replies.

    A request that says so is dropped when its key was applied; every other one is applied again,
    which the counts then show.
    """

    def __init__(self, chance: random.Random) -> None:
        self.applied: Counter[str] = Counter()
        self.heard: Counter[str] = Counter()
        self._chance = chance
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self) -> int:
        """Listen, and return the port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=512)
        return self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Hang up on whoever still asks, and stop listening."""
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The server's own tasks cannot be cancelled in peace: each would print where it was.
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            if line.endswith(b"\n"):
                reply = self._answer(json.loads(line))
                if reply is not None:
                    writer.write(json.dumps(reply).encode() + b"\n")
                    await writer.drain()
        except OSError:
            pass  # whoever asked was killed
        finally:
            writer.close()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        key = request["key"]
        self.heard[request["do"]] += 1
        if request["do"] == "look":
            return {"applied": key in self.applied}
        if time.monotonic() > request["sent_at"] + SETTLE_SECONDS or self._happens(_LOST):
            return None
        if not (request["drops_repeats"] and key in self.applied):
            self.applied[key] += 1
        return None if self._happens(_SILENT) else {"applied": True}

    def _happens(self, share: float) -> bool:
        return self._chance.random() < share


async def ask(port: int, request: dict[str, Any]) -> dict[str, Any]:
    """Send one request to a target; raises `ConnectionResetError` when no reply comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        line = await reader.readline()
    finally:
        writer.close()
    if not line:
        raise ConnectionResetError("the target hung up")
    return json.loads(line)
