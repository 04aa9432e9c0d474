from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager

from perdure.channels.stored.feeds import Feeds
from perdure.channels.stored.writer import Writer
from perdure.errors import HistoryFailed, StorageError
from perdure.fence import Fence
from perdure.session import headers
from perdure.session.channel import Draft, HistoryPage, Revision, Snapshot
from perdure.session.message import WireMessage
from perdure.session.store import Addition, Publication, Replacement, SessionStore


class StoredChannel:
    """A `SnapshotChannel` over a store, as one client of a session has it.

    With a fence, it writes only for as long as that holds.
    """

    def __init__(
        self,
        session: str,
        client_id: str,
        fence: Fence | None,
        *,
        store: SessionStore,
        writer: Writer,
        feeds: Feeds,
    ) -> None:
        self._session = session
        self._client_id = client_id
        self._fence = fence
        self._store = store
        self._writer = writer
        self._feeds = feeds

    async def publish(self, drafts: Sequence[Draft]) -> list[str]:
        """Write messages, all or none, and return their serials in ascending order.

        Durable when it returns: all but ephemeral ones, fsynced.
        If it raises: `LeaseLost` or `InvalidSessionArgument`, and nothing is written; after
        `SendFailed` nobody knows.
        """
        for draft in drafts:
            draft.check()
        write = Publication(
            session=self._session, client_id=self._client_id, drafts=drafts, fence=self._fence
        )
        return list(await self._writer.write(write, soon=True))

    async def append(self, serial: str, change: Revision) -> str:
        """Add to a message, with what others write within 15 ms; return the version.

        The end of a stream does not wait for others.
        Durable when it returns: the addition, fsynced.
        If it raises: as `publish`.
        """
        change.check()
        write = Addition(
            session=self._session,
            client_id=self._client_id,
            serial=serial,
            change=change,
            fence=self._fence,
        )
        grows = change.transport.get(headers.STATUS) == headers.STREAMING
        (version,) = await self._writer.write(write, soon=not grows)
        return version

    async def update(self, serial: str, change: Revision) -> str:
        """Replace a message; return the version.

        Durable when it returns: the message, fsynced.
        If it raises: as `publish`.
        """
        change.check()
        write = Replacement(
            session=self._session,
            client_id=self._client_id,
            serial=serial,
            change=change,
            fence=self._fence,
        )
        (version,) = await self._writer.write(write, soon=True)
        return version

    async def history(self, before: str | None = None, limit: int = 100) -> HistoryPage:
        """Return messages as they stand, newest first. Raises `HistoryFailed`."""
        try:
            return await self._store.session_page(self._session, before, limit)
        except StorageError as error:
            raise HistoryFailed(f"the history cannot be read: {error}; try again") from error

    async def snapshot(self, limit: int = 100) -> Snapshot:
        """Return the newest messages, and the cursor behind them. Raises `HistoryFailed`."""
        try:
            return await self._store.session_snapshot(self._session, limit)
        except StorageError as error:
            raise HistoryFailed(f"the history cannot be read: {error}; try again") from error

    def subscribe(
        self, after: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[WireMessage]]:
        """Attach, and give every delivery behind a cursor, or from now on.

        Raises `ContinuityLost` on entering where the store does not go back to the cursor, and
        from the iterator where that happens later: the session was erased, or a reader so slow that
        what it is to be given next is gone.
        """
        return self._feeds.subscribe(self._session, after)
