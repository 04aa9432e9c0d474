from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from typing import Any, Final, assert_never

import msgspec

from perdure.ids import stable_key
from perdure.journal.invocation import OperationKind
from perdure.journal.record import Failure, Outcome, Success, Suspended
from perdure.journal.store import JournalStore, unpack_outcome

MODEL_KINDS: Final = frozenset({OperationKind.MODEL_REQUEST, OperationKind.MODEL_STREAM})
"""The kinds of operations that cost tokens."""

_NANO: Final = 1_000_000_000
_TOOL_CALL: Final = "tool-call"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What requests used; a cost is in billionths of a US dollar, None where nobody said one.

    `tool_calls` are those that the responses ask for. `unmeasured` counts the requests of which
    nobody said what they used: where it is not 0, the other numbers are lower bounds.
    """

    requests: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_nano_usd: int | None = None
    unmeasured: int = 0

    @property
    def total_tokens(self) -> int:
        """The tokens of both directions."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        costs = [cost for cost in (self.cost_nano_usd, other.cost_nano_usd) if cost is not None]
        return Usage(
            requests=self.requests + other.requests,
            tool_calls=self.tool_calls + other.tool_calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_nano_usd=sum(costs) if costs else None,
            unmeasured=self.unmeasured + other.unmeasured,
        )


NOTHING: Final = Usage()
"""What nobody used."""


class Spent(msgspec.Struct, frozen=True):
    """What was spent: `billed` over all attempts, `effective` over those that gave the answer.

    An attempt that failed is billed as a request; what it used is known only where its failure says
    so. A response that did not come to its end is billed, and not effective.
    """

    billed: Usage = NOTHING
    effective: Usage = NOTHING

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.billed + other.billed, self.effective + other.effective)


class Spending:
    """What a run has spent, folded from its records: each counts once, in whatever order."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._own = Spent()
        self._runs: dict[str, Spent] = {}
        self._under_way: set[str] = set()

    @property
    def spent(self) -> Spent:
        """What was spent up to now, by the run and by those that were added to it."""
        return sum(self._runs.values(), self._own)

    @property
    def under_way(self) -> int:
        """How many model requests have begun and are not counted yet."""
        return len(self._under_way)

    def knows(self, key: str) -> bool:
        """Return whether the operation of a stable key was counted."""
        return key in self._known

    def count(self, key: str, kind: OperationKind, outcome: Outcome, attempts: int = 1) -> None:
        """Count what an operation came to, unless it was counted before.

        Only model requests add to what is spent; of others it is known that they are recorded.
        """
        if key in self._known:
            return
        self._known.add(key)
        if kind in MODEL_KINDS:
            self._own += spent_on(outcome, attempts)

    async def read(self, store: JournalStore, run_id: str) -> None:
        """Count what the journal of a run holds; raise a `StorageError`."""
        for row in (await store.read_journal(run_id)).rows:
            kind, payload = OperationKind(row.kind), row.payload
            if payload is None and kind in MODEL_KINDS:
                payload = await store.read_payload(run_id, row.step_id, row.sequence)
            outcome = Success(b"") if payload is None else unpack_outcome(row.status, payload)
            key = stable_key(run_id, row.step_id, row.sequence)
            self.count(key, kind, outcome, row.attempt)

    def add_run(self, run_id: str, spent: Spent) -> None:
        """Count what another run has spent up to now, in place of what was said of it before."""
        self._runs[run_id] = spent

    @contextmanager
    def begun(self, key: str, kind: OperationKind) -> Generator[None]:
        """Hold a request as under way until it is counted, or has no outcome after all."""
        held = kind in MODEL_KINDS and key not in self._known and key not in self._under_way
        if held:
            self._under_way.add(key)
        try:
            yield
        finally:
            if held:
                self._under_way.discard(key)


def spent_on(outcome: Outcome, attempts: int = 1) -> Spent:
    """Return what a model request was billed and gave, from the outcome of its last attempt.

    The output is a payload document, or any object whose member `usage` says it. A success that is
    no response of a model spent nothing.
    """
    match outcome:
        case Success(output_json=output_json):
            response = _read(output_json)
            if response is None:
                return Spent()
            used = response.used()
            before = Usage(requests=attempts - 1, unmeasured=attempts - 1)
            return Spent(used + before, used if response.state == "complete" else NOTHING)
        case Failure(data_json=data_json):
            return Spent(_known_of(data_json, attempts))
        case Suspended():
            return Spent(Usage(requests=attempts, unmeasured=attempts))
        case _:
            assert_never(outcome)


# --- what outputs and failures say -----------------------------------------------------------


class _Used(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    cost: Any = None
    unmeasured_requests: int = 0

    def usage(self) -> Usage:
        return Usage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cost_nano_usd=_nano_of(self.cost),
            unmeasured=1 if self.unmeasured_requests else 0,
        )


class _Part(msgspec.Struct):
    part_kind: str = ""


class _Response(msgspec.Struct):
    parts: list[_Part]
    usage: _Used | None = None
    state: str = "complete"

    def used(self) -> Usage:
        calls = sum(part.part_kind == _TOOL_CALL for part in self.parts)
        measured = Usage(unmeasured=1) if self.usage is None else self.usage.usage()
        return measured + Usage(requests=1, tool_calls=calls)


class _History(msgspec.Struct):
    messages: list[_Response]


class _FailureData(msgspec.Struct):
    usage: _Used | None = None
    responses: dict[str, _Response] = {}


_histories: Final = msgspec.json.Decoder(_History)
_responses: Final = msgspec.json.Decoder(_Response)
_failures: Final = msgspec.json.Decoder(_FailureData)


def _read(output_json: bytes) -> _Response | None:
    try:
        messages = _histories.decode(output_json).messages
    except msgspec.MsgspecError:
        try:
            return _responses.decode(output_json)
        except msgspec.MsgspecError:
            return None
    return messages[0] if len(messages) == 1 else None


def _known_of(data_json: bytes | None, attempts: int) -> Usage:
    try:
        data = _FailureData() if data_json is None else _failures.decode(data_json)
    except msgspec.MsgspecError:
        data = _FailureData()
    known = [response.usage for response in data.responses.values()] or [data.usage]
    used = sum((each.usage() for each in known if each is not None), NOTHING)
    unmeasured = attempts if all(each is None for each in known) else attempts - 1
    return used + Usage(requests=attempts, unmeasured=unmeasured)


def _nano_of(cost: Any) -> int | None:
    """Return a cost that is spelled `{"nano_usd": …}`, or as US dollars; None for anything else."""
    if isinstance(cost, dict):
        nano: Any = msgspec.convert(cost, dict[str, Any]).get("nano_usd")
        return nano if isinstance(nano, int) else None
    try:
        return None if cost is None else round(Decimal(str(cost)) * _NANO)
    except (InvalidOperation, ValueError, OverflowError):
        return None
