from __future__ import annotations

import argparse
import asyncio
import shlex
from typing import Any, Final

import msgspec

from perdure import RunHandle
from perdure.app import NOTHING, App
from perdure.cli.advice import way_on
from perdure.cli.exits import Exit, exit_of
from perdure.cli.place import placed
from perdure.cli.receipt import read_receipts
from perdure.cli.runs import describe
from perdure.cli.screen import Screen
from perdure.cli.target import load_app, naming_the_database
from perdure.cli.typed import read_json
from perdure.cli.waiting import PARKED, endings, read_waiting, standing
from perdure.codec.readable import readable
from perdure.errors import RunCancelled, RunFailed, RunNeedsAttention

_PAUSE_SECONDS: Final = 0.2


async def start(options: argparse.Namespace, screen: Screen) -> Exit:
    """Start a run without executing it here; with --wait, wait for how it ends."""
    app = load_app(options.target)
    given = NOTHING if options.input is None else read_json(options.input, "input")
    with naming_the_database(app):
        return await _start(app, given, options, screen)


async def _start(app: App, given: Any, options: argparse.Namespace, screen: Screen) -> Exit:
    async with app.connect():
        value = app.engine.input_from_json(options.function, options.version, given)
        handle = await app.start(
            options.function,
            value,
            run_id=options.run_id,
            version=options.version,
            deadline_seconds=options.deadline_seconds,
            queue=options.queue,
            key=options.key,
            priority=options.priority,
        )
        if options.wait:
            return await _wait(app, handle, options.target, screen)
        row = await app.find(handle.run_id)
        screen.document(describe(row))
        screen.line(f"run {row.run_id} is {row.state.value}")
        return Exit.OK


async def _wait(app: App, handle: RunHandle[Any], target: str, screen: Screen) -> Exit:
    place = screen.place
    if not (await handle.status()).settled:
        screen.note(f"run {handle.run_id} has started; waiting for its result")
        if not any(worker.alive for worker in await app.store.list_workers()):
            worker = f"perdure worker {shlex.quote(target)}"
            screen.note(f"no worker is alive to execute it; start one: {worker}")
    code, problem = Exit.OK, ""
    try:
        await _result(app, handle, screen)
    except RunNeedsAttention as error:
        row = await app.find(handle.run_id)
        way = way_on(row, await read_receipts(app, row.run_id), place)
        code, problem = exit_of(error), f"{placed(str(error), place)}; it goes on by {way}"
    except (RunFailed, RunCancelled) as error:
        code, problem = exit_of(error), placed(str(error), place)
    except asyncio.CancelledError:
        see = f"perdure show {handle.run_id}{place}"
        screen.note(f"the run goes on without this command; see: {see}")
        raise
    row = await app.find(handle.run_id)
    screen.document(describe(row))
    if problem:
        screen.note(f"perdure: {problem}; see: perdure show {row.run_id}{place}")
    elif row.output_json is not None:
        screen.line(msgspec.json.format(readable(row.output_json), indent=2).decode())
    return code


async def _result(app: App, handle: RunHandle[Any], screen: Screen) -> None:
    """Wait for a run to end; say what it waits for while it is put away, and how to end that."""
    ended = asyncio.ensure_future(handle.result())
    told = set[str]()
    try:
        while not (await asyncio.wait([ended], timeout=_PAUSE_SECONDS))[0]:
            row = await app.find(handle.run_id)
            if screen.as_json or row.state not in PARKED:
                continue
            waiting = await read_waiting(app, row)
            places = {f"{each.step_id}/{each.sequence}" for each in waiting.waits}
            if not places <= told:
                screen.note(f"run {row.run_id} is {row.state.value}{standing(row, waiting)}")
                for way in endings(row.run_id, waiting, screen.place):
                    screen.note(f"  {way}")
            told |= places
        await ended
    finally:
        ended.cancel()
