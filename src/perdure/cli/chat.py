from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import webbrowser
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perdure.cli.exits import Exit
from perdure.cli.screen import Screen
from perdure.cli.serve import need_server
from perdure.errors import CommandError

if TYPE_CHECKING:
    from perdure.demo.chat.crew import Crew
    from perdure.server.running import HttpServer

_HOST: Final = "127.0.0.1"


async def chat(options: argparse.Namespace, screen: Screen) -> Exit:
    """Serve the chat page of the demo until SIGTERM or SIGINT."""
    need_server("starlette", "uvicorn")
    _check(options)
    with _folder(options.keep) as folder:
        await _serve(options, screen, folder)
    screen.document({"event": "stopped"})
    screen.line("the demo has ended")
    return Exit.OK


def _check(options: argparse.Namespace) -> None:
    """Raise `CommandError` for options that do not go together."""
    others = (options.kill_at, options.support, options.resume)
    if options.no_settle or any(other is not None for other in others):
        raise CommandError(
            "with --chat you kill the worker yourself, on the page: leave --kill-at, --support,"
            " --no-settle and --resume out"
        )


async def _serve(options: argparse.Namespace, screen: Screen, folder: Path) -> None:
    from perdure.demo.chat.crew import Crew
    from perdure.demo.chat.site import Site
    from perdure.demo.chat.support import build_app, shop_in
    from perdure.server import Limits, anyone, create_server
    from perdure.server.running import HttpServer

    app, shop = build_app(folder, model=options.model), shop_in(folder)
    crew = Crew(folder, options.model)
    shop.create()

    def started(url: str) -> None:
        document = {"event": "serving", "url": url, "pid": os.getpid(), "database": app.shown_url}
        screen.document(document)
        screen.line(f"the chat is at {url}")
        kept = "and stay there" if options.keep else "until Ctrl-C"
        screen.line(f"its runs are in {app.shown_url} {kept}")
        if not options.no_open and _has_display():
            webbrowser.open(url)

    async with app.connect():
        # Two tabs of a busy reader are one client.
        limits = Limits(page_messages=5000, client_streams=100, client_requests_per_minute=6000)
        server = create_server(app, authorize=anyone, limits=limits, opens=False)
        site = Site(server, crew, shop, app.shown_url).build()
        http = HttpServer(server, host=_HOST, port=options.port, app=site, started=started)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _stop, http)
        await _run(http, crew, options)


async def _run(http: HttpServer, crew: Crew, options: argparse.Namespace) -> None:
    """Serve and work until somebody stops the server, or a worker ends by itself."""
    working = asyncio.create_task(crew.keep_working())
    working.add_done_callback(lambda _: _stop(http))
    try:
        await http.serve()
    except SystemExit as error:  # its way to say that it cannot listen
        raise CommandError(f"cannot serve at port {options.port}; give another --port") from error
    finally:
        working.cancel()
        await asyncio.wait([working])
    if not working.cancelled():
        working.result()


def _stop(http: HttpServer) -> None:
    http.should_exit = True


@contextmanager
def _folder(keep: str | None) -> Generator[Path]:
    """Make the folder of the demo, which is left where that was asked for."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="perdure-chat-") as folder:
            yield Path(folder)
        return
    folder = Path(keep).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(f"{folder} is there already; give --keep a new or an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def _has_display() -> bool:
    names = ("DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform == "darwin" or any(name in os.environ for name in names)
