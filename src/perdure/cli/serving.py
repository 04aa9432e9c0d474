from __future__ import annotations

import asyncio
import os
import signal
from typing import Protocol

from perdure.cli.screen import Screen
from perdure.errors import CommandError


class Serving(Protocol):
    """Something that serves at an address until `should_exit` has been set."""

    should_exit: bool

    async def serve(self) -> None:
        """Serve; raises `SystemExit` where it cannot listen."""
        ...


def stop_at_signals(http: Serving, screen: Screen, *, stopping: str) -> None:
    """Let SIGTERM and SIGINT end what serves; a second one ends the process at once.

    `stopping` is what it does meanwhile, for people.
    """

    def stop(number: signal.Signals) -> None:
        if http.should_exit:
            os._exit(128 + number)
        http.should_exit = True
        screen.note(f"{number.name}: {stopping}; once more ends the process at once")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)


async def serve_at(where: str, http: Serving) -> None:
    """Serve until that is to end; raises `CommandError` where it cannot listen."""
    try:
        await http.serve()
    except SystemExit as error:  # its way to say that it cannot listen
        raise CommandError(f"cannot serve at {where}; the log says why") from error
