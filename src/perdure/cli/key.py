from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.cli.exits import Exit
from perdure.cli.screen import Screen
from perdure.encryption import KeyFile, Keyring, read_key_file
from perdure.errors import CommandError

_MODE: Final = 0o600


def add_key(commands: Any, add: Callable[..., Any]) -> None:
    """Add the command and its options to the command line."""
    key = add(commands, "key", "make keys that encrypt what a database holds")
    below = key.add_subparsers(dest="key_command", metavar="COMMAND")
    new = add(below, "new", "make a key: print it, or put it in a file", below=True)
    new.add_argument(
        "--key-file",
        metavar="FILE",
        help="write it to this file, which is made for its owner alone; one that is there gets the"
        " key in addition",
    )
    new.add_argument("--id", dest="key_id", metavar="ID", help="the key's id (today's date)")
    new.add_argument(
        "--current",
        action="store_true",
        help="encrypt with it from now on, in a file that is there",
    )


async def key(options: argparse.Namespace, screen: Screen) -> Exit:
    """Make a key, and print it or put it in a file."""
    if options.key_command is None:
        raise CommandError("perdure key takes a command: new; see perdure key --help")
    path = None if options.key_file is None else Path(options.key_file)
    held = read_key_file(path) if path is not None and path.exists() else None
    made = _with_new(held, options)
    Keyring(current=made.current, keys=made.keys)  # refuses what cannot be used
    if path is None:
        print(msgspec.json.encode(made).decode(), flush=True)
        return Exit.OK
    _write(path, made)
    (key_id,) = set(made.keys) - set(held.keys if held else ())
    screen.document({"key_file": str(path), "key_id": key_id, "current": made.current})
    screen.line(f"{path} holds the key {key_id}{_what_next(held, made, key_id)}")
    return Exit.OK


def _with_new(held: KeyFile | None, options: argparse.Namespace) -> KeyFile:
    key_id = options.key_id
    if held is None:
        key_id = key_id or _today()
        return KeyFile(current=key_id, keys={key_id: Keyring.generate_key()})
    if key_id is None:
        names = [_today(), *(f"{_today()}.{number}" for number in range(2, len(held.keys) + 3))]
        key_id = next(name for name in names if name not in held.keys)
    if key_id in held.keys:
        raise CommandError(f"there is a key {key_id!r} in the file: give another --id")
    current = key_id if options.current else held.current
    keys = {**held.keys, key_id: Keyring.generate_key()}
    return msgspec.structs.replace(held, current=current, keys=keys)


def _what_next(held: KeyFile | None, made: KeyFile, key_id: str) -> str:
    if held is None:
        return ": keep a copy elsewhere, because what it encrypts is lost without it"
    if made.current == key_id:
        return f", which encrypts from now on; {held.current} decrypts what was encrypted before"
    return (
        f" as well; {held.current} encrypts until every process has the file, and"
        f' "current": "{key_id}" stands in it'
    )


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


def _write(path: Path, made: KeyFile) -> None:
    """Write a key file as a whole, readable by its owner alone; raises `CommandError`."""
    try:
        # A name of its own first: whoever reads sees the whole file, the earlier or the new one.
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), _MODE)
            file.write(msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError as error:
        with suppress(OSError):
            Path(name).unlink()
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> CommandError:
    return CommandError(f"the key file {path} cannot be written ({error.strerror or error})")
