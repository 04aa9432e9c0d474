from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from perdure.demo.report import Moment
from perdure.demo.shop import Shop
from perdure.demo.story import ANSWER, PAID_CENTS
from perdure.engine.store import AttemptRow, OperationRow, RunRow, RunState

_TOOLS: Final = ("look_up_order", "track_parcel", "refund_order")
_CLOCK: Final = ("mcp", "bank_day")
_REFUND: Final = ("tool", "refund_order")
_CUT_SHORT: Final = {
    "model-stream": {("model", "4"): 1},
    "in-tool": {_REFUND: 1},
    "mcp": {_CLOCK: 1},
}
"""What the scripted turn has under way at each point, and so has to do again."""

Visit = tuple[str, str]


class Count(msgspec.Struct, frozen=True):
    """How often something happened outside: by each worker, in all, and as it should be."""

    what: str
    by_worker: Sequence[int]
    counted: int
    expected: int


class Verdict(msgspec.Struct, frozen=True):
    """What was counted, and what is wrong with it: nothing, when the demo went well."""

    counts: Sequence[Count]
    faults: Sequence[str]
    replayed: int
    killed: Moment | None
    answer: str | None


class Evidence(msgspec.Struct, frozen=True):
    """What is known of a turn: what the workers said, what the shop saw, what the store holds."""

    point: str
    scripted: bool
    moments: Sequence[Moment]
    shop: Shop
    run: RunRow
    attempts: Sequence[AttemptRow]
    operations: Sequence[OperationRow]

    def last(self, what: str) -> Moment | None:
        """Return the last report of a kind."""
        return next((m for m in reversed(self.moments) if m.report.what == what), None)

    @property
    def pids(self) -> list[int]:
        """The processes that worked on the run, in order."""
        worked = (moment.pid for moment in self.moments if moment.report.what != "ready")
        return [*dict.fromkeys(worked)]

    def recorded(self, generation: int | None = None) -> Counter[Visit]:
        """Return what the journal says was done outside, in all or by one attempt."""
        return Counter(
            visit
            for operation in self.operations
            if generation in {None, operation.generation}
            and (visit := _visit_of(operation)) is not None
        )


def judge(evidence: Evidence) -> Verdict:
    """Compare what was counted outside with what it should be."""
    counts = _counts(evidence)
    finished = evidence.last("finished")
    return Verdict(
        counts,
        [*_faults(evidence, counts)],
        0 if finished is None else finished.report.number,
        evidence.last("killed"),
        None if finished is None else finished.report.text,
    )


def _counts(evidence: Evidence) -> list[Count]:
    visits = [evidence.shop.visits(pid) for pid in evidence.pids]
    seen = sum(visits, Counter[Visit]())
    expected = evidence.recorded() + _cut_short(evidence, visits)
    requests = {visit for visit in seen | expected if visit[0] == "model"}
    names = sorted(requests, key=lambda visit: int(visit[1]))
    names += [*(("tool", name) for name in _TOOLS), _CLOCK]
    counts = [
        Count(_named(visit), [by[visit] for by in visits], seen[visit], expected[visit])
        for visit in names
        if seen[visit] or expected[visit]
    ]
    if expected[_REFUND]:
        paid = [evidence.shop.refunds(pid)[0] for pid in evidence.pids]
        counts.append(Count("refunds paid", paid, sum(paid), expected[_REFUND]))
    return counts


def _cut_short(evidence: Evidence, visits: Sequence[Counter[Visit]]) -> Counter[Visit]:
    """Return what the kill left unrecorded: known for the script, counted for a real model."""
    if evidence.last("killed") is None:
        return Counter()
    if evidence.scripted:
        return Counter(_CUT_SHORT.get(evidence.point, {}))
    return visits[0] - evidence.recorded(1)


def _faults(evidence: Evidence, counts: Sequence[Count]) -> Iterator[str]:
    if evidence.point != "none" and evidence.last("killed") is None:
        yield f"the turn never came to the point {evidence.point!r}, so nobody was killed"
    if evidence.run.state is not RunState.COMPLETED:
        problem = evidence.run.problem
        why = "" if problem is None else f": {problem.type_name}: {problem.message}"
        yield f"the run is {evidence.run.state.value}, not completed{why}"
    for count in counts:
        if count.counted != count.expected:
            yield f"{count.what}: counted {count.counted}, and {count.expected} would be right"
    yield from _faults_of_attempts(evidence)
    for times, cents in map(evidence.shop.refunds, evidence.pids):
        if evidence.scripted and cents != times * PAID_CENTS:
            yield f"{cents} cents went back in {times} refunds of {PAID_CENTS}"
    finished = evidence.last("finished")
    if evidence.scripted and finished is not None and finished.report.text != ANSWER:
        yield f"the answer is another than the script's: {finished.report.text}"


def _faults_of_attempts(evidence: Evidence) -> Iterator[str]:
    killed, finished = evidence.last("killed"), evidence.last("finished")
    endings = [attempt.ending for attempt in evidence.attempts]
    wanted = ["completed"] if killed is None else ["lost", "completed"]
    if endings != wanted:
        yield f"the attempts ended as {endings}, and {wanted} would be right"
    if len({attempt.pid for attempt in evidence.attempts}) != len(wanted):
        yield "the run was not finished by another process than the one that was killed"
    if finished is not None:
        before = sum(operation.generation == 1 for operation in evidence.operations)
        expected = 0 if killed is None else before
        if finished.report.number != expected:
            yield (
                f"{finished.report.number} operations were answered from the journal, and"
                f" {expected} had been recorded before the kill"
            )


def _visit_of(operation: OperationRow) -> Visit | None:
    """Return what an operation does outside, as the shop counts it."""
    name = operation.handler_id.rpartition(".")[2]
    match operation.kind:
        case "model_stream" | "model_request":
            return ("model", str(operation.sequence))
        case "tool_call" if name in _TOOLS:
            return ("tool", name)
        case "mcp_request" if name == _CLOCK[1]:
            return _CLOCK
        case _:
            return None


def _named(visit: Visit) -> str:
    kind, name = visit
    return {"model": f"model request {name}", "mcp": f"MCP {name}"}.get(kind, f"tool {name}")
