from __future__ import annotations

from typing import Final

import msgspec

from perdure.errors import InvalidInvocation, InvalidOptions
from perdure.ids import check_identifier

_NAME_CHARACTERS: Final = 64
_HIGHEST: Final = 32767


class Queued(msgspec.Struct, frozen=True):
    """In which queue a run waits for a worker, under which key, and before which others.

    `key` is what the queue bounds by itself besides, such as a tenant, or None. Of the runs that a
    worker may take, it takes those of the highest `priority` first.
    """

    queue: str
    key: str | None = None
    priority: int = 0


def queued_of(queue: str | None, key: str | None, priority: int) -> Queued | None:
    """Return where a run is to wait, None for one of no queue; raises `InvalidOptions`."""
    if queue is None:
        if key is not None or priority != 0:
            raise InvalidOptions("a key and a priority are a queue's: pass queue='…' as well")
        return None
    check_queue(queue)
    if key is not None:
        _check(key, "queue's key")
    if type(priority) is not int or not -_HIGHEST <= priority <= _HIGHEST:
        raise InvalidOptions(
            f"a priority is a whole number from -{_HIGHEST} to {_HIGHEST}, not {priority!r}"
        )
    return Queued(queue, key, priority)


def check_queue(name: str) -> str:
    """Return what may be the name of a queue; raises `InvalidOptions` for what may not."""
    _check(name, "queue's name")
    if len(name) > _NAME_CHARACTERS:
        raise InvalidOptions(f"a queue's name has at most {_NAME_CHARACTERS} characters")
    return name


def _check(value: str, what: str) -> None:
    try:
        check_identifier(value, what)
    except InvalidInvocation as error:
        raise InvalidOptions(str(error)) from error
