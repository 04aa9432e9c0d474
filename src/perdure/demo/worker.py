"""A worker of the demo: `python -m perdure.demo.worker NAME FOLDER POINT [MODEL]`.

It writes a line of JSON for each thing it does, and begins when a line arrives on stdin.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

import msgspec
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model

from perdure import App, Context, WorkerOptions
from perdure.demo.agent import build_agent
from perdure.demo.gate import Gate
from perdure.demo.report import Report
from perdure.demo.shop import Shop
from perdure.demo.story import QUESTION, RUN_ID
from perdure.errors import RunError


def main(name: str, folder: Path, point: str, model: str | None = None) -> None:
    """Load everything, wait for the word, and execute the run."""
    try:
        asked = None if model is None else infer_model(model)
    except (UserError, ImportError, ValueError) as error:
        return report(Report("refused", f"--model {model}: {error}"))
    report(Report("ready"))
    if sys.stdin.readline():
        threading.Thread(target=_die_with_the_parent, daemon=True).start()
        asyncio.run(_execute(name, folder, point, asked))
    return None


def report(line: Report) -> None:
    """Write a line in one go, so that a kill leaves no half of it."""
    os.write(sys.stdout.fileno(), msgspec.json.encode(line) + b"\n")


async def _execute(name: str, folder: Path, point: str, model: Model | None) -> None:
    gate = Gate(point, report)
    agent = build_agent(folder / "shop.db", gate, model)
    options = WorkerOptions(name=name)
    app = App(f"sqlite:///{folder}/runs.db", worker=options, probe=gate)

    @app.run(version=1)
    async def refund(context: Context, question: str) -> str:
        del context  # the agent finds the run by itself
        result = await agent.run(question, deps=Shop(folder / "shop.db"))
        return result.output

    async with app:
        handle = await app.start(refund, QUESTION, run_id=RUN_ID)
        try:
            last = Report("finished", await handle.result())
        except RunError as error:
            last = Report("failed", str(error))
        replayed = app.observer.counts["perdure_operation_replayed_total"]
    report(msgspec.structs.replace(last, number=replayed))


def _die_with_the_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
