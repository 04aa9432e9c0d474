"""Stores that encrypt in tests: keys, and what a store shows to who has none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perdure.encryption import Keyring
from tests.erasing import bytes_of
from tests.storages import look, on_server

KEYS = {"a": b"a" * 32, "b": b"b" * 32}
TABLES = (
    "runs",
    "records",
    "pieces",
    "timers",
    "receipts",
    "decisions",
    "tombstones",
    "attempts",
    "checkpoints",
    "messages",
    "approvals",
    "session_messages",
    "session_appends",
)


def keyring(current: str = "a", *, only: bool = True, accept_plaintext: bool = False) -> Keyring:
    """Return a keyring, with the current key alone or with both."""
    keys = {current: KEYS[current]} if only else KEYS
    return Keyring(current=current, keys=keys, accept_plaintext=accept_plaintext)


def raw(folder: Path) -> bytes:
    """Return all that a store shows: its files, or every row of every table, as text and as hex."""
    if not on_server(folder):
        return bytes_of(folder)
    rows = [row for table in TABLES for row in look(folder, f"SELECT {table}::text FROM {table}")]
    return "\n".join(text for (text,) in rows).encode()


def shows(folder: Path, mark: str | bytes) -> bool:
    """Return whether a store shows a text, or bytes, to who has no key."""
    data = mark.encode() if isinstance(mark, str) else mark
    seen = raw(folder)
    return data in seen or data.hex().encode() in seen


def stored_value(folder: Path, table: str, column: str, where: str = "true") -> Any:
    """Return one value as it is stored."""
    ((value,),) = look(folder, f"SELECT {column} FROM {table} WHERE {where}")
    return bytes(value) if isinstance(value, memoryview) else value


def store_value(folder: Path, table: str, column: str, value: Any, where: str = "true") -> None:
    """Put a value in a place, as somebody who may write to the database does."""
    look(folder, f"UPDATE {table} SET {column} = ? WHERE {where}", value)
