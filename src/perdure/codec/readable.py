from __future__ import annotations

from typing import Any, cast

import msgspec

from perdure.canonical import decode
from perdure.codec.mark import MARK
from perdure.errors import InvalidPayload


def readable(data: bytes) -> bytes:
    """Return a document as people read it; it is not read back.

    What the codec wrote as an object of its own becomes one with a single member, which is called
    what the value is: `{"decimal": "1.50"}`.
    """
    if MARK.encode() not in data:
        return data
    try:
        return msgspec.json.encode(_shown(decode(data)))
    except (InvalidPayload, RecursionError):
        return data


def _shown(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_shown(item) for item in cast("list[Any]", tree)]
    if not isinstance(tree, dict):
        return tree
    members = {key: _shown(item) for key, item in cast("dict[str, Any]", tree).items()}
    tag = members.pop(MARK, None)
    if not isinstance(tag, str):
        return members if tag is None else {MARK: tag, **members}
    name = str(members.pop("type", tag))
    if tag == "object":
        parts = [members.get(part) for part in ("fields", "extra", "private")]
        held = [cast("dict[str, Any]", part) for part in parts if isinstance(part, dict)]
        return {name: {key: item for part in held for key, item in part.items()}}
    return {name: next(iter(members.values())) if len(members) == 1 else members}
