from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import time
from typing import Any

import msgspec

from perdure import WorkerOptions
from perdure.app import App
from perdure.cli.exits import Exit
from perdure.cli.screen import Screen
from perdure.cli.target import load_app
from perdure.errors import CommandError

_COUNTS = {
    "runs_claimed": "perdure_run_claimed_total",
    "operations_executed": "perdure_operation_executed_total",
    "operations_replayed": "perdure_operation_replayed_total",
}


async def work(options: argparse.Namespace, screen: Screen) -> Exit:
    """Execute the runs of an App until SIGTERM or SIGINT; a second one ends it at once."""
    app = load_app(options.target)
    if not app.functions:
        raise CommandError(
            f"{options.target} has no run functions; register some with @app.run(version=1)"
        )
    _log_to_stderr()
    app.worker = _options(app.worker, options)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, number, stop, screen)
    async with app:
        _say_serving(app, screen)
        await stop.wait()
    counts = {name: app.observer.counts[counter] for name, counter in _COUNTS.items()}
    screen.document({"event": "stopped", "name": app.worker.name, "counts": counts})
    words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
    screen.line(f"worker {app.worker.name} has stopped: {words}")
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
            "url": app.url,
            "functions": functions,
        }
    )
    served = ", ".join(f"{name}@{version}" for name, version in app.functions)
    screen.line(f"worker {app.worker.name} (pid {os.getpid()}) serves {served} from {app.url}")


def _stop(number: signal.Signals, stop: asyncio.Event, screen: Screen) -> None:
    if stop.is_set():
        # A tool that blocks cannot be stopped; its run is taken over by the next worker.
        os._exit(128 + number)
    stop.set()
    screen.note(f"{number.name}: giving the runs back; once more ends the process at once")


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    formatter = logging.Formatter("%(asctime)sZ %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.INFO)
