from __future__ import annotations

from typing import Any, Final

from perdure.engine.store import RunStore
from perdure.errors import LeaseLost, PerdureError
from perdure.fence import Fence
from perdure.session import headers
from perdure.session.channel import Draft, Revision
from perdure.session.message import WireMessage
from perdure.session.message_log import MessageLog
from perdure.session.store import (
    Addition,
    Publication,
    Replacement,
    SessionOutcome,
    SessionWrite,
)
from perdure.testing.storage.expecting import ensure, expect

BEGINNING: Final = "0" * 16
"""The cursor before the first version of a session."""

EVERYTHING: Final = 1000
"""More than any session of a check has."""


class Reader:
    """Follows a session from a cursor, and holds what that comes to."""

    def __init__(self, store: RunStore, session: str = "talk") -> None:
        self.cursor = BEGINNING
        self.deliveries: list[WireMessage] = []
        self._store = store
        self._session = session
        self._log = MessageLog()

    async def follow(self, limit: int = EVERYTHING, most: int = EVERYTHING) -> None:
        """Read on to the end, so many at a time, or `most` at once."""
        while some := await self._store.session_deliveries(self._session, self.cursor, limit):
            for delivery in some:
                ensure(delivery.version > self.cursor, "versions that ascend")
                self.cursor = delivery.version
                self._log.receive(delivery)
            self.deliveries += some
            most -= len(some)
            if most <= 0:
                return

    async def expect_page(self, what: str) -> None:
        """Expect the pages of the session to be what was followed; ephemeral messages are not."""
        page = await self._store.session_page(self._session, None, EVERYTHING)
        kept = {each.serial for each in self.deliveries if not each.ephemeral}
        held = [self._log.get(serial) for serial in sorted(kept, reverse=True)]
        expect(
            [_told(each) for each in page.messages], [each and _told(each) for each in held], what
        )


async def said(
    store: RunStore, *drafts: Draft, session: str = "talk", fence: Fence | None = None
) -> list[str]:
    """Publish to a session, and return the serials."""
    (outcome,) = await store.write_session([publication(session, *drafts, fence=fence)])
    return _serials(outcome)


async def changed(store: RunStore, write: SessionWrite) -> str:
    """Change a message, and return the version."""
    (version,) = _serials((await store.write_session([write]))[0])
    return version


def draft(message_id: str, **what: Any) -> Draft:
    """Return a message that is whole."""
    given: dict[str, Any] = {"name": headers.AI_OUTPUT, "transport": {"role": "user"}, **what}
    return Draft(message_id=message_id, **given)


def streamed(message_id: str, *, run_id: str = "") -> Draft:
    """Return a message that grows."""
    transport = {headers.STREAM: headers.TRUE, headers.STATUS: headers.STREAMING}
    if run_id:
        transport[headers.RUN_ID] = run_id
    return draft(message_id, data="", transport=transport, codec={headers.KIND: "text"})


def append(
    serial: str,
    text: str,
    status: str = headers.STREAMING,
    *,
    session: str = "talk",
    fence: Fence | None = None,
) -> Addition:
    """Return what is appended to a message of a session."""
    change = revision(text, status)
    return Addition(session=session, client_id="ada", serial=serial, change=change, fence=fence)


def update(
    serial: str, text: str, *, session: str = "talk", fence: Fence | None = None
) -> Replacement:
    """Return what is made of a message of a session."""
    change = revision(text)
    return Replacement(session=session, client_id="ada", serial=serial, change=change, fence=fence)


def revision(text: str, status: str = headers.STREAMING) -> Revision:
    """Return a change of a message that grows."""
    transport = {headers.STREAM: headers.TRUE, headers.STATUS: status}
    return Revision(data=text, transport=transport, codec={headers.KIND: "text"})


def publication(session: str, *drafts: Draft, fence: Fence | None = None) -> Publication:
    """Return messages that a client adds to a session."""
    return Publication(session=session, client_id="ada", drafts=drafts, fence=fence)


def _serials(outcome: SessionOutcome) -> list[str]:
    if isinstance(outcome, PerdureError | LeaseLost):
        raise AssertionError(f"a write that is not refused: {outcome!r}")
    return [*outcome]


def _told(message: WireMessage) -> object:
    """Return what readers see of a message."""
    return message.serial, message.version, message.data, message.transport, message.codec
