from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from perdure.errors import CommandError
from perdure.strict_json import MalformedError, check_document


def read_json(text: str, what: str) -> Any:
    """Return the JSON value that was typed; `-` reads it from stdin. Raises `CommandError`."""
    data = sys.stdin.buffer.read() if text == "-" else text.encode()
    try:
        check_document(data)
        return msgspec.json.decode(data)
    except (MalformedError, ValueError, RecursionError) as error:
        shown = "what stdin holds" if text == "-" else repr(text)
        raise CommandError(
            f"the {what} {shown} is not JSON ({error}); quote it for the shell, such as"
            """ '{"order": "A-1042"}'"""
        ) from error


def check_text(words: Iterable[str]) -> None:
    """Raise `CommandError` for a word of a command line that is no text."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise CommandError(
                f"{word!a} has bytes in it that are not UTF-8, and nothing here is called like that"
            ) from error


def filled(name: str, text: str) -> str:
    """Return what was typed for an option whose value is kept; raises `CommandError` if nothing."""
    if not text.strip():
        raise CommandError(f"{name} is empty: it is kept with what is decided")
    return text


def signed(options: argparse.Namespace) -> tuple[str, str]:
    """Return who decides, by default whoever types, and why; raises `CommandError`."""
    return signer(options), filled("--why", options.why)


def signer(options: argparse.Namespace) -> str:
    """Return who decides, by default whoever types; raises `CommandError`."""
    return filled("--by", login_name() if options.by is None else options.by)


def login_name() -> str:
    """Return the name of who types; raises `CommandError` for one who has none."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError) as error:
        raise CommandError("this user has no name here: say who decides with --by NAME") from error


def positive(kind: type[int | float]) -> Callable[[str], int | float]:
    """Return what reads a number above 0 from a command line."""

    def read(text: str) -> int | float:
        try:
            number = kind(text)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
        return number

    return read
