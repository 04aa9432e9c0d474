from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perdure.cli.exits import Exit
from perdure.cli.log import logged
from perdure.cli.screen import Screen
from perdure.cli.serving import serve_at, stop_at_signals
from perdure.cli.target import load_function
from perdure.errors import CommandError

if TYPE_CHECKING:
    from perdure.sidecar.config import SidecarConfig
    from perdure.sidecar.service import Credentials

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def add_sidecar(commands: Any, add: Callable[..., Any]) -> None:
    """Add the command and its options to the command line."""
    sidecar = add(
        commands,
        "sidecar",
        "perform operations on Temporal for programs in other languages, over HTTP",
    )
    sidecar.add_argument(
        "--config", required=True, metavar="FILE", help="what it serves, such as worker.toml"
    )
    sidecar.add_argument(
        "--insecure-no-auth",
        action="store_true",
        help="let everybody on this machine ask, for development",
    )
    sidecar.add_argument("--quiet", action="store_true", help="log warnings and errors only")


async def serve(options: argparse.Namespace, screen: Screen) -> Exit:
    """Serve a sidecar until SIGTERM or SIGINT; a second one ends it at once."""
    from perdure.sidecar.config import read_config
    from perdure.sidecar.running import SidecarServer
    from perdure.sidecar.service import sidecar

    config = read_config(_text_of(options.config), file=options.config)
    credentials = _credentials(config, options)
    hidden = {config.token_variable, config.temporal.api_key_variable}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    with logged(quiet=options.quiet), _reaching():
        async with sidecar(
            config, credentials, load=load_function, environment=environment
        ) as served:
            http = SidecarServer(
                served,
                host=config.listen,
                port=config.port,
                started=lambda url: _say_serving(config, url, screen),
            )
            stop_at_signals(http, screen, stopping="answering what is open")
            await serve_at(f"{config.listen}:{config.port}", http)
    screen.document({"event": "stopped"})
    screen.line("the sidecar has stopped")
    return Exit.OK


@contextmanager
def _reaching() -> Generator[None]:
    try:
        yield
    except ConnectionError as error:
        raise CommandError(f"{error}; is the address right, and TLS as it is there?") from error


def _credentials(config: SidecarConfig, options: argparse.Namespace) -> Credentials:
    from perdure.sidecar.service import Credentials

    temporal = config.temporal
    token = _secret("the token", config.token_file, config.token_variable)
    if token is None and not options.insecure_no_auth:
        raise CommandError(
            f"which token do those who ask send? Set token_file or token_variable in"
            f" {options.config}, or serve this machine alone with --insecure-no-auth"
        )
    if options.insecure_no_auth and (token is not None or config.listen not in _LOOPBACK):
        raise CommandError(
            "--insecure-no-auth serves this machine alone, without a token: leave token_file,"
            " token_variable and listen out, or use the token"
        )
    return Credentials(
        token=token,
        api_key=_secret("the API key", temporal.api_key_file, temporal.api_key_variable),
        ca=_file(temporal.ca_file),
        certificate=_file(temporal.certificate_file),
        key=_file(temporal.key_file),
    )


def _secret(what: str, file: str, variable: str) -> str | None:
    if not file and not variable:
        return None
    where = file or f"the variable {variable}"
    found = _bytes_of(file).decode(errors="replace") if file else os.environ.get(variable, "")
    found = found.strip()
    if not (found and found.isascii() and found.isprintable()):
        raise CommandError(f"{what} in {where} is one line of printable characters, and not empty")
    return found


def _file(name: str) -> bytes | None:
    return _bytes_of(name) if name else None


def _text_of(name: str) -> str:
    try:
        return _bytes_of(name).decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"{name} is not UTF-8: {error}") from error


def _bytes_of(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {error.strerror or error}") from error


def _say_serving(config: SidecarConfig, url: str, screen: Screen) -> None:
    screen.document(
        {"event": "serving", "url": url, "pid": os.getpid(), "task_queue": config.task_queue}
    )
    screen.line(f"serving {config.task_queue} at {url} (pid {os.getpid()})")
