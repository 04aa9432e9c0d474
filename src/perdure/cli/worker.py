from __future__ import annotations

import argparse
import asyncio
import os
import signal
from typing import Any

import msgspec

from perdure import WorkerOptions
from perdure.app import App
from perdure.cli.exits import Exit
from perdure.cli.log import logged
from perdure.cli.screen import Screen
from perdure.cli.target import load_app, naming_the_database
from perdure.cli.words import number_of
from perdure.errors import CommandError

_COUNTS = {
    "runs_claimed": ("perdure_run_claimed_total", "run", "claimed"),
    "operations_executed": ("perdure_operation_executed_total", "operation", "executed"),
    "operations_replayed": ("perdure_operation_replayed_total", "operation", "replayed"),
}


async def work(options: argparse.Namespace, screen: Screen) -> Exit:
    """Execute the runs of an App until SIGTERM or SIGINT; a second one ends it at once."""
    app = load_app(options.target)
    if not app.functions:
        raise CommandError(
            f"{options.target} has no run functions; register some with @app.run(version=1)"
        )
    app.worker = _options(app.worker, options)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, number, stop, screen)
    with logged(quiet=options.quiet), naming_the_database(app):
        async with app:
            _say_serving(app, screen)
            await stop.wait()
    _say_stopped(app, screen)
    return Exit.OK


def _options(declared: WorkerOptions, options: argparse.Namespace) -> WorkerOptions:
    """Return the worker options of an App with what was typed instead."""
    names = ("name", "concurrency", "lease_seconds")
    typed: dict[str, Any] = {
        name: value for name in names if (value := getattr(options, name)) is not None
    }
    return msgspec.structs.replace(declared, **typed)


def _say_serving(app: App, screen: Screen) -> None:
    functions = [{"name": name, "version": version} for name, version in app.functions]
    screen.document(
        {
            "event": "serving",
            "name": app.worker.name,
            "pid": os.getpid(),
            "url": app.shown_url,
            "functions": functions,
        }
    )
    served = ", ".join(f"{name}@{version}" for name, version in app.functions)
    screen.line(f"{_title(app)} (pid {os.getpid()}) serves {served} from {app.shown_url}")


def _say_stopped(app: App, screen: Screen) -> None:
    counts = {name: app.observer.counts[counter] for name, (counter, _, _) in _COUNTS.items()}
    screen.document({"event": "stopped", "name": app.worker.name, "counts": counts})
    words = (f"{number_of(counts[name], noun)} {done}" for name, (_, noun, done) in _COUNTS.items())
    screen.line(f"{_title(app)} has stopped: {', '.join(words)}")


def _title(app: App) -> str:
    name = app.worker.name
    return name if name.startswith("worker") else f"worker {name}"


def _stop(number: signal.Signals, stop: asyncio.Event, screen: Screen) -> None:
    if stop.is_set():
        # A tool that blocks cannot be stopped; its run is taken over by the next worker.
        os._exit(128 + number)
    stop.set()
    screen.note(f"{number.name}: giving the runs back; once more ends the process at once")
