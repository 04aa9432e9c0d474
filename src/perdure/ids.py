from __future__ import annotations

import hashlib
import os
import re
import time
from typing import Final

from perdure.errors import InvalidInvocation

IDENTIFIER_LIMIT: Final = 128
"""The most characters an identifier may have."""

NAMESPACE_LIMIT: Final = 64
"""The most characters that `shortened` leaves, so that a step id fits behind them."""

_DIGEST_CHARACTERS: Final = 20

_is_identifier: Final = re.compile(r"[A-Za-z0-9._-]{1,128}").fullmatch
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9._-]")


def is_identifier(value: object) -> bool:
    """Return whether a value is 1 to 128 characters of A-Z a-z 0-9 . _ -."""
    return isinstance(value, str) and _is_identifier(value) is not None


def check_identifier(value: object, what: str) -> str:
    """Return an identifier, or raise `InvalidInvocation` with the rule; `what` names it."""
    if isinstance(value, str):
        if _is_identifier(value):
            return value
        shown = repr(value) if len(value) <= IDENTIFIER_LIMIT else f"of {len(value)} characters"
    else:
        shown = f"of type {type(value).__name__}"
    raise InvalidInvocation(
        f"the {what} {shown} is not an identifier: it has 1 to {IDENTIFIER_LIMIT} characters, each"
        " one of A-Z a-z 0-9 . _ -"
    )


def new_run_id(now: float | None = None) -> str:
    """Return an id for a new run; ids made at a later millisecond sort behind earlier ones.

    `now` is wall time in seconds since the epoch, by default the system's.
    """
    milliseconds = int((time.time() if now is None else now) * 1000)
    return f"run-{milliseconds:012x}-{os.urandom(8).hex()}"


def stable_key(run_id: str, step_id: str, sequence: int) -> str:
    """Return the key of an operation: what is asked under it is checked, and is not part of it."""
    return f"{run_id}/{step_id}/{sequence}"


def namespaced(namespace: str, step_id: str) -> str:
    """Return a step id within a namespace, joined by a dot; the empty namespace adds nothing.

    Raises `InvalidInvocation` when the result is not an identifier, also when it is too long.
    """
    return check_identifier(f"{namespace}.{step_id}" if namespace else step_id, "step id")


def shortened(namespace: str, limit: int = NAMESPACE_LIMIT) -> str:
    """Return a namespace of at most `limit` characters, the same one each time.

    A longer one keeps its beginning and ends in a digest of the whole.
    """
    return namespace if len(namespace) <= limit else _digested(namespace, limit)


def error_name_of(kind: type[BaseException]) -> str:
    """Return the identifier under which exceptions of a type are recorded as failures."""
    name = _ILLEGAL.sub("_", kind.__name__) or "Error"
    return name if len(name) <= IDENTIFIER_LIMIT else _digested(name, IDENTIFIER_LIMIT)


def _digested(text: str, limit: int) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{text[: limit - _DIGEST_CHARACTERS - 1]}-{digest}"
