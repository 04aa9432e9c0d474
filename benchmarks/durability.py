from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.child import Child, say
from benchmarks.ledger import Ledger
from benchmarks.payload import PAYLOAD_BYTES, text
from benchmarks.row import NotDurable, Setting
from perdure import App, Context, operation

_KILLED_AT = (0.4, 0.6, 0.8)
_PATIENCE_SECONDS = 30.0


def check(
    setting: Setting, *, runs: int, operations: int, payload_bytes: int = PAYLOAD_BYTES
) -> None:
    """Kill so many runs at once, of so many operations, and count from outside what ran.

    Raises `NotDurable` when an operation was called again after its result had been returned.
    """
    kill_and_count(setting, "durability", runs * operations, runs, operations, payload_bytes)


def kill_and_count(setting: Setting, module: str, total: int, *arguments: object) -> None:
    """Kill children in their midst, let one finish, and judge what they did by their ledger.

    The child gets the URL of a database, the path of a ledger, and the arguments. It writes
    `called NAME` when an operation is called, `done NAME` when its result was returned, and
    says how many of all `total` were, when it has finished. Raises `NotDurable`.
    """
    database = setting.database("-".join(["durable", module, *map(str, arguments)]))
    ledger = Ledger(database.folder / "ledger")
    shares = _KILLED_AT[: setting.scale(len(_KILLED_AT), 1)]
    try:
        kill_at(shares, total, ledger, (module, database.url, ledger.path, *arguments))
    finally:
        ledger.close()


def kill_at(
    shares: Sequence[float],
    total: int,
    ledger: Ledger,
    command: tuple[object, ...],
    patience_seconds: float = _PATIENCE_SECONDS,
) -> None:
    """Kill a child at each share of its work, let the last one finish, and judge its ledger."""
    for share in shares:
        with Child(*command) as child:
            _wait_for(ledger, share * total)
            child.kill()
        ledger.write("killed")
    with Child(*command) as child:
        told = child.hear(patience_seconds)
    _judge(ledger.lines(), total, told)


def _wait_for(ledger: Ledger, operations: float) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while len(_done(ledger.lines())) < operations:
        if time.monotonic() > deadline:
            raise TimeoutError("the workload that was to be killed makes no progress")
        time.sleep(0.002)


def _done(lines: Sequence[Sequence[str]]) -> set[str]:
    return {names[0] for word, *names in lines if word == "done"}


def ran_again(lines: Iterable[Sequence[str]]) -> list[str]:
    """Return the operations that a ledger says were called after they were done."""
    done: set[str] = set()
    again: list[str] = []
    for word, *names in lines:
        if word == "done":
            done.add(names[0])
        elif word == "called" and names[0] in done:
            again.append(names[0])
    return again


def _judge(lines: Sequence[Sequence[str]], total: int, told: int) -> None:
    again, done = ran_again(lines), _done(lines)
    if again:
        raise NotDurable(f"{len(again)} completed operations ran again, such as {again[0]}")
    if len(done) != total or told != total:
        raise NotDurable(f"of {total} operations {len(done)} completed, and {told} are told of")


def child(url: str, ledger_path: str, runs: str, operations: str, payload_bytes: str) -> None:
    """Start the workload, or go on with it, and report the results."""
    ledger = Ledger(Path(ledger_path))
    app = App(url)
    payload = text(int(payload_bytes))

    @operation(read_only=True)
    async def touch(name: str, payload: str) -> str:
        ledger.write("called", name)
        return payload

    @app.run(version=1)
    async def work(context: Context, ordinal: int) -> int:
        returned = 0
        for number in range(int(operations)):
            name = f"{ordinal}.{number}"
            returned += await context.call(touch, name, payload) == payload
            ledger.write("done", name)
        return returned

    async def main() -> None:
        async with app:
            handles = [
                await app.start(work, number, run_id=f"run-{number}") for number in range(int(runs))
            ]
            say(sum([await handle.result() for handle in handles]))

    asyncio.run(main())
