from __future__ import annotations

from collections.abc import Sequence

from perdure.session.codec import Codec
from perdure.session.message import WireMessage
from perdure.session.tree import Tree
from perdure.session.view import View


class SessionReader:
    """Follows one channel: deliveries as they come, and history page by page behind them.

    It reads nothing by itself. Whoever does attaches first and reads history afterwards, at once
    or when somebody scrolls up; in between nothing is lost, since a message is the same whichever
    way it is learned. `cursor` is where to go on after a break, `oldest` what the next page of
    history ends before; both are None until there is anything.
    """

    def __init__(self, codec: Codec) -> None:
        self.tree = Tree(codec)
        self.view = View(self.tree)
        self.cursor: str | None = None
        self.oldest: str | None = None
        self.complete = False
        """Whether history has been read to its beginning."""

    def attach(self, cursor: str | None) -> None:
        """Note the point that live deliveries come after."""
        self.cursor = cursor

    def receive(self, delivery: WireMessage) -> bool:
        """Take in a live delivery; return whether it changed anything."""
        self.cursor = delivery.version
        return self.view.receive(delivery)

    def load(self, page: Sequence[WireMessage], *, more: bool) -> None:
        """Take in a page of history; `more` is whether there are older messages behind it."""
        self.view.load(page)
        self._note(page, more=more)

    def resync(self, snapshot: Sequence[WireMessage], cursor: str, *, more: bool) -> None:
        """Take in the newest messages whole, where deliveries up to `cursor` may have been missed.

        What is new in them is shown like what arrives live.
        """
        for message in snapshot:
            self.view.receive(message)
        self._note(snapshot, more=more)
        self.cursor = cursor

    def reveal(self, limit: int = 10) -> int:
        """Show `limit` messages more; return how many of them have to be loaded first.

        0 also where history has no more.
        """
        since = None if self.complete else self.oldest
        missing = limit - self.view.reveal(limit, since=since)
        return 0 if self.complete else missing

    def _note(self, page: Sequence[WireMessage], *, more: bool) -> None:
        serials = [message.serial for message in page]
        if self.oldest is not None:
            serials.append(self.oldest)
        self.oldest = min(serials, default=None)
        self.complete = self.complete or not more
