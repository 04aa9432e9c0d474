from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from perdure.engine.history import OperationRow
from perdure.errors import JournalError, StorageError
from perdure.journal.invocation import SEQUENCE_LIMIT, OperationKind
from perdure.journal.record import Failure, Outcome, Success, Suspended, SuspensionReason
from perdure.journal.store import Journal, unpack_outcome
from perdure.testing.storage.expecting import ensure, expect, refusal
from perdure.testing.storage.scene import Process, Scene, record

_LETTERS: Final = bytes(range(35, 91)) + bytes(range(93, 127))
_OUTCOMES: Final[tuple[Outcome, ...]] = (
    Success(b"1"),
    Success(b'"' + _LETTERS * 200 + b'"'),
    Success(b"[" + b"1," * 4000 + b"1]"),
    Success('"\u0000 and \U0001f980"'.encode()),
    Failure("Code", retryable=True, type_name="T", message="m\x00" * 9000, data_json=b"{}"),
    Failure("Code"),
    Suspended(SuspensionReason.APPROVAL, b'{"tool":"pay"}'),
)


async def a_record_comes_back_as_it_was(scene: Scene) -> None:
    """Every kind and every outcome, whatever its size."""
    process, other = await scene.process(), await scene.process()
    fence = await process.start()
    written = [
        record(fence, f"step.{kind.value}", number, outcome=outcome, kind=kind, attempt=number + 1)
        for kind in OperationKind
        for number, outcome in enumerate(_OUTCOMES)
    ]
    await asyncio.gather(*(process.store.append_record(fence, each) for each in written))
    rows = {(row.step_id, row.sequence): row for row in (await _journal(other)).rows}
    operations = {(row.step_id, row.sequence): row for row in await _operations(other)}
    expect(len(rows), len(written), "records of a run")
    for each in written:
        asked = each.invocation
        row = rows[asked.step_id, asked.sequence]
        told = (row.kind, row.handler_id, row.attempt, row.finished_at, row.nested)
        expect(told, (asked.kind, asked.handler_id, each.attempt, 11.5, False), "a record")
        expect(row.input_sha256, each.input_sha256, "the digest of a record")
        payload = await other.store.read_payload("run-1", asked.step_id, asked.sequence)
        ensure(row.payload in {None, payload}, "a payload is the same wherever it is read")
        expect(unpack_outcome(row.status, payload), each.outcome, "an outcome")
        operation = operations[asked.step_id, asked.sequence]
        sizes = (operation.input_bytes, operation.payload_bytes)
        expect(sizes, (len(asked.input_json), len(payload)), "the sizes of a record")
        expect((operation.started_at, operation.generation), (10.0, 1), "a record's times")


async def records_are_listed_as_they_were_written(scene: Scene) -> None:
    """With what was nested below another operation marked as that."""
    process = await scene.process()
    fence = await process.start()
    for number in (3, 1, 2):
        await process.append(fence, "step", number, nested=number == 1)
    expect([row.sequence for row in await _operations(process)], [3, 1, 2], "the order of records")
    nested = {row.sequence for row in (await _journal(process)).rows if row.nested}
    expect(nested, {1}, "nested records")


async def every_sequence_of_64_bits_is_kept(scene: Scene) -> None:
    """Also those that a signed number does not hold."""
    process = await scene.process()
    fence = await process.start()
    sequences = {0, 1, (1 << 63) - 1, 1 << 63, SEQUENCE_LIMIT}
    for sequence in sequences:
        await process.append(fence, "tool", sequence, document=b"%d" % sequence)
    rows = (await _journal(process)).rows
    expect({row.sequence for row in rows}, sequences, "the sequences of records")
    expect({row.sequence for row in await _operations(process)}, sequences, "those listed")
    for sequence in sequences:
        document = await process.store.read_input("run-1", "tool", sequence)
        expect(document, b"%d" % sequence, "the input under a sequence")


async def what_was_not_recorded_is_told(scene: Scene) -> None:
    """A run without records has an empty journal, and a record that is not there is an error."""
    process = await scene.process()
    await process.start()
    for run_id in ("run-1", "none"):
        journal = await process.store.read_journal(run_id)
        expect((len(journal.rows), len(journal.timers)), (0, 0), "an empty journal")
        with refusal(JournalError, "a payload that is not there"):
            await process.store.read_payload(run_id, "tool", 1)
        with refusal(JournalError, "an input that is not there"):
            await process.store.read_input(run_id, "tool", 1)


async def the_first_record_of_a_place_stands(scene: Scene) -> None:
    """A second one under the same key is an error, and its neighbours are written all the same."""
    process = await scene.process()
    fence = await process.start()
    await process.append(fence, "tool", 1, outcome=Success(b"1"))
    second = process.append(fence, "tool", 1, outcome=Success(b"2"), attempt=2)
    beside = process.append(fence, "tool", 2, outcome=Success(b"3"))
    failed, written = await asyncio.gather(second, beside, return_exceptions=True)
    ensure(isinstance(failed, StorageError), "a second record is refused")
    expect(written, None, "what is written beside a record that is refused")
    for sequence, output in ((1, b"1"), (2, b"3")):
        payload = await process.store.read_payload("run-1", "tool", sequence)
        expect(payload, output, "what stands in the journal")


async def many_runs_record_at_once(scene: Scene) -> None:
    """Whatever shares a commit, each finds its own records again and nobody else's."""
    processes = [await scene.process() for _ in range(2)]

    async def record_all(process: Process, run_id: str) -> None:
        fence = await process.start(run_id)
        for number in range(5):
            await process.append(fence, "step", number, document=f'"{run_id}"'.encode())
        steps = (process.append(fence, "side", number) for number in range(5))
        await asyncio.gather(*steps)

    runs = {f"run-{number}": processes[number % 2] for number in range(30)}
    await asyncio.gather(*(record_all(process, run_id) for run_id, process in runs.items()))
    for run_id in runs:
        found = {(row.step_id, row.sequence) for row in (await _journal(processes[0], run_id)).rows}
        wanted = {(step, number) for step in ("step", "side") for number in range(5)}
        expect(found, wanted, "the records of one of many runs")
        document = await processes[1].store.read_input(run_id, "step", 4)
        expect(document, f'"{run_id}"'.encode(), "the input of one of many runs")


async def a_record_whose_writer_is_cancelled_is_whole_or_not_there(scene: Scene) -> None:
    """Whoever writes it again may be refused, because it stands; afterwards it does."""
    process = await scene.process()
    fence = await process.start()
    for turns in range(8):
        wanted = record(fence, "tool", turns, document=b"0123456789", cuts=(4, 8))
        task = asyncio.ensure_future(process.store.append_record(fence, wanted))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        with suppress(StorageError):
            await process.store.append_record(fence, wanted)
        document = await process.store.read_input("run-1", "tool", turns)
        expect(document, b"0123456789", "the input of a writer that was cancelled")
        expect(len(await _operations(process)), turns + 1, "records")


async def _journal(process: Process, run_id: str = "run-1") -> Journal:
    return await process.store.read_journal(run_id)


async def _operations(process: Process) -> Sequence[OperationRow]:
    return await process.store.list_operations("run-1")
