from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure.engine.registry import NOTHING
from perdure.engine.retention import Retention, collect
from perdure.engine.run_handle import RunHandle
from perdure.ids import check_identifier

if TYPE_CHECKING:
    from perdure.engine.archive import ArchiveStore
    from perdure.engine.engine import Engine
    from perdure.engine.rehearsal import Rehearsed
    from perdure.engine.store import RunRow


class Upkeep(ABC):
    """What is done with stored runs long after they were started."""

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine of the open App; raises `EngineClosed` when it is not open."""

    @property
    def store(self) -> ArchiveStore:
        """The store of the open App, for those who look at runs."""
        return self.engine.store

    async def find(self, run_id: str) -> RunRow:
        """Return a run as it stands; raises `UnknownRun`."""
        return await self.engine.find(run_id)

    async def count_expired(self, retention: Retention) -> Mapping[str, int]:
        """Return how much of each class `collect` would delete now."""
        return await self.store.count_expired(retention.at(self.store.clock.now()))

    async def collect(self, retention: Retention) -> Mapping[str, int]:
        """Delete what is over for longer than it is kept; return how much of each class.

        In transactions of bounded size, beside live runs. Cut short, the next call goes on with it.
        Durable when it returns: the deletions, fsynced.
        If it raises: `BlobsUnavailable` where the blob store that was given has none of the large
        values that were looked for, and nothing was deleted; or another `StorageError`.
        """
        gone: Counter[str] = Counter()
        async for some in collect(self.store, retention.at(self.store.clock.now())):
            gone.update(some)
        return gone

    async def rehearse(self, run_id: str) -> Rehearsed:
        """Call a run's function with what the run recorded; say whether code and journal agree.

        No operation is performed and nothing is written: where the journal has no answer, the code
        is stopped. What a run function does past its context, it does here as well. For tests
        before a deployment; `perdure check` does it for many runs.

        Raises `UnknownRun` or `RunErased`.
        """
        return await self.engine.rehearse(run_id)

    async def fork(
        self,
        run_id: str,
        at: str,
        *,
        new_id: str | None = None,
        edit: Any = NOTHING,
        repeat_effects: bool = False,
    ) -> RunHandle[Any]:
        """Start a run that another one was up to an operation, and return it.

        `at` is the operation, `step/sequence` as `perdure show` prints it. What was recorded before
        it is kept, and what the code asks for is answered from that; from there on everything is
        performed. `edit` stands for what the operation itself came to, as `App.start` takes values;
        without it, it is performed as well. What the other run did to the world from there on may
        be done again: say `repeat_effects` if it may.

        Durable when it returns: the run, fsynced; it will be executed.
        If it raises: nothing was written. `UnknownRun`, `RunErased`, `UnknownOperation`,
        `ForkRepeats` with the effects that need a decision, `RunConflict` while the other run is
        executed or for a `new_id` that is taken, `InvalidPayload`, or a `StorageError`.
        """
        from perdure.engine.fork import Fork, fork_run  # most programs need none

        output = None if edit is NOTHING else self.engine.codec.encode(edit, what=f"{at}: edit")
        if new_id is not None:
            check_identifier(new_id, "run id")
        fork = Fork(run_id, at, new_id, output, repeat_effects=repeat_effects)
        made = await fork_run(self.store, fork, self.store.clock.now())
        return RunHandle(self.engine, made)

    async def export(self, run_id: str) -> bytes:
        """Return all that the store holds of a run, as one JSON document for `import_run`.

        Nothing in it is encrypted, whatever the store is. Raises `UnknownRun`, `RunErased`, or
        `RunConflict` while a worker executes the run.
        """
        from perdure.engine.archive import encode_archive, export_run  # most programs need none

        return encode_archive(await export_run(self.store, run_id))

    async def import_run(self, data: bytes, *, go_on: bool = False) -> RunRow:
        """Write a run that was exported, with its records and its receipts; return it.

        A run that has ended is what it was; with `go_on`, one that was cancelled before it was
        exported can be resumed here. One that waited for anything waits for a person here, as
        `needs_attention`, because it may have gone on where it came from; what was in flight is
        ambiguous. A run that is here already, just as it was exported, is returned as it stands.

        Durable when it returns: the run, fsynced.
        If it raises: nothing was written. `InvalidRecord` or `UnsupportedRecordVersion` for what is
        no exported run, `RunConflict` for a run of that id, or a receipt, with something else in
        it, `RunErased`, or a `StorageError`.
        """
        from perdure.engine.archive import decode_archive, take_in

        await take_in(self.store, coming := decode_archive(data), go_on=go_on)
        return await self.find(coming.run.run_id)

    async def erase(self, run_id: str, *, by: str, why: str, rewrite: bool = False) -> RunRow:
        """Delete what an ended run was given, recorded and came to; return what is left of it.

        That is a tombstone: the run's id, function, state and times, and who erased it and why. Its
        receipts leave one each, so that its effects are never sent again. Large runs are erased in
        several transactions, so that others can write in between. `rewrite` also writes the whole
        file anew, while other writers wait: only then no fragment is left in the unused part of a
        page.

        Durable when it returns: the tombstone and the deletions, fsynced.
        If it raises: `UnknownRun`, or `NotErasable` for a run that has not ended or effects that
        somebody has to settle first, and nothing was deleted. After a `StorageError` or a crash,
        erasing again finishes what was begun.
        """
        return await self.engine.erase(run_id, by=by, why=why, rewrite=rewrite)
