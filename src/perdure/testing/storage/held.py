from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from perdure.errors import StorageBusy

OVER_BYTES: Final = 4096


class HeldBlobs:
    """A blob store in memory, for all stores of a check, which can be told to fail."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.deletes = True

    @property
    def over_bytes(self) -> int:
        """How large a value has to be, packed, to be kept here."""
        return OVER_BYTES

    async def put(self, name: str, data: bytes) -> None:
        """Keep a blob; raises `AssertionError` for one whose name is not that of its bytes."""
        if hashlib.sha256(data).hexdigest() != name:
            raise AssertionError(f"a blob is named by its SHA-256: {name} is another")
        self.data[name] = data

    async def get(self, name: str) -> bytes | None:
        """Return a blob, or None when there is none of that name."""
        return self.data.get(name)

    async def delete(self, name: str) -> None:
        """Delete a blob, if there is one; raises `StorageBusy` while `deletes` is False."""
        if not self.deletes:
            raise StorageBusy("the blob store is away")
        self.data.pop(name, None)

    def place(self, name: str) -> str:
        """Return the name."""
        return name

    def harm(self, how: Callable[[bytes], bytes | None]) -> None:
        """Replace every blob by what comes of its bytes, or take it away where that is None."""
        harmed = {name: how(data) for name, data in self.data.items()}
        self.data = {name: data for name, data in harmed.items() if data is not None}
