from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from perdure.errors import InvalidSessionArgument, LeaseLost, PerdureError, StorageBusy
from perdure.fence import Fence
from perdure.session import headers
from perdure.session.channel import Draft
from perdure.session.message import Action, WireMessage
from perdure.session.store import (
    Addition,
    Publication,
    Replacement,
    SessionOutcome,
    SessionWrite,
)
from perdure.storage.rows import fence_row
from perdure.storage.session_rows import (
    append_of,
    append_place,
    change_document,
    change_of,
    check_client,
    check_session,
    draft_document,
    folded,
    message_of,
    message_place,
    number_of,
    own_id,
    sealed_message,
    version_of,
)
from perdure.storage.vault import Vault

EPHEMERAL_SECONDS: Final = 60.0
"""How long what is ephemeral is delivered, at least."""

EPHEMERAL_ROWS: Final = 200
"""How much of it one write deletes at most."""

MOST_OPEN: Final = 512
"""How many versions a message may be behind what was appended to it, before it takes that in."""

_ENDS_STREAMS: Final = frozenset({headers.AI_STEP_END, headers.AI_RUN_END})
_ENDED: Final = frozenset({headers.COMPLETE, headers.CANCELLED})

Row: TypeAlias = Sequence[Any]
Steps: TypeAlias = Generator[
    tuple[str, Sequence[Mapping[str, Any]]], Sequence[Row], Sequence[SessionOutcome]
]
"""Named queries with a row of parameters each time; what they return is sent back."""

_Key: TypeAlias = tuple[int, int]
"""The number of a session, and the serial of a message in it."""


class _Prepared(msgspec.Struct):
    """A write with its documents, or why there is none."""

    write: SessionWrite
    documents: Sequence[bytes] = ()
    serial: int = 0
    refused: PerdureError | None = None


class _Session(msgspec.Struct):
    """A session that is locked, and how far it has come."""

    name: str
    number: int
    head: int
    floor: int

    def next(self) -> int:
        self.head += 1
        return self.head


class SessionBatch:
    """Writes to sessions that share a transaction."""

    def __init__(self, vault: Vault, writes: Sequence[SessionWrite]) -> None:
        self._vault = vault
        self._writes = [_prepared(write) for write in writes]
        self.publishes = any(isinstance(write, Publication) for write in writes)

    def steps(self, now: float, *, doubted: bool = False) -> Steps:
        """Yield what is to be run inside of a transaction, and return what became of each write.

        It may be called again after a transaction was rolled back. `doubted` tells that nobody
        knows whether it was: an append must not be written twice.
        """
        writing = _Writing(self._vault, self._writes, now)
        for place, prepared in enumerate(self._writes):
            writing.outcomes.append(prepared.refused)
            if doubted and isinstance(prepared.write, Addition):
                writing.outcomes[place] = prepared.refused or StorageBusy(
                    "the connection was lost while it was written: nobody knows whether it is there"
                )
        yield from writing.check_fences()
        yield from writing.lock()
        yield from writing.find()
        yield from writing.join()
        yield from writing.write()
        return [outcome for outcome in writing.outcomes if outcome is not None]


class _Writing:
    """One try to write: first it is found what there is, then it is written what comes of that."""

    def __init__(self, vault: Vault, writes: Sequence[_Prepared], now: float) -> None:
        self.outcomes: list[SessionOutcome | None] = []
        self._vault = vault
        self._writes = writes
        self._now = now
        self._sessions: dict[str, _Session] = {}
        self._names: dict[int, str] = {}
        self._published: dict[tuple[int, str], int] = {}
        self._known: dict[_Key, tuple[int, str | None]] = {}
        self._messages: list[dict[str, Any]] = []
        self._changes: dict[_Key, list[tuple[int, Action, str, bytes]]] = {}
        self._joins: set[_Key] = set()
        self._ends: set[tuple[int, str]] = set()
        self._joined: list[dict[str, Any]] = []

    def check_fences(self) -> Generator[Any, Any, None]:
        """Refuse what stands under fences that do not hold any more."""
        fences = {one.write.fence for _, one in self._left() if one.write.fence is not None}
        rows = yield "held_fences", [fence_row(fence) for fence in fences]
        held = {Fence(*row) for row in rows}
        for place, one in self._left():
            fence = one.write.fence
            if fence is not None and fence not in held:
                self.outcomes[place] = LeaseLost(fence.run_id)

    def lock(self) -> Generator[Any, Any, None]:
        """Keep others from writing to the sessions, and see how far they have come."""
        left = [one.write for _, one in self._left()]
        new = {write.session for write in left if isinstance(write, Publication)}
        made = [{"session": name, "changed_at": self._now} for name in sorted(new)]
        yield "create_sessions", made
        names = sorted({write.session for write in left})
        for row in (yield "lock_sessions", [{"session": name} for name in names]):
            session = _Session(*row)
            self._sessions[session.name] = session
            self._names[session.number] = session.name

    def find(self) -> Generator[Any, Any, None]:
        """Find the messages that were published before, and those that are to be changed."""
        ids: set[tuple[int, str]] = set()
        keys: set[_Key] = set()
        for _, one in self._left():
            session = self._sessions.get(one.write.session)
            if session is None:
                continue
            if isinstance(one.write, Publication):
                client_id, drafts = one.write.client_id, one.write.drafts
                ids.update((session.number, own_id(client_id, it.message_id)) for it in drafts)
            elif one.serial > session.floor:
                keys.add((session.number, one.serial))
        named = [{"session_number": number, "message_id": known} for number, known in ids]
        for number, message_id, serial in (yield "find_published", named):
            self._published[number, message_id] = serial
        for number, serial, version, run_id in (yield "find_changed", _rows(keys)):
            self._known[number, serial] = version, run_id
        for place, one in self._left():
            self.outcomes[place] = self._taken(one)

    def join(self) -> Generator[Any, Any, None]:
        """Let messages take in what was done to them, once their streams have ended."""
        ends = [{"session_number": number, "run_id": run_id} for number, run_id in self._ends]
        rows = yield "open_streams", ends
        self._joins.update((number, serial) for number, serial in rows)
        self._joins.update(
            key for key in self._changes if (key[0], self._known[key][1] or "") in self._ends
        )
        keys = _rows(self._joins)
        messages = yield "read_joined", keys
        changes: dict[_Key, list[WireMessage]] = {}
        for number, serial, version, client_id, stored in (yield "read_appended", keys):
            append = append_of(self._vault, self._names[number], version, serial, client_id, stored)
            changes.setdefault((number, serial), []).append(append)
        for number, serial, *row in messages:
            version, name, client_id, stored = row
            session = self._names[number]
            known = (version, serial, name, client_id, None, False, stored)
            message = message_of(self._vault, session, known)
            later = changes.get((number, serial), []) + self._unwritten((number, serial))
            self._note_joined(number, session, folded(message, later))
        yield "drop_joined", _rows(changes)

    def write(self) -> Generator[Any, Any, None]:
        """Write all that has come of it."""
        yield "insert_session_messages", self._messages
        appends = [
            self._append_row(key, change)
            for key, changes in self._changes.items()
            if key not in self._joins
            for change in changes
        ]
        yield "insert_session_appends", appends
        yield "join_session_messages", self._joined
        touched = {key[0] for key in self._changes}
        touched.update(row["session_number"] for row in self._messages)
        heads = [
            {"session_number": one.number, "head": one.head, "changed_at": self._now}
            for one in self._sessions.values()
            if one.number in touched
        ]
        yield "advance_sessions", heads

    def _left(self) -> list[tuple[int, _Prepared]]:
        return [
            (place, one) for place, one in enumerate(self._writes) if self.outcomes[place] is None
        ]

    def _taken(self, one: _Prepared) -> SessionOutcome:
        write = one.write
        session = self._sessions.get(write.session)
        if isinstance(write, Publication):
            assert session is not None  # it was created
            pairs = zip(write.drafts, one.documents, strict=True)
            return [self._publish(session, write, *pair) for pair in pairs]
        key = (session.number if session else 0, one.serial)
        if session is None or key not in self._known:
            return InvalidSessionArgument(
                f"the session {write.session!r} has no message {write.serial!a:.80} to change"
            )
        taken_in, run_id = self._known[key]
        if write.fence is not None and not _is_of(run_id, write.fence.run_id):
            return InvalidSessionArgument(
                f"the message {write.serial} of the session {write.session!r} is not of the run"
                f" {write.fence.run_id}, which may change its own"
            )
        version = session.next()
        replaces = isinstance(write, Replacement)
        action = Action.UPDATE if replaces else Action.APPEND
        change = (version, action, write.client_id, one.documents[0])
        self._changes.setdefault(key, []).append(change)
        ended = write.change.transport.get(headers.STATUS) in _ENDED
        if replaces or ended or version - taken_in >= MOST_OPEN:
            self._joins.add(key)
        return [version_of(version)]

    def _publish(self, session: _Session, write: Publication, draft: Draft, document: bytes) -> str:
        key = (session.number, own_id(write.client_id, draft.message_id))
        run_id = draft.transport.get(headers.RUN_ID) or None
        if draft.name in _ENDS_STREAMS and run_id is not None:
            self._ends.add((session.number, run_id))
        if key not in self._published:
            serial = self._published[key] = session.next()
            place = message_place(session.name, serial, serial, draft.name, write.client_id)
            self._messages.append(
                {
                    "session_number": session.number,
                    "serial": serial,
                    "message_id": key[1],
                    "name": draft.name,
                    "client_id": write.client_id,
                    "run_id": run_id,
                    "created_at": self._now,
                    "ephemeral": draft.ephemeral,
                    "document": self._vault.seal(document, place),
                }
            )
        return version_of(self._published[key])

    def _append_row(self, key: _Key, change: tuple[int, Action, str, bytes]) -> dict[str, Any]:
        number, serial = key
        version, _, client_id, document = change
        place = append_place(self._names[number], serial, version, client_id)
        return {
            "session_number": number,
            "serial": serial,
            "version": version,
            "client_id": client_id,
            "document": self._vault.seal(document, place),
        }

    def _unwritten(self, key: _Key) -> list[WireMessage]:
        """Return what is done to a message in this transaction."""
        return [
            change_of(action, version, key[1], client_id, document)
            for version, action, client_id, document in self._changes.get(key, ())
        ]

    def _note_joined(self, number: int, session: str, message: WireMessage) -> None:
        row = {
            "session_number": number,
            "serial": int(message.serial),
            "version": int(message.version),
            "document": sealed_message(self._vault, session, message),
        }
        self._joined.append(row)


def _rows(keys: Iterable[_Key]) -> list[dict[str, Any]]:
    return [{"session_number": number, "serial": serial} for number, serial in sorted(keys)]


def _prepared(write: SessionWrite) -> _Prepared:
    """Return a write that may be written, or why it may not."""
    try:
        check_session(write.session)
        check_client(write.client_id)
        if isinstance(write, Publication):
            return _Prepared(write, [draft_document(draft) for draft in write.drafts])
        # One that is no number is of no message.
        serial = number_of(write.serial) or 0
        return _Prepared(write, [change_document(write.change)], serial)
    except InvalidSessionArgument as error:
        return _Prepared(write, refused=error)


def _is_of(run_id: str | None, owner: str) -> bool:
    """Return whether a run of a session is a run of the store, or that begun again as `owner.2`."""
    first, _, number = (run_id or "").rpartition(".")
    return run_id == owner or (first == owner and number.isdecimal())
