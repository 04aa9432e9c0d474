from __future__ import annotations

from typing import Final

from perdure.engine.store import ClaimedRun, RunProblem, RunStore
from perdure.errors import KeyUnavailable, StorageCorrupt
from perdure.journal.failures import failure_of
from perdure.journal.store import Journal

_MOST_LOST: Final = 10

MOST_GIVEN_BACK: Final = 5
"""After how many executions in a row nobody but its own code is held to have cancelled a run."""


async def read_journal(store: RunStore, claim: ClaimedRun) -> tuple[Journal, RunProblem | None]:
    """Return what a run has recorded, and why it cannot be executed, or None.

    What cannot be read, because it was damaged or nobody has its key, is nothing that trying again
    would mend: a person has to look. Raises `KeyUnavailable` where only this process lacks the key.
    """
    try:
        if claim.unreadable is not None:
            raise claim.unreadable
        journal = Journal()
        if claim.fence.generation > 1:
            journal = await store.read_journal(claim.fence.run_id)
    except (KeyUnavailable, StorageCorrupt) as error:
        await check_key(store, error)
        failure = failure_of(error)
        return Journal(), RunProblem(failure.error_name, failure.type_name, failure.message)
    return journal, await stalled(store, claim, journal)


async def check_key(store: RunStore, error: BaseException | None) -> None:
    """Raise what kept a run from being read, if others can read it.

    That is a key that this process lacks and the store notes: whoever has it goes on with the run.
    """
    if isinstance(error, KeyUnavailable) and await store.missing_keys():
        raise error


async def stalled(store: RunStore, claim: ClaimedRun, journal: Journal) -> RunProblem | None:
    """Return why a run is not executed once more, or None.

    Its last ten executions were lost, each with its worker, and recorded nothing: what it does may
    be what ends them, and goes on to, until a person has looked. One that waits is none: it may be
    lost however often before what it waits for has come.
    """
    fence = claim.fence
    now = store.clock.now()
    waits = any(
        timer.awaits is not None or (timer.wake_at is not None and timer.wake_at > now)
        for timer in journal.timers
    )
    if fence.generation <= _MOST_LOST or waits:
        return None
    attempts = await store.list_attempts(fence.run_id, newest=_MOST_LOST + 1)
    earlier = [attempt for attempt in attempts if attempt.generation < fence.generation]
    last = earlier[-_MOST_LOST:]
    if any(attempt.ending != "lost" for attempt in last):
        return None
    operations = await store.list_operations(fence.run_id)
    if any(operation.generation >= last[0].generation for operation in operations):
        return None
    return RunProblem(
        "WorkersLost",
        "WorkersLost",
        f"the last {_MOST_LOST} workers that executed it died or fell silent, and it recorded"
        " nothing in the meantime: it may be what ends them, for instance by the memory that it"
        f" takes. Mend that and resume it: perdure resume {fence.run_id}",
    )


async def given_back(store: RunStore, claim: ClaimedRun) -> int:
    """Return how many executions of a run in a row, up to this one, were given back; 5 for more."""
    fence = claim.fence
    if fence.generation <= MOST_GIVEN_BACK:
        return fence.generation - 1
    attempts = await store.list_attempts(fence.run_id, newest=MOST_GIVEN_BACK + 1)
    count = 0
    for attempt in reversed(attempts):
        if attempt.generation < fence.generation:
            if attempt.ending != "released":
                break
            count += 1
    return count
