from __future__ import annotations

import msgspec

from perdure.errors import InvalidOptions


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of a server bears; what is beyond is refused and never queued.

    Streams are responses that stay open; a client is the `client_id` of its grant. Raises
    `InvalidOptions` for what is not more than 0.
    """

    body_bytes: int = 4_194_304
    body_seconds: float = 30.0
    header_bytes: int = 16_384
    message_parts: int = 64
    page_messages: int = 100
    """The most messages of one page or snapshot."""
    history_messages: int = 10_000
    """How far back a session is read for one request, in messages as the channel has them."""

    streams: int = 1_000
    session_streams: int = 100
    client_streams: int = 20
    session_requests_per_minute: int = 1_200
    client_requests_per_minute: int = 300

    send_seconds: float = 30.0
    """How long a reader may take nothing before its stream is ended."""
    keep_alive_seconds: float = 15.0
    """After how much silence a comment is sent."""

    def __post_init__(self) -> None:
        """Raise `InvalidOptions` for a limit that would let nothing through."""
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise InvalidOptions(f"{name} is more than 0, not {getattr(self, name)!r}")
