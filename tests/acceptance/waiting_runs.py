"""Runs that wait in every way, in processes that are killed, and people who answer them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from perdure import App, Context, OperationIdentity, RunState, WorkerOptions, effect
from perdure.approvals import Approve, Deny
from perdure.errors import AlreadyResolved, RunEnded
from perdure.testing.crash import CrashAt, CrashPoints
from tests.acceptance.children import note
from tests.storages import app_at

RUN_ID = "run-1"
RESULT = [{"cents": 4}, "hello", 7]
_WORKER = WorkerOptions(poll_seconds=0.005, sweep_seconds=0.01, linger_seconds=0.0)


def app_of(folder: Path, probe: Callable[[str], None] | None = None) -> App:
    """Return an App whose runs sleep, listen, ask and wait for another run, and act at the end."""
    app = app_at(folder, worker=_WORKER, probe=probe)

    @effect(support="idempotent")
    async def act(what: str, operation: OperationIdentity) -> str:
        note(folder / "effects.log", what=what, key=operation.operation_key)
        return what

    @app.run(version=1)
    async def child(context: Context, number: int) -> int:
        await context.sleep(0.01)
        await context.call(act, "child")
        return number

    @app.run(version=1)
    async def wait(context: Context) -> list[Any]:
        await context.sleep(0.01)
        said = await context.wait_for("news")
        started = await context.start_child(child, 7)
        answer = await context.approval("pay", {"cents": 5})
        assert isinstance(answer, Approve)
        number = await started.result()
        await context.call(act, "parent")
        return [answer.arguments, said, number]

    @app.run(version=1)
    async def ask(context: Context) -> str:
        answer = await context.approval("pay", {"cents": 5})
        assert isinstance(answer, Deny)
        return await context.call(act, answer.message)

    return app


async def _live(app: App) -> None:
    """Start the run unless it is there, and say to it once what it waits for."""
    async with app:
        handle = await app.start("wait", run_id=RUN_ID)
        with suppress(RunEnded):
            await app.send(RUN_ID, "news", "hello", id="hello")
        result = asyncio.ensure_future(handle.result())
        # Answered where nobody executes the run any more.
        while not result.done() and not await _asks(app):
            await asyncio.sleep(0.002)
        if not result.done():
            await app.resolve(RUN_ID, "approval.1", Approve({"cents": 4}), by="ada")
        assert await result == RESULT


async def _asks(app: App) -> bool:
    suspended = await app.handle(RUN_ID).status() is RunState.SUSPENDED
    return suspended and bool(await app.approvals(RUN_ID))


def live(folder: Path, crash: tuple[str, int] | None) -> None:
    """Bring the run to its end, up to a crash."""
    asyncio.run(_live(app_of(folder, None if crash is None else CrashAt(*crash))))


def list_points(folder: Path, target: Path) -> None:
    """Write down every point that a run passes which nobody kills."""
    probe = CrashPoints()
    asyncio.run(_live(app_of(folder, probe)))
    target.write_text("\n".join(probe.passed))


def ask_all(folder: Path, rounds: int) -> None:
    """Have so many runs ask, and leave them to whoever answers."""

    async def main() -> None:
        app = app_of(folder)
        async with app:
            for number in range(rounds):
                await app.start("ask", run_id=f"ask-{number}")
            while len(await app.approvals(limit=rounds)) < rounds:
                await asyncio.sleep(0.01)

    asyncio.run(main())


def answer_all(folder: Path, rounds: int, person: int, together: Barrier) -> None:
    """Answer what each run asks at the same time as the others, and note what came of it."""

    async def main() -> None:
        app = app_of(folder)
        async with app.connect():
            for number in range(rounds):
                run_id, mine = f"ask-{number}", Deny(f"person {person}")
                together.wait(60)
                try:
                    item = await app.resolve(run_id, "approval.1", mine, by=str(person))
                    won, answer, by = True, item.answer, item.answered_by
                except AlreadyResolved as lost:
                    won, answer, by = False, lost.winner, lost.by
                said = answer.message if isinstance(answer, Deny) else ""
                note(folder / "answers.log", run=run_id, won=won, winner=by, said=said)

    asyncio.run(main())


def finish_all(folder: Path, rounds: int) -> None:
    """Bring the runs to their ends that were answered, and note these."""

    async def main() -> None:
        app = app_of(folder)
        async with app:
            for number in range(rounds):
                run_id = f"ask-{number}"
                result = await app.handle(run_id).result()
                note(folder / "results.log", run=run_id, result=result)

    asyncio.run(main())
