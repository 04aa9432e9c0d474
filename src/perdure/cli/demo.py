from __future__ import annotations

import argparse
import asyncio
import importlib.util
import shutil
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perdure.app import App
from perdure.cli.exits import Exit
from perdure.cli.parser import KILL_POINTS
from perdure.cli.screen import Screen
from perdure.cli.sheet import Column, Sheet, plain
from perdure.cli.stage import Stage
from perdure.cli.timeline import Timeline, attempts_sheet, document, operations_sheet, read_timeline
from perdure.errors import CommandError, MissingExtra

if TYPE_CHECKING:
    from perdure.demo.report import Moment
    from perdure.demo.verdict import Verdict

_AT_LEAST_ONCE: Final = (
    "A kill inside a tool is at-least-once: nobody can tell whether the refund had gone out, so the"
    " tool ran again and money went back twice."
)
_HIDDEN: Final = "event_delivery"


async def demo(options: argparse.Namespace, screen: Screen) -> Exit:
    """Run the demo and check what came of it."""
    for needed in ("pydantic_ai", "fastmcp", "mcp"):
        if importlib.util.find_spec(needed) is None:
            raise MissingExtra("the demo needs an agent: pip install 'perdure[standard]'")
    stage = Stage(screen)
    began = time.monotonic()
    with _folder(options.keep) as folder:
        moments = await _play(options, stage, folder)
        timeline, verdict = await _judge(options, moments, folder)
        well = not verdict.faults
        kept = folder if options.keep is not None or not well else None
        seconds = time.monotonic() - began
        screen.document(_document(options, verdict, timeline, seconds, kept))
        if not screen.as_json:
            screen.show(*_sections(options, verdict, timeline, seconds, kept))
        if kept is None:
            shutil.rmtree(folder)
    return Exit.OK if well else Exit.NOT_WELL


@contextmanager
def _folder(keep: str | None) -> Generator[Path]:
    """Make the folder of one demo; it is left when a worker failed, whose log is in it."""
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
        try:
            yield folder
        except (CommandError, BrokenPipeError, asyncio.CancelledError):
            shutil.rmtree(folder)
            raise
        return
    folder = Path(keep).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(f"{folder} is there already; give --keep a new or an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


async def _play(options: argparse.Namespace, stage: Stage, folder: Path) -> list[Moment]:
    from perdure.demo.story import QUESTION
    from perdure.demo.turn import Turn

    moments: list[Moment] = []
    with stage:
        stage.open(QUESTION, options.kill_at)
        async with aclosing(Turn(folder, options.kill_at, options.model).moments()) as happening:
            async for moment in happening:
                moments.append(moment)
                stage.show(moment)
    return moments


async def _judge(
    options: argparse.Namespace, moments: list[Moment], folder: Path
) -> tuple[Timeline, Verdict]:
    from perdure.demo.shop import Shop
    from perdure.demo.story import RUN_ID
    from perdure.demo.verdict import Evidence, judge

    app = App(f"sqlite:///{folder}/runs.db")
    async with app.connect(create=False):
        timeline = await read_timeline(app, RUN_ID)
    evidence = Evidence(
        options.kill_at,
        options.model is None,
        moments,
        Shop(folder / "shop.db"),
        timeline.row,
        timeline.attempts,
        timeline.operations,
    )
    return timeline, judge(evidence)


# --- for programs --------------------------------------------------------------------------------


def _document(
    options: argparse.Namespace,
    verdict: Verdict,
    timeline: Timeline,
    seconds: float,
    kept: Path | None,
) -> dict[str, Any]:
    killed = verdict.killed
    return {
        "well": not verdict.faults,
        "faults": verdict.faults,
        "kill_at": options.kill_at,
        "model": options.model or "scripted",
        "killed_pid": None if killed is None else killed.pid,
        "killed_signal": None if killed is None else -killed.report.number,
        "counts": verdict.counts,
        "replayed": verdict.replayed,
        "answer": verdict.answer,
        "seconds": round(seconds, 3),
        "folder": None if kept is None else str(kept),
        **document(timeline),
    }


# --- for people ----------------------------------------------------------------------------------


def _sections(
    options: argparse.Namespace,
    verdict: Verdict,
    timeline: Timeline,
    seconds: float,
    kept: Path | None,
) -> Iterator[Any]:
    from rich.text import Text

    hidden = sum(operation.kind == _HIDDEN for operation in timeline.operations)
    yield ""
    yield attempts_sheet(timeline)
    yield ""
    yield operations_sheet(timeline, without=[_HIDDEN])
    yield Text(f"({hidden} deliveries of events to the handler are not shown)", "dim")
    yield ""
    yield _counts(verdict)
    yield ""
    if verdict.answer is not None:
        yield Text.assemble(("answer  ", "bold"), plain(verdict.answer))
    for fault in verdict.faults:
        yield Text.assemble(("wrong   ", "bold red"), plain(fault))
    if not verdict.faults:
        yield Text(_moral(options.kill_at, verdict, seconds), "bold green")
    if options.kill_at == "in-tool" and verdict.killed is not None:
        yield Text(_AT_LEAST_ONCE, "yellow")
    if kept is not None:
        yield f"all of it is in {kept}; look with: perdure show {timeline.row.run_id}"
        yield f"  --url sqlite:///{kept}/runs.db"


def _counts(verdict: Verdict) -> Sheet:
    from rich.text import Text

    workers = len(verdict.counts[0].by_worker) if verdict.counts else 0
    columns = [
        Column("what really happened outside"),
        *(Column(f"worker {number}", number=True) for number in range(1, workers + 1)),
        Column("in all", number=True),
        Column("expected", number=True),
    ]
    rows = (
        (
            count.what,
            *(Text(str(times), "" if times else "dim") for times in count.by_worker),
            Text(str(count.counted), "green" if count.counted == count.expected else "bold red"),
            count.expected,
        )
        for count in verdict.counts
    )
    return Sheet("counts", columns, rows)


def _moral(point: str, verdict: Verdict, seconds: float) -> str:
    if verdict.killed is None:
        return (
            f"All counts are right: nobody was killed, each thing happened once ({seconds:.1f} s)."
        )
    return (
        f"All counts are right. Killed {KILL_POINTS[point]}, the turn was finished by another"
        f" process: {verdict.replayed} operations came from the journal, and only what the kill cut"
        f" short was done again ({seconds:.1f} s)."
    )
