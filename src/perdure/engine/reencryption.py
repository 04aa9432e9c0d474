from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

CLASSES: Final = (
    "runs",
    "records",
    "timers",
    "receipts",
    "decisions",
    "pieces",
    "checkpoints",
    "messages",
    "approvals",
    "session_messages",
    "session_appends",
)
"""What holds values that are encrypted."""


class Resealed(msgspec.Struct, frozen=True):
    """What one transaction encrypted anew: so many rows of a class, and where to go on.

    `unreadable` says of each row that stayed as it was why its values could not be read. `after` is
    None at the end of the class.
    """

    name: str
    count: int
    unreadable: Sequence[str] = ()
    after: Any = None


class Resealing(Protocol):
    """The port through which a store encrypts anew what it holds."""

    async def missing_keys(self) -> Sequence[str]:
        """Return the ids of the keys that the store was written with and that are not here.

        There were none as it was opened: others have written with these since.
        """
        ...

    async def count_stale(self) -> Mapping[str, int]:
        """Return how many rows of each class hold what is not encrypted with the current key."""
        ...

    async def reseal_some(self, name: str, after: Any) -> Resealed:
        """Encrypt some rows of a class with the current key, in one transaction of bounded size.

        `after` is that of the call before, None for the first.
        Durable when it returns: the rows, fsynced.
        """
        ...

    async def end_resealing(self, *, whole: bool, rewrite: bool) -> bool:
        """Remove what is left of earlier values where the store no longer uses it, if it can.

        `whole` tells that everything is encrypted with the current key: the store forgets the other
        ones. `rewrite` writes the whole store anew, while other writers wait. Returns whether
        nothing of earlier values is left.
        Durable when it returns: all of that.
        """
        ...


async def reencrypt(store: Resealing) -> AsyncGenerator[Resealed]:
    """Encrypt everything with the current key, transaction by transaction; yield each.

    Safe beside live workers, as long as none encrypts with another key. Cut short, the next call
    goes on with what is left. `end_resealing` is to follow.
    """
    for name in CLASSES:
        after = None
        while True:
            some = await store.reseal_some(name, after)
            yield some
            after = some.after
            if after is None:
                break
