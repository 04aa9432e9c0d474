from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Final

from perdure.clock import Clock
from perdure.errors import ContinuityLost
from perdure.server.problems import Refused
from perdure.session.branch import Branch
from perdure.session.channel import SnapshotChannel
from perdure.session.codec import Codec, FoldedMessage
from perdure.session.headers import SUPERSEDES
from perdure.session.input_node import InputNode
from perdure.session.lifecycle import ENDS, RunStatus
from perdure.session.reader import SessionReader
from perdure.session.run_node import RunNode
from perdure.session.tree import Tree

_PAGE: Final = 100
_AGAIN_SECONDS: Final = 1.0
"""How long after deliveries broke off they are asked for again."""


class Conversation:
    """A session as it is read for one request: as far back as that needs, and then live."""

    def __init__(
        self, channel: SnapshotChannel, codec: Codec, clock: Clock, history_messages: int
    ) -> None:
        self._channel = channel
        self._reader = SessionReader(codec)
        self._clock = clock
        self._left = history_messages
        self.cursor = ""
        """What deliveries are asked for after to go on from here."""

    @property
    def tree(self) -> Tree:
        """All that has been read."""
        return self._reader.tree

    async def open(self) -> None:
        """Read the newest messages."""
        newest = await self._channel.snapshot(_PAGE)
        self._reader.load(newest.messages, more=newest.more)
        self._left -= len(newest.messages)
        self.cursor = newest.cursor

    async def read_back(self, enough: Callable[[], bool]) -> bool:
        """Read older messages until there are enough; return whether there are.

        It is given up at the beginning of the session, and where that is further back than is read
        for one request.
        """
        while not enough():
            if self._reader.complete or self._left <= 0:
                return False
            page = await self._channel.history(self._reader.oldest, _PAGE)
            self._reader.load(page.messages, more=page.more)
            self._left -= len(page.messages)
        return True

    async def read_all(self) -> None:
        """Read the session to its beginning, or as far back as is read for one request."""
        await self.read_back(lambda: False)

    async def follow(self) -> AsyncGenerator[None]:
        """Take in what comes, forever; yields after each change, and once before."""
        yield
        resynced = None
        while True:
            try:
                async with self._channel.subscribe(self.cursor) as deliveries:
                    async for delivery in deliveries:
                        self.cursor = delivery.version
                        if self._reader.receive(delivery):
                            yield
            except ContinuityLost:
                if self.cursor == resynced:  # and nothing came since
                    await self._clock.sleep(_AGAIN_SECONDS)
                newest = await self._channel.snapshot(_PAGE)
                self._reader.resync(newest.messages, newest.cursor, more=newest.more)
                self.cursor = resynced = newest.cursor
                yield

    def branch(self) -> Branch:
        """Return what is shown of the conversation to somebody who comes now."""
        return Branch(self.tree, {})

    async def page(
        self, before: str | None, limit: int
    ) -> tuple[list[tuple[str, FoldedMessage]], bool]:
        """Return up to `limit` messages, oldest first, each with its node, and if there are more.

        They are the last ones in front of the message `before`, or the last of all. Raises
        `Refused` where that message is not shown.
        """

        def older() -> list[tuple[str, FoldedMessage]] | None:
            every = list(self.branch().messages())
            ids = [message.codec_message_id for _, message in every]
            if before is None:
                return every
            return every[: ids.index(before)] if before in ids else None

        def enough() -> bool:
            found = older()
            return found is not None and len(self._whole(found)) > limit and self._is_joined()

        await self.read_back(enough)
        found = older()
        if found is None:
            raise Refused(404, "UnknownMessage", "no message with this id is shown in the session")
        known = found if self._reader.complete else self._whole(found)
        return known[-limit:], len(known) > limit or not self._reader.complete

    async def run(self, run_id: str) -> RunNode:
        """Return a run of this session. Raises `Refused` if it has none of this id."""

        def is_whole() -> bool:
            found = self.tree.run(run_id)
            return found is not None and found.started

        await self.read_back(is_whole)
        found = self.tree.run(run_id)
        if found is None:
            raise Refused(404, "UnknownRun", "the session has no run of this id")
        return found

    async def answer(self, message_id: str) -> RunNode | None:
        """Return the run that has wholly become one message of pages, or None if there is none."""

        def find() -> RunNode | None:
            runs = [node for node in self.tree.nodes if isinstance(node, RunNode)]
            shown = [run for run in runs if not self.tree.is_superseded(run.key)]
            return next((run for run in reversed(shown) if self.id_of(run) == message_id), None)

        def is_whole() -> bool:
            found = find()
            return found is not None and found.started

        await self.read_back(is_whole)
        return find()

    def id_of(self, run: RunNode) -> str:
        """Return the id that the message of a run has for pages.

        It is the run's. A run that begins with all that another had come to goes on with that
        one's message.
        """
        seen: set[str] = set()
        while run.key not in seen:
            seen.add(run.key)
            left = [key for m in run.log.entries() if (key := m.header(SUPERSEDES))]
            earlier = self.tree.run(left[0]) if left else None
            if earlier is None:
                return left[0] if left else run.key
            run = earlier
        return run.key

    def active(self) -> list[RunNode]:
        """Return the runs that are under way, oldest first."""
        return [run for run in self.open_runs() if run.info.lifecycle.status is RunStatus.ACTIVE]

    def open_runs(self) -> list[RunNode]:
        """Return the runs that have not ended: those under way, and those that wait."""
        runs = [node for node in self.tree.nodes if isinstance(node, RunNode)]
        return [
            run
            for run in runs
            if run.info.lifecycle.status not in ENDS and not self.tree.is_superseded(run.key)
        ]

    def unanswered(self) -> InputNode | None:
        """Return what was said last, if nobody has begun to answer it."""
        nodes = self.tree.nodes
        last = nodes[-1] if nodes else None
        return last if isinstance(last, InputNode) and not self.tree.led_to(last.key) else None

    def _whole(self, found: list[tuple[str, FoldedMessage]]) -> list[tuple[str, FoldedMessage]]:
        """Return the messages that are of runs whose start is seen, or of inputs."""
        whole = {
            node.key for node in self.tree.nodes if isinstance(node, InputNode) or node.started
        }
        return [(key, message) for key, message in found if key in whole]

    def _is_joined(self) -> bool:
        """Whether all that is shown hangs together, so that nothing older can hide part of it."""
        nodes = self.branch().nodes
        return sum(self.tree.owner(node.parent or "") is None for node in nodes) <= 1
