from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from perdure.canonical import INPUT_LIMIT_BYTES, RECORD_LIMIT_BYTES
from perdure.clock import Clock
from perdure.errors import (
    DuplicateOperation,
    InvalidPayload,
    LeaseLost,
    OperationFailed,
    PerdureError,
    ReplayMismatch,
    RunParked,
    StorageBusy,
    StorageFull,
)
from perdure.fence import Fence
from perdure.ids import check_identifier, error_name_of
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.record import Failure, Outcome, Success, success_of
from perdure.journal.replay import Replay
from perdure.journal.store import (
    Journal,
    JournalRow,
    JournalStore,
    NewRecord,
    pack_outcome,
    unpack_outcome,
)
from perdure.observe import Observer, log
from perdure.retry import RetryPolicy

Handler = Callable[[], Awaitable[Outcome]]
Probe = Callable[[str], None]

_RETRY_HANDLER = "perdure.retry"
_ENVELOPE_BYTES = 1024
_REMEMBERED_BYTES = 4096


class Ownership(Protocol):
    """What tells whether this process may still write for a run."""

    def check(self, run_id: str) -> None:
        """Raise `LeaseLost` when ownership of a run ended or can no longer be confirmed."""
        ...


class Performed(msgspec.Struct, frozen=True, gc=False):
    """What an operation came to.

    `finished_at` is the wall time, in seconds UTC, at which the outcome was recorded; a replay
    returns the recorded one. `attempt` is the try that gave the outcome, from 1.
    """

    outcome: Outcome
    replayed: bool
    attempt: int
    finished_at: float

    def output(self, key: str) -> bytes:
        """Return the output document, or raise `OperationFailed` or `OperationSuspended`."""
        return success_of(key, self.outcome).output_json


class Ports(msgspec.Struct, frozen=True):
    """What performing needs from outside: where records go, the clocks, and who listens.

    `probe` is called with the name of each point at which a crash leaves a different state.
    """

    store: JournalStore
    clock: Clock
    observer: Observer
    probe: Probe


class Performer:
    """Performs the operations of one run under one claim.

    An operation is looked up in the journal, called only when it is not there, and recorded under
    the run's fence before anybody sees its outcome.
    """

    def __init__(self, fence: Fence, journal: Journal, ports: Ports, ownership: Ownership) -> None:
        self.fence = fence
        self.parked: PerdureError | None = None
        self.lost = False
        self.executed = 0
        self.replayed = 0
        self._replay = Replay(journal)
        self._store = ports.store
        self._ownership = ownership
        self._clock = ports.clock
        self._observer = ports.observer
        self._probe = ports.probe
        self._live: set[tuple[str, int]] = set()
        self._recorded: set[tuple[str, int]] = set()

    async def perform(
        self,
        invocation: Invocation,
        handler: Handler,
        *,
        retry: RetryPolicy | None = None,
        cuts: tuple[int, ...] = (),
    ) -> Performed:
        """Return the recorded outcome of an operation, or call its handler and record it.

        An ordinary exception out of the handler becomes a recorded `Failure`; cancellation and
        the signals of `perdure.errors` leave no record, so that the operation runs again.

        Durable when it returns: the record, fsynced.
        If it raises: `RunParked` on a `ReplayMismatch` (the handler was not called), `LeaseLost`
        or a `StorageError` (no record; the handler may have been called), `InvalidInvocation`,
        `InvalidPayload` or `DuplicateOperation` (the handler was not called).
        """
        self._check()
        digest = hashlib.sha256(invocation.input_json).digest()
        try:
            row = self._replay.find(invocation, digest)
        except ReplayMismatch as mismatch:
            raise self.park(mismatch) from mismatch
        if row is not None:
            return await self._answer(row)
        _check_live(invocation)
        key = (invocation.step_id, invocation.sequence)
        if key in self._live or key in self._recorded:
            raise DuplicateOperation(
                f"operation {invocation.stable_key} is asked for twice in one execution; an"
                " identity names one place in the code: give the second one its own"
            )
        self._live.add(key)
        try:
            return await self._execute(invocation, digest, handler, retry, cuts)
        finally:
            self._live.discard(key)

    async def delay(self, invocation: Invocation, seconds: float) -> None:
        """Wait until `seconds` after the delay was first asked for, whatever happened since.

        Durable when it returns: the record that the delay is over.
        If it raises: as `perform`.
        """
        self._check()
        digest = hashlib.sha256(invocation.input_json).digest()
        try:
            row = self._replay.find(invocation, digest)
            timer = self._replay.find_timer(invocation, digest)
        except ReplayMismatch as mismatch:
            raise self.park(mismatch) from mismatch
        if row is not None:
            await self._answer(row)
            return
        if timer is None:
            wake_at = self._clock.now() + seconds
            self._ownership.check(self.fence.run_id)
            await self._store.begin_timer(self.fence, invocation, digest, wake_at)
        else:
            wake_at = timer.wake_at
        await self._wait(invocation, digest, wake_at)

    def park(self, cause: PerdureError) -> RunParked:
        """Stop the run for a person to look at: every further operation is refused.

        Sticky, because code that swallows the signal must still get nothing done.
        """
        if self.parked is None:
            self.parked = cause
        return RunParked(self.parked)

    def _check(self) -> None:
        if self.parked is not None:
            raise RunParked(self.parked)
        if self.lost:
            raise LeaseLost(self.fence.run_id)

    async def _answer(self, row: JournalRow) -> Performed:
        payload = row.payload
        if payload is None:
            payload = await self._store.read_payload(self.fence.run_id, row.step_id, row.sequence)
        self.replayed += 1
        self._observer.count("perdure_operation_replayed_total")
        return Performed(
            unpack_outcome(row.status, payload),
            replayed=True,
            attempt=row.attempt,
            finished_at=row.finished_at,
        )

    async def _execute(
        self,
        invocation: Invocation,
        digest: bytes,
        handler: Handler,
        retry: RetryPolicy | None,
        cuts: tuple[int, ...],
    ) -> Performed:
        retry_step = f"{invocation.step_id}.{invocation.sequence}.retry"
        failures = self._replay.count(retry_step) if retry is not None else 0
        attempt = failures + 1
        timer = self._replay.timer(retry_step, failures)
        if timer is not None:
            # A crash cut this delay short; what remains of it is waited under its own input.
            pending = _retry_delay(invocation, retry_step, failures, timer.input_json)
            await self._wait(pending, timer.input_sha256, timer.wake_at)
        started_at = self._clock.now()
        while True:
            outcome, error = await self._attempt(invocation, handler)
            if retry is None or error is None or not retry.allows(error, attempt):
                return await self._record(invocation, digest, outcome, attempt, started_at, cuts)
            assert isinstance(outcome, Failure)
            await self._back_off(invocation, retry_step, retry, attempt, error, outcome)
            attempt += 1

    async def _attempt(
        self, invocation: Invocation, handler: Handler
    ) -> tuple[Outcome, Exception | None]:
        self._ownership.check(self.fence.run_id)
        self.executed += 1
        self._observer.count("perdure_operation_executed_total")
        place = f"{invocation.step_id}/{invocation.sequence}"
        self._probe(f"operation.call {place}")
        try:
            outcome = await handler()
            error = None
        except Exception as raised:  # noqa: BLE001 - whatever a handler raises is its outcome
            outcome, error = failure_of(raised), raised
        self._probe(f"operation.called {place}")
        return _bounded(outcome, len(invocation.input_json)), error

    async def _back_off(
        self,
        invocation: Invocation,
        step_id: str,
        retry: RetryPolicy,
        attempt: int,
        error: Exception,
        failure: Failure,
    ) -> None:
        self._observer.count("perdure_operation_retried_total")
        seconds = retry.delay_seconds(invocation.run_id, attempt, invocation.sequence, error)
        document = msgspec.json.encode(
            {"delay_ms": round(seconds * 1000), "error_name": failure.error_name}
        )
        await self.delay(_retry_delay(invocation, step_id, attempt, document), seconds)

    async def _wait(self, invocation: Invocation, digest: bytes, wake_at: float) -> None:
        started_at = self._clock.now()
        await self._clock.sleep(max(0.0, wake_at - started_at))
        await self._record(invocation, digest, Success(b"{}"), 1, started_at, ())

    async def _record(
        self,
        invocation: Invocation,
        digest: bytes,
        outcome: Outcome,
        attempt: int,
        started_at: float,
        cuts: tuple[int, ...],
    ) -> Performed:
        finished_at = self._clock.now()
        record = NewRecord(invocation, digest, outcome, attempt, started_at, finished_at, cuts)
        await self.insist(lambda: self._store.append_record(self.fence, record))
        if len(self._live) > 1:
            # It may stand below a live operation whose handler is tried again, and asks again.
            self._replay.add(_journal_row(record, self.fence.generation))
        self._recorded.add((invocation.step_id, invocation.sequence))
        return Performed(outcome, replayed=False, attempt=attempt, finished_at=finished_at)

    async def insist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write what has already happened, for as long as this process owns the run.

        Durable when it returns: what `write` writes, fsynced.
        If it raises: `LeaseLost`, or a `StorageError` that waiting does not mend.
        """
        pause = 0.05
        while True:
            try:
                return await write()
            except LeaseLost:
                self.lost = True
                raise
            except (StorageBusy, StorageFull) as error:
                log.warning("run %s waits to record an operation: %s", self.fence.run_id, error)
            await self._clock.sleep(pause)
            pause = min(pause * 2, 1.0)
            self._ownership.check(self.fence.run_id)


def failure_of(error: BaseException) -> Failure:
    """Return the failure that an exception out of a handler is journalled as.

    An `OperationFailed` is kept as it is, so that a failure rebuilt by an adapter, or one of a
    nested operation, does not change its name on the way up.
    """
    if isinstance(error, OperationFailed):
        data = None if error.data is None else msgspec.json.encode(error.data)
        return Failure(error.code, error.retryable, error.type_name, error.message, data)
    name = error_name_of(type(error))
    return Failure(name, type_name=_qualified(type(error)), message=_printable(str(error)))


def _journal_row(record: NewRecord, generation: int) -> JournalRow:
    invocation = record.invocation
    status, payload = pack_outcome(record.outcome)
    return JournalRow(
        invocation.step_id,
        invocation.sequence,
        invocation.kind.value,
        invocation.handler_id,
        record.input_sha256,
        status,
        payload if len(payload) <= _REMEMBERED_BYTES else None,
        record.attempt,
        generation,
        record.started_at,
        record.finished_at,
    )


def _retry_delay(of: Invocation, step_id: str, number: int, input_json: bytes) -> Invocation:
    return Invocation(
        of.run_id, step_id, number, OperationKind.RETRY_DELAY, _RETRY_HANDLER, input_json
    )


def _check_live(invocation: Invocation) -> None:
    check_identifier(invocation.step_id, "step id")
    check_identifier(invocation.handler_id, "handler id")
    size = len(invocation.input_json)
    if not 0 < size <= INPUT_LIMIT_BYTES:
        raise InvalidPayload(
            f"the input of operation {invocation.stable_key} has {size} bytes; an input has 1 to"
            f" {INPUT_LIMIT_BYTES}: pass a reference to large data, not the data"
        )


def _bounded(outcome: Outcome, input_bytes: int) -> Outcome:
    """Turn an outcome that no record can hold into the failure that says so."""
    size = len(pack_outcome(outcome)[1])
    if size + input_bytes + _ENVELOPE_BYTES <= RECORD_LIMIT_BYTES:
        return outcome
    return Failure(
        "InvalidPayload",
        type_name="perdure.errors.InvalidPayload",
        message=f"the outcome has {size} bytes, and a record holds {RECORD_LIMIT_BYTES} with its"
        " input: store large data elsewhere and return a reference to it",
    )


def _qualified(kind: type[BaseException]) -> str:
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
