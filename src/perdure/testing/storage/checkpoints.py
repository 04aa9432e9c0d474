from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from perdure.engine.store import RunEnd, RunState
from perdure.errors import (
    CheckpointConflict,
    CheckpointTooLarge,
    InvalidCheckpoint,
    JournalError,
    RunErased,
    StaleCheckpoint,
    UnknownRun,
)
from perdure.fence import Fence
from perdure.journal.checkpoint import (
    NUMBER_LIMIT,
    STATE_LIMIT_BYTES,
    Checkpoint,
    CheckpointKind,
    Saved,
)
from perdure.testing.storage.expecting import expect, refusal
from perdure.testing.storage.scene import Process, Scene
from perdure.testing.storage.upkeep import collected, everything, exported, taken_in

_DONE: Final = RunEnd(RunState.COMPLETED, b"1")
_MANY: Final = 450


async def a_checkpoint_comes_back_as_it_was_saved(scene: Scene) -> None:
    """To any process, with the largest numbers, and with a state of any size and spelling."""
    one, other = await scene.process(), await scene.process()
    await one.start()
    saved = [
        _checkpoint(checkpoint_id="b", revision=9, cursor=7),
        _checkpoint(checkpoint_id="a", kind=CheckpointKind.APPROVAL),
        _checkpoint(checkpoint_id="A" * 128, revision=NUMBER_LIMIT, cursor=NUMBER_LIMIT),
        _checkpoint(
            checkpoint_id="spelled", state_json=b' { "\\u00e9" : "\\u0000\xf0\x9f\xa6\x80"}\n'
        ),
        _checkpoint(checkpoint_id="large", state_json=b'"%s"' % (b"x" * (STATE_LIMIT_BYTES - 2))),
    ]
    for checkpoint in saved:
        expect(await one.store.save_checkpoint(checkpoint), Saved.CREATED, "a new checkpoint")
    for checkpoint in saved:
        expect(await _load(other, checkpoint.checkpoint_id), checkpoint, "a checkpoint")
    expect([*await other.store.list_checkpoints("run-1")], saved, "the checkpoints of a run")


async def a_checkpoint_only_goes_on_from_the_one_that_is_there(scene: Scene) -> None:
    """What does not is refused, and changes nothing; gaps are none of a store's business."""
    process, other = await scene.process(), await scene.process()
    await process.start()
    approval = CheckpointKind.APPROVAL
    steps: list[tuple[dict[str, Any], Saved | type[JournalError]]] = [
        ({}, Saved.CREATED),
        ({}, Saved.DUPLICATE),
        ({"cursor": 1}, CheckpointConflict),
        ({"state_json": b"{}"}, CheckpointConflict),
        ({"kind": approval}, CheckpointConflict),
        ({"revision": 2, "kind": approval}, CheckpointConflict),
        ({"revision": 5, "cursor": 3}, Saved.ADVANCED),
        ({"revision": 4, "cursor": 3}, StaleCheckpoint),
        ({"revision": 4, "kind": approval}, StaleCheckpoint),
        ({"revision": 6, "cursor": 2}, CheckpointConflict),
        ({"revision": 6, "cursor": 3, "state_json": b"[]"}, Saved.ADVANCED),
        ({"revision": 7, "kind": approval}, CheckpointConflict),
        ({"revision": 6, "cursor": 3, "state_json": b"[]"}, Saved.DUPLICATE),
    ]
    there: Checkpoint | None = None
    for number, (changes, expected) in enumerate(steps):
        checkpoint = _checkpoint(**changes)
        if isinstance(expected, Saved):
            saved = await process.store.save_checkpoint(checkpoint)
            expect(saved, expected, f"saving {changes} as step {number}")
            there = checkpoint
        else:
            with refusal(expected, f"saving {changes} as step {number}"):
                await process.store.save_checkpoint(checkpoint)
        expect(await _load(other), there, f"what is there after step {number}")


async def what_is_no_checkpoint_is_refused(scene: Scene) -> None:
    """Before anything is written, and also where one is only asked for."""
    process = await scene.process()
    await process.start()
    too_long = b" " * STATE_LIMIT_BYTES + b"1"
    for changes, error in (
        ({"checkpoint_id": "a/b"}, InvalidCheckpoint),
        ({"run_id": "r" * 129}, InvalidCheckpoint),
        ({"revision": 0}, InvalidCheckpoint),
        ({"revision": NUMBER_LIMIT + 1}, InvalidCheckpoint),
        ({"cursor": -1}, InvalidCheckpoint),
        ({"cursor": NUMBER_LIMIT + 1}, InvalidCheckpoint),
        ({"kind": CheckpointKind.APPROVAL, "cursor": 1}, InvalidCheckpoint),
        ({"state_json": b'{"a":1,"a":1}'}, InvalidCheckpoint),
        ({"state_json": b""}, CheckpointTooLarge),
        ({"state_json": too_long}, CheckpointTooLarge),
    ):
        with refusal(error, f"saving {list(changes)}"):
            await process.store.save_checkpoint(_checkpoint(**changes))
    with refusal(InvalidCheckpoint, "loading what has no id"):
        await process.store.load_checkpoint("run-1", "")
    with refusal(InvalidCheckpoint, "removing what has no id"):
        await process.store.remove_checkpoint("a b", "stream-1")
    expect([*await process.store.list_checkpoints("run-1")], [], "what was written")


async def one_of_those_that_save_at_once_wins(scene: Scene) -> None:
    """The others are refused, or told that what they save is there already."""
    processes = [await scene.process() for _ in range(4)]
    await processes[0].start()
    for revision in (1, 2, 3):
        tried = [_checkpoint(revision=revision, state_json=b"%d" % n) for n in range(4)]
        results = await asyncio.gather(
            *(
                _try(process, checkpoint)
                for process, checkpoint in zip(processes, tried, strict=True)
            )
        )
        won = Saved.CREATED if revision == 1 else Saved.ADVANCED
        expect(results.count(won), 1, f"who won revision {revision}")
        expect(results.count(CheckpointConflict), 3, f"who lost revision {revision}")
        there = await _load(processes[0])
        expect(there, tried[results.index(won)], f"what is there at revision {revision}")
    same = _checkpoint(revision=4)
    results = await asyncio.gather(*(_try(process, same) for process in processes))
    expect(results.count(Saved.ADVANCED), 1, "who wrote what all save")
    expect(results.count(Saved.DUPLICATE), 3, "who found it written")


async def checkpoints_are_removed_one_by_one(scene: Scene) -> None:
    """One that was removed may begin anew, at any revision; nothing happens where there is none."""
    process, other = await scene.process(), await scene.process()
    await process.start()
    kept = _checkpoint(checkpoint_id="kept")
    await process.store.save_checkpoint(kept)
    await process.store.save_checkpoint(_checkpoint(revision=9))
    for _ in range(2):
        await other.store.remove_checkpoint("run-1", "stream-1")
        expect(await _load(process), None, "a checkpoint that was removed")
    await other.store.remove_checkpoint("run-9", "stream-1")
    expect([*await process.store.list_checkpoints("run-1")], [kept], "what is left")
    saved = await process.store.save_checkpoint(_checkpoint(revision=2))
    expect(saved, Saved.CREATED, "what begins anew")


async def checkpoints_belong_to_runs(scene: Scene) -> None:
    """Each run has its own, whoever executes it, and also when it is over."""
    process = await scene.process()
    with refusal(UnknownRun, "saving a checkpoint of no run"):
        await process.store.save_checkpoint(_checkpoint())
    expect(await _load(process), None, "a checkpoint of no run")
    fence = await process.start()
    await process.start("run-2")
    first, second = _checkpoint(), _checkpoint(run_id="run-2", revision=3)
    for checkpoint in (first, second):
        await process.store.save_checkpoint(checkpoint)
    await process.store.end_run(fence, _DONE)
    expect(await _load(process), first, "the checkpoint of a run that is over")
    advanced = msgspec.structs.replace(first, revision=2)
    expect(await process.store.save_checkpoint(advanced), Saved.ADVANCED, "the same, advanced")
    expect([*await process.store.list_checkpoints("run-2")], [second], "those of another run")


async def checkpoints_are_erased_with_their_run(scene: Scene) -> None:
    """However many there are; none is saved any more, and none of another run is lost."""
    process, other = await scene.process(), await scene.process()
    fence = await _run_with_many(process)
    await process.start("run-2")
    beside = _checkpoint(run_id="run-2")
    await process.store.save_checkpoint(beside)
    await process.store.end_run(fence, _DONE)
    await process.store.erase_run("run-1", by="ada", why="request 17")
    tombstone = (await process.run()).tombstone
    expect(tombstone and tombstone.whole, True, "all of it is gone")  # noqa: FBT003
    expect([*await other.store.list_checkpoints("run-1")], [], "checkpoints of an erased run")
    expect(await _load(other, "c-7"), None, "a checkpoint of an erased run")
    with refusal(RunErased, "saving a checkpoint of an erased run"):
        await other.store.save_checkpoint(_checkpoint())
    expect([*await other.store.list_checkpoints("run-2")], [beside], "those of another run")


async def checkpoints_are_collected_with_their_run(scene: Scene) -> None:
    """A run that is started again under the same id has none."""
    process = await scene.process()
    fence = await _run_with_many(process)
    await process.store.end_run(fence, _DONE)
    gone = await collected(process.store, everything(process.store, "runs"))
    expect(gone["runs"], 1, "runs that were collected")
    await process.start()
    expect([*await process.store.list_checkpoints("run-1")], [], "checkpoints of a new run")


async def checkpoints_are_exported_with_their_run(scene: Scene) -> None:
    """And imported with it, in their order."""
    process = await scene.process()
    fence = await process.start()
    saved = [_checkpoint(checkpoint_id="b"), _checkpoint(checkpoint_id="a", revision=3, cursor=2)]
    for checkpoint in saved:
        await process.store.save_checkpoint(checkpoint)
    await process.store.end_run(fence, _DONE)
    file = await exported(process.store, "run-1")
    await collected(process.store, everything(process.store, "runs"))
    expect(await taken_in(process.store, file), True, "an import")  # noqa: FBT003
    expect([*await process.store.list_checkpoints("run-1")], saved, "checkpoints of an import")
    expect(await exported(process.store, "run-1"), file, "the same run exported again")


def _checkpoint(**changes: Any) -> Checkpoint:
    first = Checkpoint("run-1", "stream-1", CheckpointKind.STREAM, 1, 0, b'{"version":1}')
    return msgspec.structs.replace(first, **changes)


async def _load(process: Process, checkpoint_id: str = "stream-1") -> Checkpoint | None:
    return await process.store.load_checkpoint("run-1", checkpoint_id)


async def _try(process: Process, checkpoint: Checkpoint) -> Saved | type[JournalError]:
    try:
        return await process.store.save_checkpoint(checkpoint)
    except JournalError as error:
        return type(error)


async def _run_with_many(process: Process) -> Fence:
    fence = await process.start()
    many = (_checkpoint(checkpoint_id=f"c-{number}") for number in range(_MANY))
    await asyncio.gather(*map(process.store.save_checkpoint, many))
    return fence
