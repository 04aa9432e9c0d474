from __future__ import annotations

from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase

import msgspec


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a token, and what the token lets it do.

    `sessions` are names of sessions, or patterns in which `*` stands for any text and `?` for one
    character. Without `write` the holder reads alone.
    """

    client_id: str
    sessions: tuple[str, ...]
    write: bool = True

    def covers(self, session: str) -> bool:
        """Whether the session is among those that the token is for."""
        return any(name == session or fnmatchcase(session, name) for name in self.sessions)


Authorize = Callable[[str], Grant | Awaitable[Grant | None] | None]
"""Returns what a token grants, or None if it grants nothing."""


def anyone(token: str) -> Grant:
    """Let everybody do everything, as one client: for development, on this machine alone.

    A server that has this for its `authorize` asks for no token.
    """
    del token
    return Grant(client_id="anyone", sessions=("*",))
