from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from perdure.cli.exits import Exit
from perdure.cli.screen import Screen
from perdure.cli.serve import add_secret_file, need_server, read_secret
from perdure.cli.typed import positive

_HOUR: Final = 3600.0


def add_token(commands: Any, add: Callable[..., Any]) -> None:
    """Add the command and its options to the command line."""
    token = add(commands, "token", "make a token with which a client asks `perdure serve`")
    token.add_argument(
        "--session",
        action="append",
        required=True,
        metavar="NAME",
        help="a session that it is good for, or a pattern such as 'shop-*'; again for more",
    )
    token.add_argument("--client", required=True, metavar="NAME", help="who holds it")
    token.add_argument(
        "--expires-seconds",
        type=positive(float),
        default=_HOUR,
        metavar="S",
        help="how long it is good (3600)",
    )
    token.add_argument("--read-only", action="store_true", help="it may look, and say nothing")
    add_secret_file(token)


async def token(options: argparse.Namespace, screen: Screen) -> Exit:
    """Make a token and print it."""
    need_server("jwt")
    from perdure.server.tokens import SignedTokens

    made = SignedTokens(read_secret(options)).issue(
        options.client,
        options.session,
        expires_seconds=options.expires_seconds,
        write=not options.read_only,
    )
    screen.document({"token": made})
    screen.line(made)
    return Exit.OK
