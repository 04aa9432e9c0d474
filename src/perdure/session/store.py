from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from perdure.errors import LeaseLost, PerdureError
from perdure.fence import Fence
from perdure.session.channel import Draft, HistoryPage, Revision, Snapshot
from perdure.session.message import WireMessage


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that a client adds to a session, all or none; an agent's carry its run's fence."""

    session: str
    client_id: str
    drafts: Sequence[Draft]
    fence: Fence | None = None


class Addition(msgspec.Struct, frozen=True, kw_only=True):
    """What a client appends to the message `serial`."""

    session: str
    client_id: str
    serial: str
    change: Revision
    fence: Fence | None = None


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """What a client makes of the message `serial`."""

    session: str
    client_id: str
    serial: str
    change: Revision
    fence: Fence | None = None


SessionWrite = Publication | Addition | Replacement

SessionOutcome = Sequence[str] | PerdureError | LeaseLost
"""Serials or a version, or why a write was refused."""


class SessionRow(msgspec.Struct, frozen=True):
    """A session that something is stored of: its last version, and when it was written to.

    `changed_at` is in wall seconds, UTC.
    """

    session: str
    head: str
    changed_at: float


class SessionStore(Protocol):
    """The port through which the messages of sessions are kept.

    Serials and versions are decimal numbers of sixteen digits that count up within a session, over
    messages and what is appended to them alike. They are given out in the transaction that writes,
    in the order in which those are committed: whoever has read up to a version misses nothing
    below it. What reads raises `InvalidSessionArgument` for what can be no session's name: one has
    1 to 512 bytes of printable text.
    """

    async def write_session(self, writes: Sequence[SessionWrite]) -> Sequence[SessionOutcome]:
        """Write in one transaction, in this order; return what became of each.

        That is the serials of a publication, or the version of an addition or a replacement, alone
        in its list. A draft whose `message_id` its client published before keeps its serial.
        One that is refused leaves no trace and does not keep the others from being written:
        `LeaseLost` where the fence no longer holds, `InvalidSessionArgument` where there is no such
        message, where it is of another run than the fence, and for what cannot be stored. Of an
        addition it may be a `StorageBusy`: nobody knows then whether it was written, and an update
        makes up for it.

        Durable when it returns: all that is not refused, fsynced.
        If it raises: a `StorageError`; nothing was written, or after a `StorageBusy` nobody knows.
        """
        ...

    async def session_deliveries(
        self, session: str, after: str, limit: int
    ) -> Sequence[WireMessage]:
        """Return what has changed since the version `after`, in the order of versions.

        A message that is newer than `after` is a create, or an update where it was changed since.
        What was appended to an older one is appends, or one update with all of it where they have
        been joined. What is ephemeral is among them for about a minute. Raises `ContinuityLost`
        where `after` is of no version that the session still goes back to, or not of this session.
        """
        ...

    async def session_page(self, session: str, before: str | None, limit: int) -> HistoryPage:
        """Return the newest stored messages with a serial lower than `before`, or of all."""
        ...

    async def session_snapshot(self, session: str, limit: int) -> Snapshot:
        """Return the newest messages as they stand, and the version that they stand at."""
        ...

    async def session_heads(self, sessions: Sequence[str]) -> Mapping[str, str]:
        """Return the last version of each session; one that nothing was written to is left out."""
        ...

    async def list_sessions(self, limit: int) -> Sequence[SessionRow]:
        """Return the sessions that were written to last, the last one first."""
        ...

    async def erase_session(self, session: str) -> bool:
        """Delete all messages of a session; return whether there were any.

        Not in one transaction, but from the first one on nobody reads any of them. What is
        published afterwards goes on counting, so that cursors from before are known to be lost.
        Durable when it returns: the deletions, fsynced. After a `StorageError` or a crash, erasing
        again finishes what was begun.
        """
        ...
