from __future__ import annotations

import argparse
import asyncio
import importlib.util
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from perdure import RunState, SideEffectSupport
from perdure.app import App
from perdure.cli.chat import chat
from perdure.cli.exits import Exit
from perdure.cli.finale import Finale, document, sections
from perdure.cli.parser import KILL_POINTS, SUPPORTS
from perdure.cli.person import Person, typed
from perdure.cli.screen import Screen
from perdure.cli.stage import Stage
from perdure.cli.timeline import Timeline, read_timeline
from perdure.errors import CommandError, MissingExtra

if TYPE_CHECKING:
    from perdure.demo.plan import Plan
    from perdure.demo.verdict import Verdict

_DEFAULT_POINT: Final = "in-tool"
_DEFAULT_SUPPORT: Final = "outcome-queryable"


async def demo(options: argparse.Namespace, screen: Screen) -> Exit:
    """Run the demo and check what came of it."""
    for needed in ("pydantic_ai", "fastmcp", "mcp"):
        if importlib.util.find_spec(needed) is None:
            raise MissingExtra("the demo needs an agent: pip install 'perdure[standard]'")
    if options.chat:
        return await chat(options, screen)
    screen.need_tables()
    _check(options)
    began = time.monotonic()
    with _folder(options) as folder:
        plan = await _play(options, screen, folder)
        timeline, verdict = await _judge(plan, folder, leaves=_leaves(options))
        commands: list[str] = []
        if _leaves(options):
            plan.save(folder)
            commands = await Person(folder, screen).commands()
            commands += [typed(["demo", "--resume", str(folder)])] if commands else []
        kept = folder if options.keep or options.resume or verdict.faults else None
        finale = Finale(plan, verdict, timeline, time.monotonic() - began, kept, commands)
        screen.document(document(finale))
        if not screen.as_json:
            screen.show(*sections(finale))
        if kept is None:
            shutil.rmtree(folder)
    if verdict.faults:
        return Exit.NOT_WELL
    return Exit.UNFINISHED if commands and options.resume is not None else Exit.OK


def _check(options: argparse.Namespace) -> None:
    """Raise `CommandError` for options that do not go together."""
    if options.port or options.no_open:
        raise CommandError("--port and --no-open are about the page: give them with --chat")
    if options.resume is not None:
        others = (options.kill_at, options.support, options.model, options.keep)
        if options.no_settle or any(other is not None for other in others):
            raise CommandError(
                "--resume DIR goes on with the turn in DIR as it was begun: leave the other options"
                " out"
            )
    elif options.no_settle and (options.keep is None or options.support != "at-least-once"):
        raise CommandError(
            "--no-settle leaves a turn that waits for a person: give it --keep DIR and --support"
            " at-least-once"
        )


@contextmanager
def _folder(options: argparse.Namespace) -> Generator[Path]:
    """Make the folder of one demo; it is left when a worker failed, whose log is in it."""
    if options.resume is not None:
        yield Path(options.resume).absolute()
        return
    if options.keep is None:
        folder = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
        try:
            yield folder
        except (CommandError, BrokenPipeError, asyncio.CancelledError):
            shutil.rmtree(folder)
            raise
        return
    folder = Path(options.keep).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(f"{folder} is there already; give --keep a new or an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def _plan(options: argparse.Namespace, folder: Path) -> Plan:
    """Return what is to happen, or what has happened so far; raises `CommandError`."""
    from perdure.demo.plan import Plan

    if options.resume is None:
        support = SideEffectSupport((options.support or _DEFAULT_SUPPORT).replace("-", "_"))
        return Plan(options.kill_at or _DEFAULT_POINT, support, options.model)
    plan = Plan.load(folder)
    if not plan.moments or plan.moments[-1].report.what != "parked":
        raise CommandError(f"the turn in {folder} does not wait for anybody")
    return plan


async def _play(options: argparse.Namespace, screen: Screen, folder: Path) -> Plan:
    """Let the turn happen, and return its plan with all that has happened."""
    from perdure.demo.story import QUESTION
    from perdure.demo.turn import Turn

    plan, person, leaves = _plan(options, folder), Person(folder, screen), _leaves(options)
    if plan.moments and await _is_parked(folder):
        await person.look()
        return plan
    moments, turn = [*plan.moments], Turn(folder, plan, leaves=leaves)
    with Stage(screen) as stage:
        stage.open(_title(plan), QUESTION)
        async with aclosing(turn.go_on() if moments else turn.begin()) as happening:
            async for moment in happening:
                moments.append(moment)
                stage.show(moment)
                if moment.report.what == "parked":
                    stage.pause()
                    if leaves:
                        screen.line()
                        await person.look()
                    elif not await person.settle_all():
                        break
    return msgspec.structs.replace(plan, moments=moments)


def _title(plan: Plan) -> str:
    if plan.moments:
        return "A refund agent, left where a person had to say, goes on."
    where = KILL_POINTS[plan.kill_at]
    what = "not killed at all" if plan.kill_at == "none" else f"killed {where}"
    return f"A refund agent, {what}; {SUPPORTS[plan.support.value.replace('_', '-')]}."


def _leaves(options: argparse.Namespace) -> bool:
    """Return whether a run that waits for a person is left waiting."""
    return options.no_settle or options.resume is not None


async def _is_parked(folder: Path) -> bool:
    from perdure.demo.story import RUN_ID

    app = App(f"sqlite:///{folder}/runs.db")
    async with app.connect(create=False):
        return (await app.find(RUN_ID)).state is RunState.NEEDS_ATTENTION


async def _judge(plan: Plan, folder: Path, *, leaves: bool) -> tuple[Timeline, Verdict]:
    from perdure.demo.evidence import Evidence
    from perdure.demo.shop import Shop
    from perdure.demo.story import RUN_ID
    from perdure.demo.verdict import judge

    app = App(f"sqlite:///{folder}/runs.db")
    async with app.connect(create=False):
        timeline = await read_timeline(app, RUN_ID)
    evidence = Evidence(
        plan,
        leaves,
        Shop(folder / "shop.db"),
        timeline.row,
        timeline.attempts,
        timeline.operations,
        timeline.receipts,
    )
    return timeline, judge(evidence)
