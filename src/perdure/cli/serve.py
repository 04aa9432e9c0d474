from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perdure.app import App
from perdure.cli.exits import Exit
from perdure.cli.log import logged
from perdure.cli.screen import Screen
from perdure.cli.serving import serve_at, stop_at_signals
from perdure.cli.target import load_app, naming_the_database
from perdure.errors import CommandError, MissingExtra

if TYPE_CHECKING:
    from perdure.server import Authorize

SECRET_VARIABLE: Final = "PERDURE_TOKEN_SECRET"  # noqa: S105  the name of a variable

_LOOPBACK: Final = ("127.0.0.1", "localhost")


def add_serve(commands: Any, add: Callable[..., Any]) -> None:
    """Add the command and its options to the command line."""
    serve = add(commands, "serve", "serve the sessions of an App over HTTP, and execute its runs")
    serve.add_argument("target", metavar="MODULE:APP", help="the App, as module:attribute")
    serve.add_argument(
        "--turn", metavar="NAME", help="the function that answers, where the App has several turns"
    )
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen at (127.0.0.1)")
    serve.add_argument("--port", type=port, default=8000, help="the port, 0 for any (8000)")
    add_secret_file(serve)
    serve.add_argument(
        "--insecure-no-auth",
        action="store_true",
        help="let everybody on this machine do everything, for development",
    )
    serve.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="URL",
        help="let browsers in from pages of this origin; again for more",
    )
    serve.add_argument(
        "--no-worker", action="store_true", help="execute no runs; `perdure worker` does"
    )
    serve.add_argument("--quiet", action="store_true", help="log warnings and errors only")


def add_secret_file(command: Any) -> None:
    """Add the option that names the secret of tokens."""
    command.add_argument(
        "--secret-file",
        metavar="FILE",
        help=f"the file with the secret that signs tokens, 32 bytes or more ({SECRET_VARIABLE}"
        " holds the secret itself)",
    )


async def serve(options: argparse.Namespace, screen: Screen) -> Exit:
    """Serve an App until SIGTERM or SIGINT; a second one ends it at once."""
    need_server("starlette", "uvicorn", "jwt")
    from perdure.server import create_server
    from perdure.server.running import HttpServer

    app = load_app(options.target)
    app.check_turn(options.turn)
    server = create_server(
        app,
        authorize=_authorize(options),
        turn=options.turn,
        opens=False,
        origins=options.allow_origin,
        # A page elsewhere whose name leads here must not get what asks for no token.
        hosts=_LOOPBACK if options.insecure_no_auth else ("*",),
    )
    http = HttpServer(
        server,
        host=options.host,
        port=options.port,
        started=lambda url: _say_serving(app, url, screen),
    )
    stop_at_signals(http, screen, stopping="handing streams over")
    with logged(quiet=options.quiet), naming_the_database(app):
        async with app.connect() if options.no_worker else app:
            await serve_at(f"{options.host}:{options.port}", http)
    screen.document({"event": "stopped"})
    screen.line("the server has stopped")
    return Exit.OK


def need_server(*modules: str) -> None:
    """Raise `MissingExtra` where what a server is made of is not installed."""
    if any(importlib.util.find_spec(module) is None for module in modules):
        raise MissingExtra("serving sessions needs more: pip install 'perdure[server]'")


def read_secret(options: argparse.Namespace) -> bytes:
    """Return the secret that signs tokens. Raises `CommandError`."""
    if options.secret_file is None:
        secret = os.environ.get(SECRET_VARIABLE, "").encode()
    else:
        try:
            secret = Path(options.secret_file).read_bytes().strip()
        except OSError as error:
            why = error.strerror or error
            raise CommandError(f"{options.secret_file} cannot be read: {why}") from error
    if not secret:
        raise CommandError(
            f"which secret signs the tokens? Pass --secret-file FILE or set {SECRET_VARIABLE} to 32"
            " random bytes or more, such as those of `openssl rand -hex 32`"
        )
    return secret


def _authorize(options: argparse.Namespace) -> Authorize:
    from perdure.server import SignedTokens, anyone

    if not options.insecure_no_auth:
        return SignedTokens(read_secret(options))
    if options.host not in _LOOPBACK:
        raise CommandError(
            "--insecure-no-auth serves this machine alone: leave --host out, or use tokens"
        )
    return anyone


def _say_serving(app: App, url: str, screen: Screen) -> None:
    document = {"event": "serving", "url": url, "pid": os.getpid(), "database": app.shown_url}
    screen.document(document)
    screen.line(f"serving {app.shown_url} at {url} (pid {os.getpid()})")


def port(text: str) -> int:
    """Return the number of a port; raises for any other text."""
    if not (text.isdecimal() and int(text) < 65536):
        raise argparse.ArgumentTypeError("a port is a number from 0 to 65535")
    return int(text)
