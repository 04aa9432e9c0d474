from __future__ import annotations

from perdure.errors import InvalidDeferredState
from perdure.journal.checkpoint import Checkpoint, CheckpointKind, Saved
from perdure.journal.payloads import PausedState, encode_paused_state, parse_paused_state
from perdure.journal.store import CheckpointStore


async def save_paused(
    store: CheckpointStore, run_id: str, checkpoint_id: str, state: PausedState
) -> Saved:
    """Save a run that waits for decisions; its revision is one over the requests that it made.

    Durable when it returns: the state, fsynced.
    If it raises: `InvalidDeferredState` for a state that cannot be written, or as
    `CheckpointStore.save_checkpoint`; nothing was written.
    """
    document = encode_paused_state(state)
    revision = state.model_requests + 1
    return await store.save_checkpoint(
        Checkpoint(run_id, checkpoint_id, CheckpointKind.APPROVAL, revision, 0, document)
    )


async def load_paused(store: CheckpointStore, run_id: str, checkpoint_id: str) -> PausedState:
    """Return a run that waits for decisions, by its ids alone and in any process.

    Raises `InvalidDeferredState` where there is no such checkpoint, or one of another kind.
    """
    checkpoint = await store.load_checkpoint(run_id, checkpoint_id)
    if checkpoint is None:
        raise InvalidDeferredState(f"there is no checkpoint {run_id}/{checkpoint_id} to resume")
    if checkpoint.kind is not CheckpointKind.APPROVAL:
        raise InvalidDeferredState(
            f"the checkpoint {run_id}/{checkpoint_id} is of a {checkpoint.kind.value}, and not of a"
            " run that waits for decisions"
        )
    return parse_paused_state(checkpoint.state_json)
