from __future__ import annotations

import argparse
import getpass
import sys
from typing import Any

import msgspec

from perdure.errors import CommandError


def read_json(text: str, what: str) -> Any:
    """Return the JSON value that was typed; `-` reads it from stdin. Raises `CommandError`."""
    data = sys.stdin.buffer.read() if text == "-" else text.encode()
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        shown = "what stdin holds" if text == "-" else repr(text)
        raise CommandError(
            f"the {what} {shown} is not JSON ({error}); quote it for the shell, such as"
            """ '{"order": "A-1042"}'"""
        ) from error


def filled(name: str, text: str) -> str:
    """Return what was typed for an option whose value is kept; raises `CommandError` if nothing."""
    if not text.strip():
        raise CommandError(f"{name} is empty: it is kept with what is decided")
    return text


def signed(options: argparse.Namespace) -> tuple[str, str]:
    """Return who decides, by default whoever types, and why; raises `CommandError`."""
    by = login_name() if options.by is None else options.by
    return filled("--by", by), filled("--why", options.why)


def login_name() -> str:
    """Return the name of who types; raises `CommandError` for one who has none."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError) as error:
        raise CommandError("this user has no name here: say who decides with --by NAME") from error
