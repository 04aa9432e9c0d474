from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Generic, Self, TypeVar

from perdure.errors import CheckpointConflict
from perdure.journal.checkpoint import Checkpoint, CheckpointKind
from perdure.journal.store import CheckpointStore

T = TypeVar("T")

STREAM_STATE: Final = b'{"version":1}'
"""The state of every checkpoint of a stream: its cursor says the rest."""


class CheckpointedStream(Generic[T]):
    """Delivers the events of a stream, and notes after each how many were delivered.

    The stream is one that comes again from its first event after a crash; those that were delivered
    before are skipped. Delivery is at least once: a crash between an event and its note delivers
    that event again. Events come one at a time. Once delivering or noting one has failed, or was
    cancelled, the object is of no more use: open another, and give it the events from the first.
    """

    def __init__(
        self,
        store: CheckpointStore,
        run_id: str,
        checkpoint_id: str,
        deliver: Callable[[T], Awaitable[None]],
        loaded: Checkpoint | None,
    ) -> None:
        self._store = store
        self._key = (run_id, checkpoint_id)
        self._deliver = deliver
        self._revision = 0 if loaded is None else loaded.revision
        self._cursor = 0 if loaded is None else loaded.cursor
        self._next = 0

    @classmethod
    async def open(
        cls,
        store: CheckpointStore,
        run_id: str,
        checkpoint_id: str,
        deliver: Callable[[T], Awaitable[None]],
    ) -> Self:
        """Return a stream that goes on where the checkpoint of its id stands.

        Each part of a run that streams needs a checkpoint id of its own. Raises
        `CheckpointConflict` for a checkpoint that is of something else, and what loading raises.
        """
        loaded = await store.load_checkpoint(run_id, checkpoint_id)
        if loaded is not None and (
            loaded.kind is not CheckpointKind.STREAM or loaded.state_json != STREAM_STATE
        ):
            raise CheckpointConflict(
                f"the checkpoint {run_id}/{checkpoint_id} is not that of a stream: give the stream"
                " another id"
            )
        return cls(store, run_id, checkpoint_id, deliver, loaded)

    @property
    def cursor(self) -> int:
        """How many events were delivered, and are noted."""
        return self._cursor

    async def __call__(self, event: T) -> None:
        """Deliver an event and note it, unless it was delivered before.

        Durable when it returns: that the event was delivered.
        If it raises: what delivering or saving raised, or `CheckpointConflict` where an event
        before it was not delivered; nobody knows then whether the event was.
        """
        number = self._next
        self._next += 1
        if number < self._cursor:
            return
        if number > self._cursor:
            raise CheckpointConflict(
                f"event {number} of the stream {'/'.join(self._key)} comes after one that was not"
                f" noted, and {self._cursor} is the next: open the stream again, and give it the"
                " events from the first"
            )
        await self._deliver(event)
        noted = Checkpoint(
            *self._key, CheckpointKind.STREAM, self._revision + 1, number + 1, STREAM_STATE
        )
        await self._store.save_checkpoint(noted)
        self._revision, self._cursor = noted.revision, noted.cursor
