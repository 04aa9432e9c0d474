from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from perdure.canonical import INPUT_LIMIT_BYTES, check_size, encode
from perdure.errors import ContinuityLost, InvalidPayload, InvalidSessionArgument, StorageCorrupt
from perdure.session import headers
from perdure.session.channel import Draft, HistoryPage, Revision, Snapshot
from perdure.session.message import Action, WireMessage
from perdure.session.message_log import MessageLog
from perdure.session.store import SessionRow
from perdure.storage.vault import Vault

EVER: Final = (1 << 63) - 1
"""What is higher than every serial."""

_DIGITS: Final = 16
_NAME_BYTES: Final = 512
_SESSION, _MESSAGE, _APPEND = range(3)
"""The kinds of rows that a page and deliveries are read from."""


class _Document(msgspec.Struct):
    """What is sealed of a message, or of what was appended to one."""

    transport: dict[str, str]
    codec: dict[str, str]
    data: Any = None


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Document).decode


# --- what may be written -----------------------------------------------------------------------


def own_id(client_id: str, message_id: str) -> str:
    """Return the id of a message among those of all clients, none of which takes another's."""
    return f"{client_id}\x1f{message_id}"


def check_session(session: str) -> None:
    """Check what is to be the name of a session; raises `InvalidSessionArgument`."""
    _check_text(session, "the name of a session")
    if not session:
        raise InvalidSessionArgument("the name of a session is empty")


def draft_document(draft: Draft) -> bytes:
    """Return what is to be sealed of a draft; raises `InvalidSessionArgument`."""
    run_id = draft.transport.get(headers.RUN_ID, "")
    for text, what in ((draft.name, "name"), (draft.message_id, "id"), (run_id, "run id")):
        _check_text(text, f"the {what} of a message")
    try:
        data = encode(draft.data, what="data")
    except InvalidPayload as error:
        raise InvalidSessionArgument(f"the data of a message are no JSON: {error}") from error
    return _document(draft.transport, draft.codec, msgspec.Raw(data))


def change_document(change: Revision) -> bytes:
    """Return what is to be sealed of a change; raises `InvalidSessionArgument`."""
    return _document(change.transport, change.codec, change.data)


def check_client(client_id: str) -> None:
    """Check what is to be the id of a client; raises `InvalidSessionArgument`."""
    _check_text(client_id, "the id of a client")


def _check_text(text: object, what: str) -> None:
    """Check what stands in a column of its own, and in indexes."""
    if not isinstance(text, str) or not text.isprintable():
        raise InvalidSessionArgument(f"{what} is no text that can be printed: {text!a:.80}")
    if len(text.encode()) > _NAME_BYTES:
        raise InvalidSessionArgument(
            f"{what} has {len(text.encode())} bytes, and {_NAME_BYTES} are the most"
        )


def _document(transport: dict[str, str], codec: dict[str, str], data: Any) -> bytes:
    try:
        document = _encode(_Document(transport, codec, data))
        check_size(document, what="a message with its headers", limit_bytes=INPUT_LIMIT_BYTES)
        # What could not be read again would keep all of its session from being read.
        _decode(document)
    except (InvalidPayload, msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InvalidSessionArgument(f"a message cannot be stored: {error}") from error
    return document


# --- versions ----------------------------------------------------------------------------------


def version_of(number: int) -> str:
    """Return a serial or a version as it is known outside."""
    return f"{number:0{_DIGITS}}"


def number_of(version: str) -> int | None:
    """Return the number of a serial or a version, or None for what is none."""
    known = len(version) == _DIGITS and version.isascii() and version.isdigit()
    return int(version) if known else None


# --- rows --------------------------------------------------------------------------------------


def message_place(session: str, serial: int, version: int, name: str, client_id: str) -> str:
    """Return the place of the document of a message, with what else its row says."""
    return f"message {session}/{version_of(serial)}|{version}|{name}|{client_id}"


def append_place(session: str, serial: int, version: int, client_id: str) -> str:
    """Return the place of what was appended to a message, with what else its row says."""
    return f"an append to message {session}/{version_of(serial)}|{version}|{client_id}"


def sealed_message(vault: Vault, session: str, message: WireMessage) -> bytes:
    """Return the document of a message as it stands, sealed."""
    place = message_place(
        session,
        int(message.serial),
        int(message.version),
        message.name or "",
        message.client_id,
    )
    return vault.seal(
        _encode(_Document(message.transport or {}, message.codec, message.data)), place
    )


def message_of(vault: Vault, session: str, row: Sequence[Any]) -> WireMessage:
    """Return a message from its row.

    Raises `StorageCorrupt` or `KeyUnavailable` where it is not what was written there.
    """
    version, serial, name, client_id, created_at, ephemeral, stored = row
    place = message_place(session, serial, version, name, client_id)
    found = _read(vault, stored, place)
    return WireMessage(
        serial=version_of(serial),
        version=version_of(version),
        action=Action.CREATE if version == serial else Action.UPDATE,
        name=name,
        data=found.data,
        client_id=client_id,
        timestamp=None if created_at is None else float(round(created_at * 1000)),
        transport=found.transport,
        codec=found.codec,
        ephemeral=bool(ephemeral),
    )


def append_of(
    vault: Vault, session: str, version: int, serial: int, client_id: str, stored: bytes
) -> WireMessage:
    """Return what was appended from its row; raises as `message_of`."""
    place = append_place(session, serial, version, client_id)
    found = _read(vault, stored, place)
    return _change(Action.APPEND, version, serial, client_id, found)


def change_of(
    action: Action, version: int, serial: int, client_id: str, document: bytes
) -> WireMessage:
    """Return what is done to a message, from its document as `change_document` returned it."""
    return _change(action, version, serial, client_id, _decode(document))


def _change(
    action: Action, version: int, serial: int, client_id: str, found: _Document
) -> WireMessage:
    return WireMessage(
        serial=version_of(serial),
        version=version_of(version),
        action=action,
        data=found.data,
        client_id=client_id,
        transport=found.transport,
        codec=found.codec,
    )


def _read(vault: Vault, stored: bytes, place: str) -> _Document:
    data = vault.unseal(bytes(stored), place)
    try:
        return _decode(data)
    except msgspec.DecodeError as error:
        raise StorageCorrupt(
            f"{place.partition('|')[0]} is damaged in the database; restore it from a backup"
        ) from error


def folded(message: WireMessage, changes: Sequence[WireMessage]) -> WireMessage:
    """Return what a message is after changes, which are in the order of their versions."""
    log = MessageLog()
    log.receive(message)
    for kind, alike in itertools.groupby(changes, key=lambda change: change.action):
        some = [*alike]
        for change in [_together(some)] if kind is Action.APPEND else some:
            log.receive(change)
    return log.get(message.serial) or message


def _together(appends: Sequence[WireMessage]) -> WireMessage:
    """Return one append for several: to add them one by one would copy the text each time."""
    last = appends[-1]
    said = [status for each in appends if (status := each.header(headers.STATUS))]
    return msgspec.structs.replace(
        last,
        data="".join(each.text for each in appends),
        transport={**(last.transport or {}), headers.STATUS: said[-1] if said else ""},
    )


# --- what is read ------------------------------------------------------------------------------


def deliveries_of(
    vault: Vault, session: str, after: int | None, limit: int, rows: Sequence[Sequence[Any]]
) -> list[WireMessage]:
    """Return deliveries from the rows of `read_deliveries`; raises `ContinuityLost`."""
    head, floor = _standing(rows)
    if after is None or not floor <= after <= head:
        raise ContinuityLost(
            f"the session {session!r} does not go back to this cursor, or it is not of this"
            " session: read it again"
        )
    changes = sorted((row for row in rows if row[0] != _SESSION), key=lambda row: row[1])
    return [_delivery(vault, session, row) for row in changes[:limit]]


def page_of(
    vault: Vault, session: str, limit: int, rows: Sequence[Sequence[Any]]
) -> tuple[HistoryPage, str]:
    """Return a page from the rows of `read_page`, and the version that it stands at."""
    messages = sorted((row for row in rows if row[0] == _MESSAGE), key=lambda row: -row[2])
    appends: dict[int, list[Sequence[Any]]] = {}
    for row in sorted((row for row in rows if row[0] == _APPEND), key=lambda row: row[1]):
        appends.setdefault(row[2], []).append(row)
    found: list[WireMessage] = []
    for row in messages[:limit]:
        changes = [_delivery(vault, session, change) for change in appends.get(row[2], ())]
        found.append(folded(_delivery(vault, session, row), changes))
    head, _ = _standing(rows)
    return HistoryPage(found, len(messages) > limit), version_of(head)


def snapshot_of(page: HistoryPage, cursor: str) -> Snapshot:
    """Return the newest page as a snapshot."""
    return Snapshot(page.messages, cursor, page.more)


def session_row(row: Sequence[Any]) -> SessionRow:
    """Return a session in a list."""
    session, head, changed_at = row
    return SessionRow(session, version_of(head), changed_at)


def before_of(before: str | None) -> int:
    """Return the number that serials of a page are lower than; raises `InvalidSessionArgument`."""
    number = EVER if before is None else number_of(before)
    if number is None:
        raise InvalidSessionArgument(f"{before!a:.80} is no serial of a message")
    return number


def _standing(rows: Sequence[Sequence[Any]]) -> tuple[int, int]:
    return next(((row[1], row[2]) for row in rows if row[0] == _SESSION), (0, 0))


def _delivery(vault: Vault, session: str, row: Sequence[Any]) -> WireMessage:
    kind, version, serial, name, client_id, created_at, ephemeral, stored = row
    if kind == _APPEND:
        return append_of(vault, session, version, serial, client_id, stored)
    known = (version, serial, name, client_id, created_at, ephemeral, stored)
    return message_of(vault, session, known)
