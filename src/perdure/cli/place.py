from __future__ import annotations

import re
import shlex
from argparse import Namespace
from typing import Final

from perdure.app import App

HIDDEN: Final = "***"
"""What stands for a password."""

# The words of a command up to the id or key that it is about, where no other options follow.
_command: Final = re.compile(
    r"perdure (?:(?:effects show|effects settle|show|resume|cancel) [\w.-]*\w"
    r"|reencrypt(?: --plaintext)?)(?!\.?[\w-]| --)"
)


def place_of(options: Namespace) -> str:
    """Return the options by which a command was told its database, to be typed again.

    A password is not repeated: `HIDDEN` stands for it. Empty where the environment tells.
    """
    given = vars(options)
    url = given.get("url")
    places = (
        ("--app", given.get("app") or given.get("target")),
        ("--url", None if url is None else App(url).shown_url),
        ("--key-file", given.get("key_file")),
    )
    return "".join(f" {name} {shlex.quote(value)}" for name, value in places if value is not None)


def placed(text: str, place: str) -> str:
    """Return a text of the library, with the options that its commands need where one types."""
    return _command.sub(lambda found: f"{found[0]}{place}", text)
