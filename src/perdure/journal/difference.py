from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final, cast

import msgspec

from perdure.codec.readable import readable
from perdure.errors import PerdureError, ReplayMismatch
from perdure.journal.store import JournalStore

_PATH_CHARACTERS: Final = 100
_VALUE_CHARACTERS: Final = 70
_ALIKE_SHOWN: Final = 10
_LACKING: Final = object()


async def explain(store: JournalStore, mismatch: ReplayMismatch) -> None:
    """Have a mismatch say where the inputs differ, if nothing but the inputs does.

    The input that was recorded is read here, where one is needed. What cannot be read is left out.
    """
    run_id, _, place = mismatch.key.partition("/")
    step_id, _, sequence = place.rpartition("/")
    asked_json, mismatch.asked_json = mismatch.asked_json, b""
    if asked_json:
        try:
            recorded_json = await store.read_input(run_id, step_id, int(sequence))
        except PerdureError:
            return
        mismatch.differ(difference(recorded_json, asked_json))


def difference(old_json: bytes, new_json: bytes) -> str:
    """Return where two JSON documents differ first and how, for people; empty if nowhere.

    It has 300 characters at most.
    """
    for shown in (readable, bytes):  # what people read may be the same for values that are not
        try:
            old, new = (msgspec.json.decode(shown(each)) for each in (old_json, new_json))
            found = _first("", old, new)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        if found is not None:
            return _told(*found)
    return ""


def _first(path: str, old: Any, new: Any) -> tuple[str, Any, Any] | None:
    """Return the path of the first difference and what is there; what is not there is lacking."""
    if _bytes(old) == _bytes(new):
        return None
    while True:
        for step, one, other in _parts(old, new):
            if _LACKING in (one, other) or _bytes(one) != _bytes(other):
                path, old, new = path + step, one, other
                break
        else:
            return path, old, new


def _parts(old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield what two values of the same kind are made of, side by side."""
    if isinstance(old, dict) and isinstance(new, dict):
        one, other = cast("dict[str, Any]", old), cast("dict[str, Any]", new)
        for name in sorted({*one, *other}):
            yield f".{name}", one.get(name, _LACKING), other.get(name, _LACKING)
    elif isinstance(old, list) and isinstance(new, list):
        first, second = cast("list[Any]", old), cast("list[Any]", new)
        for number in range(max(len(first), len(second))):
            one, other = (each[number : number + 1] or [_LACKING] for each in (first, second))
            yield f"[{number}]", one[0], other[0]


def _bytes(value: Any) -> bytes:
    # Not compared as Python does it: to that, 1 and 1.0 and true are equal.
    return msgspec.json.encode(value, order="deterministic")


def _told(path: str, old: Any, new: Any) -> str:
    path = path.removeprefix(".") or "it"
    if len(path) > _PATH_CHARACTERS:
        path = f"…{path[1 - _PATH_CHARACTERS :]}"
    if old is _LACKING:
        return f"{path} is new: {_shown(new)}"
    if new is _LACKING:
        return f"{path} is gone, and was {_shown(old)}"
    skipped = 0
    if isinstance(old, str) and isinstance(new, str):
        alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))
        skipped = max(0, sum(1 for _ in alike) - _ALIKE_SHOWN)
    return f"{path} was {_shown(old, skipped)} and is {_shown(new, skipped)}"


def _shown(value: Any, skipped: int = 0) -> str:
    """Return a value as JSON that is cut to some characters; `skipped` are left out in front."""
    text = f"…{value[skipped:]}" if skipped else value
    said = msgspec.json.encode(text[:_VALUE_CHARACTERS] if skipped else text).decode()
    return said if len(said) <= _VALUE_CHARACTERS else f"{said[: _VALUE_CHARACTERS - 1]}…"
