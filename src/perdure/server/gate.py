from __future__ import annotations

import asyncio
import inspect
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import Request

from perdure.clock import Clock
from perdure.server.grants import Authorize, Grant, anyone
from perdure.server.limits import Limits
from perdure.server.problems import Refused
from perdure.server.traffic import Slot, Traffic
from perdure.strict_json import MalformedError, check_document

T = TypeVar("T")

_NAME_CHARACTERS: Final = 200
_READ_ON: Final = 8
"""How many times as much as it may be a body is read, so that its sender gets to hear of it."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A session that a request was let in to, and as which client."""

    session: str
    client_id: str


class Gate:
    """What every request passes: who sends it, what that may do, how much, and what it says.

    Nothing that a request says of who sent it counts, only its token.
    """

    def __init__(self, authorize: Authorize, limits: Limits, clock: Clock) -> None:
        self.limits = limits
        self.traffic = Traffic(limits, clock)
        self._authorize = authorize

    async def admit(
        self, request: Request, *, write: bool = False, token_in_url: bool = False
    ) -> Entry:
        """Let a request in to the session that its path names. Raises `Refused`.

        With `token_in_url` the token may be a parameter of the query, because an `EventSource` of
        browsers sends no headers.
        """
        grant = await self.identify(request, token_in_url=token_in_url)
        return self.enter(grant, request.path_params["session"], write=write)

    async def identify(self, request: Request, *, token_in_url: bool = False) -> Grant:
        """Return what the sender of a request is granted. Raises `Refused`."""
        size = sum(len(name) + len(value) for name, value in request.headers.raw)
        if size > self.limits.header_bytes:
            raise Refused(431, "HeadersTooLarge", "the headers are too large; send fewer of them")
        return await self._grant(request, token_in_url=token_in_url)

    def enter(self, grant: Grant, session: str, *, write: bool = False) -> Entry:
        """Let the holder of a grant in to a session. Raises `Refused`."""
        check_name("the name of a session", session)
        if not grant.covers(session):
            raise Refused(403, "Forbidden", "the token is for other sessions; get one for this one")
        if write and not grant.write:
            raise Refused(403, "Forbidden", "the token is for reading; get one that may write")
        self.traffic.admit(grant.client_id, session)
        return Entry(session=session, client_id=grant.client_id)

    def open_stream(self, entry: Entry) -> Slot:
        """Take the room of a stream. Raises `Refused` where there is none."""
        return self.traffic.open_stream(entry.client_id, entry.session)

    async def read(self, request: Request, document: type[T]) -> T:
        """Return the body of a request. Raises `Refused` where it is none of these documents."""
        check_json(request)
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                body = await self._body(request)
        except TimeoutError as error:
            closed = {"connection": "close"}
            raise Refused(408, "BodyTooSlow", "the body took too long", closed) from error
        try:
            check_document(body)
            return msgspec.json.decode(body, type=document)
        except (MalformedError, msgspec.MsgspecError, RecursionError) as error:
            raise Refused(400, "InvalidBody", f"the body is malformed: {error}") from error

    async def _grant(self, request: Request, *, token_in_url: bool) -> Grant:
        token = _bearer(request)
        if token is None and token_in_url:
            token = request.query_params.get("token")
        if token is None and self._authorize is not anyone:
            raise _unauthorized("a token is needed: send it as `authorization: Bearer TOKEN`")
        found = self._authorize(token or "")
        grant = await found if inspect.isawaitable(found) else found
        if grant is None:
            raise _unauthorized("the token is not good, or has expired; get a new one")
        return grant

    async def _body(self, request: Request) -> bytes:
        most = self.limits.body_bytes
        body, size = bytearray(), 0
        async for chunk in request.stream():
            size += len(chunk)
            if size <= most:
                body += chunk
            elif size > most * _READ_ON:
                break  # whoever sends as much need not hear why
        if size > most:
            closed = {"connection": "close"}
            raise Refused(413, "BodyTooLarge", f"a body is {most} bytes at most", closed)
        return bytes(body)


def check_json(request: Request) -> None:
    """Raise `Refused` for a request whose headers do not say that it is JSON.

    Browsers ask before they send this to somebody else's server.
    """
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "NotJson", "send JSON, with content-type: application/json")


def own_event(entry: Entry, given: str) -> str:
    """Return the event id that a client gives as one of all clients; no other has the same."""
    return f"{quote(entry.client_id, safe='')}/{given}"


def check_name(what: str, name: str) -> None:
    """Raise `Refused` for what cannot be the name or id of something."""
    if not 0 < len(name) <= _NAME_CHARACTERS or not name.isprintable():
        raise Refused(400, "InvalidName", f"{what} is 1 to {_NAME_CHARACTERS} printable characters")


def _bearer(request: Request) -> str | None:
    given = request.headers.get("authorization")
    if given is None:
        return None
    scheme, _, token = given.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _unauthorized("the token is malformed: send it as `authorization: Bearer TOKEN`")
    return token.strip()


def _unauthorized(message: str) -> Refused:
    return Refused(401, "Unauthorized", message, {"www-authenticate": 'Bearer realm="perdure"'})
