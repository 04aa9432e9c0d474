from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from perdure.engine.reencryption import CLASSES, reencrypt
from perdure.engine.store import RunProblem, RunState, RunStore
from perdure.errors import KeyUnavailable, StorageCorrupt
from perdure.journal.checkpoint import Checkpoint, CheckpointKind
from perdure.session import headers
from perdure.testing.storage.expecting import ensure, expect, refusal
from perdure.testing.storage.scene import Process, Scene
from perdure.testing.storage.talking import append, changed, said, streamed
from perdure.testing.storage.upkeep import exported
from perdure.testing.storage.work import talk, worked

if TYPE_CHECKING:
    from perdure.storage.vault import Vault

_OLD: Final = b"\x01" * 32
_NEW: Final = b"\x02" * 32
_REFUSED: Final = (KeyUnavailable, StorageCorrupt)
_PROBLEM: Final = RunProblem("Code", "Type", "with an \U0001f980", "line\n" * 99)
_MANY: Final = 1100
_MOST_ROWS: Final = 1000
"""The most that one transaction encrypts, so that others need not wait for it."""


async def only_who_has_the_key_reads(scene: Scene) -> None:
    """Another key, the id of the key alone, or no key at all opens nothing."""
    first = await scene.process(vault=_vault(old=_OLD))
    await _worked(first)
    second = await scene.process(vault=_vault(old=_OLD))
    expect(await _told(second.store), await _told(first.store), "what another process reads")
    newer = await scene.process(vault=_vault(new=_NEW, old=_OLD))
    expect(await newer.store.missing_keys(), [], "the keys that a newer process lacks")
    expect(await first.store.missing_keys(), ["new"], "the keys that an older process lacks")
    lacking: tuple[Vault | None, ...] = (_vault(new=_NEW), _vault(old=_NEW), None)
    for vault in lacking:
        await _reads_nothing(scene, vault)


async def everything_is_encrypted_with_another_key(scene: Scene) -> None:
    """As much as was counted; then the new key reads it alone, and the old one nothing."""
    old = _vault(old=_OLD)
    await _worked(await scene.process(vault=old))
    await _reencrypted(scene, old, _vault(new=_NEW, old=_OLD))
    await _reads_nothing(scene, old)


async def what_was_written_without_a_key_is_encrypted(scene: Scene) -> None:
    """Until that is done, only who says so reads what anybody could have written."""
    await _worked(await scene.process())
    await _reads_nothing(scene, _vault(new=_NEW))
    await _reencrypted(scene, None, _vault(accept_plaintext=True, new=_NEW))
    await _reads_nothing(scene, None)


async def it_is_encrypted_in_steps_that_others_write_between(scene: Scene) -> None:
    """In transactions of bounded size; what is written meanwhile is encrypted as it comes."""
    old = await scene.process(vault=_vault(old=_OLD))
    fence = await old.start()
    records = (
        old.append(fence, "tool", number, document=b"%d" % number) for number in range(_MANY)
    )
    await asyncio.gather(*records)
    process = await scene.process(vault=_vault(new=_NEW, old=_OLD))
    live = await process.start("live")
    stale = await process.store.count_stale()
    expect((stale["runs"], stale["records"]), (1, _MANY), "what another key has encrypted")
    steps = 0
    async for some in reencrypt(process.store):
        ensure(some.count <= _MOST_ROWS, f"one transaction encrypts {some.count} {some.name}")
        steps += 1
        await process.append(live, "tool", steps, document=b"%d" % steps)
    expect(sum((await process.store.count_stale()).values()), 0, "what is left of the old key")
    for run_id, numbers in (("run-1", range(_MANY)), ("live", range(1, steps + 1))):
        rows = (await process.store.read_journal(run_id)).rows
        expect({row.sequence for row in rows}, set(numbers), "the records of a run")
        for number in (numbers[0], numbers[-1]):
            found = await process.store.read_input(run_id, "tool", number)
            expect(found, b"%d" % number, "an input that was encrypted anew")


async def _reencrypted(scene: Scene, before: Vault | None, vault: Vault) -> None:
    """Encrypt everything with the current key of a vault, and expect it to read as before."""
    told = await _told(await scene.store(vault=before))
    process = await scene.process(vault=vault)
    expect(await _told(process.store), told, "what is read before it is encrypted anew")
    stale = dict(await process.store.count_stale())
    expect(set(stale), set(CLASSES), "the classes that are counted")
    expect([name for name in CLASSES if not stale[name]], [], "classes of which nothing is stale")
    done: Counter[str] = Counter()
    async for some in reencrypt(process.store):
        expect(some.unreadable, [], "what cannot be read")
        done[some.name] += some.count
    expect(dict(done), stale, "what was encrypted anew")
    expect(await process.store.count_stale(), dict.fromkeys(CLASSES, 0), "what is stale still")
    await process.store.end_resealing(whole=True, rewrite=True)
    last = await scene.process(vault=_vault(new=_NEW))
    expect(await _told(last.store), told, "what is read after it was encrypted anew")
    # New conversations find the pieces of earlier ones again.
    await worked(last, "later")
    expect(await last.store.read_run_input("later"), talk(6), "what a later run was given")


async def _reads_nothing(scene: Scene, vault: Vault | None) -> None:
    with refusal(_REFUSED, "reading without the key"):
        await (await scene.store(vault=vault)).read_run_input("done")
    with refusal(_REFUSED, "reading what was said without the key"):
        await (await scene.store(vault=vault)).session_page("talk", None, 9)


async def _worked(process: Process) -> None:
    """Leave runs that ended and one that waits, with something of everything that is encrypted."""
    await process.end(await worked(process, "done"), output_json=talk(8))
    await process.end(await worked(process, "failed"), RunState.FAILED, problem=_PROBLEM)
    await process.store.release_run(await worked(process, "waits"))
    state = Checkpoint("done", "stream", CheckpointKind.STREAM, 1, 0, b'{"version":1}')
    await process.store.save_checkpoint(state)
    (serial,) = await said(process.store, streamed("m-1"))
    await changed(process.store, append(serial, "what was said", headers.COMPLETE))
    (serial,) = await said(process.store, streamed("m-2"))
    await changed(process.store, append(serial, "what is being said"))


async def _told(store: RunStore) -> list[bytes]:
    runs = [await exported(store, run_id) for run_id in ("done", "failed", "waits")]
    return [*runs, msgspec.json.encode(await store.session_snapshot("talk", 9))]


def _vault(*, accept_plaintext: bool = False, **keys: bytes) -> Vault:
    """Return what encrypts with the first of some keys."""
    from perdure.storage.sealing import SealingVault  # needs an extra

    current, *_ = keys
    cipher = "aes-256-gcm"
    return SealingVault(current, keys, cipher=cipher, accept_plaintext=accept_plaintext)
