"""What is written for the recorded conversations, to the eyes of the JavaScript client."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from perdure.channels.memory import MemoryLog
from tests.interop.javascript import JavaScript, installed, javascript
from tests.interop.reenacting import Reenactment
from tests.session_agents import VECTORS, World

NAMES = sorted(path.name.partition(".")[0] for path in VECTORS.glob("*.wire.jsonl"))


@pytest.fixture(scope="module")
def folder() -> Path:
    return installed()


async def replayed(js: JavaScript, world: World, *, live: bool) -> dict[str, Any]:
    """Return what a client sees that was there from the start, or comes at the end."""
    log = MemoryLog()
    name = "early" if live else "late"
    if live:
        await js.session("Client", name, "reader", log)
    for delivery in world.log.deliveries:
        log.add(delivery)
    if not live:
        await js.session("Client", name, "reader", log)
    return await js.view(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_conversation_is_seen_as_it_was(name: str, folder: Path) -> None:
    expected = json.loads((VECTORS / f"{name}.expected.json").read_text("utf-8"))
    cold = expected["cold"]["view"]

    async def main() -> None:
        world = await Reenactment(name).play()
        assert world.errors == []
        assert world.seen() == cold
        async with asyncio.timeout(60), javascript(world.log, folder) as js:
            assert await replayed(js, world, live=False) == cold
            seen = await replayed(js, world, live=True)
            assert seen == expected.get("observer", expected["cold"])["view"]
            assert js.unhandled == []

    asyncio.run(main())
