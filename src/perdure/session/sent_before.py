from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from perdure.errors import InputConflict
from perdure.session import headers
from perdure.session.codec import Codec, Regeneration, Said, Saying
from perdure.session.message import WireMessage

_PLACE: Final = (headers.RUN_ID, headers.FORK_OF, headers.MSG_REGENERATE)
_NOT_COMPARED: Final = ("messageId", "reason")


def check_same(
    event_id: str,
    parts: Sequence[WireMessage],
    said: Said,
    about: Mapping[str, str],
    codec: Codec,
) -> None:
    """Raise `InputConflict` where what stands under an event id is not what is said now.

    What it follows is no part of that, since the conversation goes on meanwhile, nor are ids. Of an
    answer to an agent that asks, it is the decision: several people may come to the same. Which run
    is answered is compared where `about` tells.
    """
    before = [_content(part.codec, part.data) for part in parts]
    now = [_content(whole.fields, whole.data) for whole in codec.encode_said(said, event_id)]
    first = parts[0]
    if isinstance(said, Saying | Regeneration):
        moved = any(first.header(name) != about.get(name, "") for name in _PLACE)
    else:
        moved = _answered(about) not in ("", _answered(first.transport or {}))
    if before != now or moved:
        raise InputConflict(
            f"something else was sent as {event_id}: that stands, and this was not sent; give it"
            " an event id of its own"
        )


def _answered(about: Mapping[str, str]) -> str:
    """Return the run that an answer is for: one goes on, or is left for another."""
    return about.get(headers.RUN_ID, "") or about.get(headers.SUPERSEDES, "")


def _content(fields: Mapping[str, str], data: Any) -> tuple[dict[str, str], Any]:
    """Return what a message says, as the channel has it."""
    told = {name: value for name, value in fields.items() if name not in _NOT_COMPARED}
    plain = msgspec.json.decode(msgspec.json.encode(data))
    if isinstance(plain, dict):
        members = cast("dict[str, Any]", plain)
        # What a fork begins with is of the run that is left, as it stood then.
        return told, {name: value for name, value in members.items() if name != "forkSeed"}
    return told, "" if plain is None else plain
