from __future__ import annotations

from typing import Any

import msgspec

from perdure.errors import InvalidInvocation
from perdure.ids import is_identifier, shortened


class EventAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an external event comes to: a JSON value, or why there will be none."""

    payload: Any = None
    failure: str | None = None


def message_named(step_id: str, number: int) -> str:
    """Return the name of the message that resolves the event of a place in a run."""
    return shortened(f"{step_id}.{number}")


def token_of(run_id: str, message: str) -> str:
    """Return the token that resolves an event, from any process."""
    return f"{run_id}/{message}"


def parts_of(token: str) -> tuple[str, str]:
    """Return the run and the message of a token; raises `InvalidInvocation` for what is none."""
    run_id, _, message = token.partition("/")
    if not (is_identifier(run_id) and is_identifier(message)):
        raise InvalidInvocation(f"{token[:200]!r} is not the token of an external event")
    return run_id, message
