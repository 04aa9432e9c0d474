from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from perdure.engine.store import RunState

STYLES: Final = {
    RunState.PENDING: "cyan",
    RunState.RUNNING: "blue",
    RunState.SLEEPING: "cyan",
    RunState.SUSPENDED: "cyan",
    RunState.CANCELLING: "yellow",
    RunState.NEEDS_ATTENTION: "bold yellow",
    RunState.COMPLETED: "green",
    RunState.FAILED: "red",
    RunState.CANCELLED: "dim",
}
"""The colour of each state of a run."""

SHA256_SHOWN: Final = 12
"""How many hex characters of a digest people get to see."""

_digests: Final = re.compile(rf"\b([0-9a-f]{{{SHA256_SHOWN}}})[0-9a-f]{{{64 - SHA256_SHOWN}}}\b")
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


def instant(at: float | None) -> datetime | None:
    """Return wall seconds as an aware instant, UTC; a JSON document shows it as RFC 3339."""
    return None if at is None else datetime.fromtimestamp(at, UTC)


def moment(at: float | None) -> str:
    """Return wall seconds for people: UTC, to the second, marked Z."""
    found = instant(at)
    return "" if found is None else found.strftime("%Y-%m-%d %H:%M:%SZ")


def duration(seconds: float | None) -> str:
    """Return a duration for people, such as 12 ms, 3.4 s, 2 min 5 s, 3 h 4 min or 2 d 3 h."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def size(count: int) -> str:
    """Return a number of bytes for people, such as 512 B or 1.2 MB."""
    amount = float(count)
    for unit in _UNITS:
        if amount < 1000 or unit == _UNITS[-1]:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError


def shortened(text: str, limit: int) -> str:
    """Return text of at most `limit` characters, with an ellipsis where it was cut."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def abridged(message: str) -> str:
    """Return a message for people, with every SHA-256 digest in it cut to its beginning."""
    return _digests.sub(r"\1…", message)


def number_of(count: int, noun: str) -> str:
    """Return a count with its noun in the right number, such as 1 run or 2 runs."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
