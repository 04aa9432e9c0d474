from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

NEWEST_CUTS: Final = 4
"""The most cuts, counted from the end, up to which an input is digested apart."""

_CONVERSATIONS: Final = 8
_NOTHING: Final = hashlib.sha256().digest()


class Digests(msgspec.Struct, frozen=True, gc=False):
    """The SHA-256 of an input, and those of it up to each of its newest cuts, in their order."""

    whole: bytes
    newest: tuple[bytes, ...] = ()


class _Known(msgspec.Struct, frozen=True):
    """A beginning of an input, the hash that has read it, and the digests up to cuts in it."""

    beginning: bytes
    state: Any
    digests: dict[int, bytes]


class Digester:
    """Digests the inputs of one run, and reads a conversation no further than it is new.

    A conversation is sent again with every request, a little longer each time. To compare what it
    begins with to the request before costs a small part of what a digest of it costs.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def digest(self, step_id: str, document: bytes, cuts: Sequence[int]) -> Digests:
        """Return the digests of an input of a step."""
        if not cuts:
            return Digests(hashlib.sha256(document).digest())
        newest = cuts[-NEWEST_CUTS:]
        known = self._beginning(step_id, document, newest)
        running = known.state.copy()
        digests: dict[int, bytes] = {}
        read = len(known.beginning)
        for end in newest:
            if end > read:
                running.update(document[read:end])
                digests[end] = running.digest()
                read = end
            elif end not in digests:
                digests[end] = known.digests[end]
        self._remember(step_id, _Known(document[:read], running.copy(), digests))
        running.update(document[read:])
        return Digests(running.digest(), tuple(digests[end] for end in newest))

    def _beginning(self, step_id: str, document: bytes, newest: Sequence[int]) -> _Known:
        """Return what is known of how a document begins; nothing where a digest would miss."""
        known = self._known.get(step_id)
        if known is not None and document.startswith(known.beginning):
            read = len(known.beginning)
            if all(end > read or end in known.digests for end in newest):
                return known
        return _Known(b"", hashlib.sha256(), {0: _NOTHING})

    def _remember(self, step_id: str, known: _Known) -> None:
        self._known.pop(step_id, None)
        self._known[step_id] = known
        if len(self._known) > _CONVERSATIONS:
            del self._known[next(iter(self._known))]
