from __future__ import annotations

from pathlib import Path

import pytest

from perdure.checkpoints import (
    Checkpoint,
    CheckpointKind,
    FileStore,
    Saved,
    load_paused,
    save_paused,
)
from perdure.errors import CheckpointConflict, InvalidDeferredState, StaleCheckpoint
from perdure.journal.payloads import Execution, PausedCall, PausedState
from tests.harness import RUN, run


def paused(requests: int = 1, arguments: str = '{"n":1}') -> PausedState:
    """Return a run that waits for the answer to one call."""
    call = PausedCall(
        call_id="call-1",
        name="refund",
        arguments_json=arguments,
        model_arguments_json=arguments,
        execution=Execution.REQUIRES_APPROVAL,
        retry_number=0,
        durable_sequence=1,
    )
    return PausedState(
        prompt="hi", messages=(), model_requests=requests, total_tool_calls=1, calls=(call,)
    )


def test_a_paused_run_is_resumed_by_its_ids_alone(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "checkpoints.json"
        assert await save_paused(FileStore(path), RUN, "refund", paused()) is Saved.CREATED
        assert await load_paused(FileStore(path), RUN, "refund") == paused()
        assert await save_paused(FileStore(path), RUN, "refund", paused()) is Saved.DUPLICATE
        assert await save_paused(FileStore(path), RUN, "refund", paused(2)) is Saved.ADVANCED

    run(main())


def test_an_older_or_another_pause_is_not_written_over_it(tmp_path: Path) -> None:
    async def main() -> None:
        store = FileStore(tmp_path / "checkpoints.json")
        await save_paused(store, RUN, "refund", paused(2))
        with pytest.raises(StaleCheckpoint):
            await save_paused(store, RUN, "refund", paused(1))
        with pytest.raises(CheckpointConflict):
            await save_paused(store, RUN, "refund", paused(2, '{"n":2}'))
        assert await load_paused(store, RUN, "refund") == paused(2)

    run(main())


def test_what_is_no_paused_run_cannot_be_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        store = FileStore(tmp_path / "checkpoints.json")
        with pytest.raises(InvalidDeferredState, match="no checkpoint"):
            await load_paused(store, RUN, "refund")
        await store.save_checkpoint(Checkpoint(RUN, "events", CheckpointKind.STREAM, 1, 1, b"{}"))
        with pytest.raises(InvalidDeferredState, match="of a stream"):
            await load_paused(store, RUN, "events")
        await store.save_checkpoint(
            Checkpoint(RUN, "broken", CheckpointKind.APPROVAL, 1, 0, b'{"version":1}')
        )
        with pytest.raises(InvalidDeferredState):
            await load_paused(store, RUN, "broken")

    run(main())
