"""What is used of Ably's client, which says little of its types itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from ably.types.message import Message  # pyright: ignore[reportMissingTypeStubs]
from ably.types.operations import MessageOperation  # pyright: ignore[reportMissingTypeStubs]

CONNECTED = "connected"
ATTACHED = "attached"
LOST = frozenset({"failed", "suspended", "detached"})


class Version(Protocol):
    """Which of the deliveries of a message it is, and who wrote it."""

    serial: str | None
    client_id: str | None


class Delivered(Protocol):
    """A message as the client delivers it; `action` is a number."""

    action: int | None
    serial: str | None
    version: Version
    name: str | None
    data: Any
    client_id: str | None
    timestamp: float | None
    extras: Any


class State(Protocol):
    """Where a channel stands."""

    value: str


class StateChange(Protocol):
    """What became of a channel; `resumed` is whether deliveries go on where they were."""

    current: State
    resumed: bool
    reason: Exception | None


class Published(Protocol):
    """The serials of what was published, in its order."""

    serials: Sequence[str | None]


class Changed(Protocol):
    """The version that a change has made."""

    version_serial: str | None


class Page(Protocol):
    """Messages of history, newest first, and what comes behind them."""

    items: Sequence[Delivered]

    def has_next(self) -> bool:
        """Return whether there are older messages."""
        ...

    async def next(self) -> Page:
        """Return the page of messages before these."""
        ...


class ClientChannel(Protocol):
    """A channel of the client."""

    name: str
    state: State

    def publish(self, messages: Sequence[Message], /) -> Awaitable[Published]:
        """Write messages as one."""
        ...

    def append_message(
        self, message: Message, operation: MessageOperation | None = None, /
    ) -> Awaitable[Changed]:
        """Add to the data of the message that has this serial."""
        ...

    def update_message(
        self, message: Message, operation: MessageOperation | None = None, /
    ) -> Awaitable[Changed]:
        """Replace what the message that has this serial holds."""
        ...

    def history(self, *, direction: str, limit: int) -> Awaitable[Page]:
        """Return the first page of history."""
        ...

    def subscribe(self, *listening: str | Callable[[Delivered], None]) -> Awaitable[None]:
        """Attach, and call a function for each message, or for those of a name."""
        ...

    def unsubscribe(self, *listening: str | Callable[[Delivered], None]) -> None:
        """Call it no more."""
        ...

    def on(self, listener: Callable[[StateChange], None], /) -> None:
        """Call a function whenever the state changes."""
        ...

    def off(self, listener: Callable[[StateChange], None], /) -> None:
        """Call it no more."""
        ...

    def detach(self) -> Awaitable[None]:
        """Detach, for all who use the client."""
        ...


class ClientChannels(Protocol):
    """The channels of a client, each of them once."""

    def get(self, name: str, *, params: Mapping[str, str] | None = None) -> ClientChannel:
        """Return the channel of a name, made with these parameters if there is none yet."""
        ...

    def release(self, name: str) -> None:
        """Forget a channel that is detached."""
        ...

    def __contains__(self, name: str, /) -> bool:
        """Return whether there is a channel of a name."""
        ...


class Client(Protocol):
    """An `ably.AblyRealtime`."""

    @property
    def channels(self) -> Any:
        """The channels: `ClientChannels`."""
        ...

    @property
    def connection(self) -> Any:
        """The connection, which has the id of the one at the server."""
        ...
