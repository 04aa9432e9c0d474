"""The program in which a peer works: one process, one peer, one command."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.child import say
from benchmarks.floor import Floor
from benchmarks.ledger import Ledger
from benchmarks.measure import interleaved
from benchmarks.payload import PAYLOAD_BYTES, text
from benchmarks.peers.peer import Peer, Watcher

Command = Callable[..., Awaitable[Any]]


def child(kind: str, address: str, ledger: str, command: str, *arguments: str) -> None:
    """Open a peer, do what is asked and say what came of it.

    `kind` is a module and a class in it; `ledger` is the path of one, or empty. What looks like
    a whole number among the arguments is one.
    """
    given = [int(word) if word.isdecimal() else word for word in arguments]
    asyncio.run(_host(kind, address, ledger, command, given))
    # A runtime with threads of its own may take long to end, or crash in it.
    os._exit(0)


async def _host(kind: str, address: str, ledger: str, command: str, given: list[Any]) -> None:
    watcher = Watcher(Ledger(Path(ledger)) if ledger else None)
    module, _, name = kind.partition(":")
    made: type[Peer] = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)
    peer = made(address, watcher)
    await peer.open()
    say(await _COMMANDS[command](peer, *given))
    await peer.close()


async def _settings(peer: Peer) -> str:
    return await peer.settings()


async def _stay(peer: Peer) -> None:
    """Execute what there is to execute, until killed."""
    say("ready")
    await asyncio.Event().wait()


async def _sequential(peer: Peer, floor_url: str, runs: int, operations: int, size: int) -> Any:
    payload = text(size).encode()
    entry = ("run-1/call/1", payload, payload)
    numbers = itertools.count()

    async def theirs() -> float:
        began = time.perf_counter()
        assert await peer.run(f"run-{next(numbers)}", operations, size) == operations
        return (time.perf_counter() - began) / operations

    with Floor.beside(floor_url, entry) as floor:
        await theirs()
        return await interleaved(
            runs, lambda: floor.seconds(operations, [entry]) / operations, theirs
        )


async def _concurrent(
    peer: Peer, floor_url: str, runs: int, at_once: int, operations: int, size: int
) -> Any:
    payload = text(size).encode()
    entries = [("run-1/call/1", payload, payload)] * at_once
    numbers = itertools.count()

    async def theirs() -> float:
        began = time.perf_counter()
        await asyncio.gather(
            *(peer.run(f"run-{next(numbers)}", operations, size) for _ in range(at_once))
        )
        return at_once * operations / (time.perf_counter() - began)

    with Floor.beside(floor_url, entries[0]) as floor:
        await theirs()
        return await interleaved(
            runs,
            lambda: at_once * operations / floor.seconds(operations, entries),
            theirs,
        )


async def _single(peer: Peer, floor_url: str, runs: int, count: int, size: int) -> Any:
    payload = text(size).encode()
    entry = ("run-1/call/1", payload, payload)
    numbers = itertools.count()
    blocks: tuple[list[list[float]], list[list[float]]] = ([], [])

    async def theirs() -> list[float]:
        times: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            await peer.run(f"run-{next(numbers)}", 1, size)
            times.append(time.perf_counter() - began)
        return times

    with Floor.beside(floor_url, entry) as floor:
        await theirs()
        for _ in range(runs):
            blocks[1].append([floor.seconds(3, [entry]) for _ in range(count)])
            blocks[0].append(await theirs())
    return blocks


async def _durable(peer: Peer, runs: int, operations: int) -> int:
    going = (peer.go_on(f"run-{number}", operations, PAYLOAD_BYTES) for number in range(runs))
    return sum(await asyncio.gather(*going))


async def _begin(peer: Peer, run_id: str, operations: int) -> None:
    """Begin a run for whoever executes it, and go on working until killed."""
    beginning = asyncio.create_task(peer.hold(run_id, operations))
    await _stay(peer)
    await beginning


async def _hold(peer: Peer, run_id: str, operations: int) -> None:
    """Begin a run, stay within its last operation, and say when that was reached."""
    asyncio.create_task(peer.hold(run_id, operations))  # noqa: RUF006 - this process is killed
    await asyncio.wait_for(peer.watcher.holds.wait(), 600)
    say("holding")
    await asyncio.Event().wait()


async def _replay(peer: Peer, run_id: str, operations: int) -> Any:
    return {"seconds": await peer.replay(run_id, operations), "called": peer.watcher.calls}


async def _warm(peer: Peer, operations: int, size: int) -> None:
    await peer.run("warming", operations, size)


async def _converse(peer: Peer, turns: int) -> None:
    await peer.converse(turns)


async def _converse_by_turns(peer: Peer, turns: int) -> None:
    await peer.converse_by_turns(turns)


_COMMANDS: dict[str, Command] = {
    "settings": _settings,
    "stay": _stay,
    "sequential": _sequential,
    "concurrent": _concurrent,
    "single": _single,
    "durable": _durable,
    "begin": _begin,
    "hold": _hold,
    "replay": _replay,
    "warm": _warm,
    "converse": _converse,
    "converse-by-turns": _converse_by_turns,
}
