"""A worker of the demo: `python -m perdure.demo.worker NAME FOLDER POINT`.

It writes a line of JSON for each thing it does, and begins when a line arrives on stdin.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model

from perdure import App, Context, RunHandle, RunNeedsAttention, WorkerOptions
from perdure.demo.agent import build_agent
from perdure.demo.gate import Gate
from perdure.demo.plan import Plan
from perdure.demo.report import Report
from perdure.demo.shop import Shop
from perdure.demo.story import QUESTION, RUN_ID
from perdure.effects.audit import AuditValue
from perdure.effects.receipt import ReceiptState
from perdure.errors import RunError


def main(name: str, folder: Path, point: str) -> None:
    """Load everything, wait for the word, and execute the run."""
    plan = Plan.load(folder)
    try:
        asked = None if plan.model is None else infer_model(plan.model)
    except (UserError, ImportError, ValueError) as error:
        return report(Report("refused", f"--model {plan.model}: {error}"))
    report(Report("ready"))
    if sys.stdin.readline():
        asyncio.run(_execute(name, folder, Gate(point, report), plan, asked))
    return None


def report(line: Report) -> None:
    """Write a line in one go, so that a kill leaves no half of it."""
    os.write(sys.stdout.fileno(), msgspec.json.encode(line) + b"\n")


async def _execute(name: str, folder: Path, gate: Gate, plan: Plan, model: Model | None) -> None:
    words = _Words()
    agent = build_agent(folder / "shop.db", plan.support, gate, model)
    options = WorkerOptions(name=name)
    app = App(f"sqlite:///{folder}/runs.db", worker=options, audit=_Doubts(), probe=gate)

    @app.run(version=1)
    async def refund(context: Context, question: str) -> str:
        del context  # the agent finds the run by itself
        result = await agent.run(question, deps=Shop(folder / "shop.db"))
        return result.output

    async with app:
        handle = await app.start(refund, QUESTION, run_id=RUN_ID)
        before = 0
        while (last := await _end_of(handle)).what == "parked":
            before = app.observer.counts["perdure_operation_replayed_total"]
            if not await words.after(last):
                return
        replayed = app.observer.counts["perdure_operation_replayed_total"] - before
    report(msgspec.structs.replace(last, number=replayed))


async def _end_of(handle: RunHandle[str]) -> Report:
    try:
        return Report("finished", await handle.result())
    except RunNeedsAttention as attention:
        return Report("parked", attention.message)
    except RunError as error:
        return Report("failed", str(error))


class _Doubts:
    """Reports the effects that are found in doubt; an audit of the App."""

    async def write(self, facts: Mapping[str, AuditValue]) -> None:
        """Report a receipt that has become ambiguous."""
        if facts["operation_state"] == ReceiptState.AMBIGUOUS:
            report(Report("doubted", str(facts["operation_key"])))


class _Words:
    """Hears what the demo says on stdin: a line lets a parked run go on.

    When nobody can say anything any more, the process ends: at once, or, while its run is parked,
    as a worker that is told to stop.
    """

    def __init__(self) -> None:
        self._heard: asyncio.Queue[str] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._awaited = False
        threading.Thread(target=self._listen, daemon=True).start()

    async def after(self, line: Report) -> bool:
        """Report something and wait for a word; return whether there was one."""
        self._awaited = True
        report(line)
        word = await self._heard.get()
        self._awaited = False
        return bool(word)

    def _listen(self) -> None:
        while word := sys.stdin.readline():
            self._loop.call_soon_threadsafe(self._heard.put_nowait, word)
        if not self._awaited:
            os._exit(1)
        self._loop.call_soon_threadsafe(self._heard.put_nowait, "")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
