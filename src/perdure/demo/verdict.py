from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec

from perdure.demo.evidence import CLOCK, LOOKUP, REFUND, TOOLS, Evidence, Settler, Visit
from perdure.demo.report import Moment
from perdure.demo.story import ANSWER, PAID_CENTS
from perdure.effects.receipt import ReceiptState
from perdure.effects.support import SideEffectSupport
from perdure.engine.store import RunState

_CUT_SHORT: Final = {
    "model-stream": {("model", "4"): 1},
    "in-tool": {REFUND: 1},
    "mcp": {CLOCK: 1},
}
"""What the scripted turn has under way at each point, and so has to do again."""

SETTLERS: Final[dict[SideEffectSupport, Settler]] = {
    SideEffectSupport.OUTCOME_QUERYABLE: "lookup",
    SideEffectSupport.IDEMPOTENT: "repeat",
    SideEffectSupport.AT_LEAST_ONCE: "person",
}
"""How doubt is to end, by what the shop can do."""


class Count(msgspec.Struct, frozen=True):
    """How often something happened outside: by each worker, in all, and as it should be."""

    what: str
    by_worker: Sequence[int]
    counted: int
    expected: int


class Verdict(msgspec.Struct, frozen=True):
    """What was counted, and what is wrong with it: nothing, when the demo went well.

    `settled_by` is how the doubt about a refund ended; None where there was none, or still is.
    """

    counts: Sequence[Count]
    faults: Sequence[str]
    replayed: int
    killed: Moment | None
    answer: str | None
    settled_by: Settler | None


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
        evidence.settler,
    )


def _counts(evidence: Evidence) -> list[Count]:
    visits = [evidence.shop.visits(pid) for pid in evidence.pids]
    seen = sum(visits, Counter[Visit]())
    recorded, cut = evidence.recorded(), _cut_short(evidence, visits)
    expected = recorded + _repeated(evidence, cut)
    expected[LOOKUP] = _lookups(evidence, seen)
    requests = {visit for visit in seen | expected if visit[0] == "model"}
    names = sorted(requests, key=lambda visit: int(visit[1]))
    names += [*(("tool", name) for name in TOOLS), LOOKUP, CLOCK]
    counts = [
        Count(_named(visit), [by[visit] for by in visits], seen[visit], expected[visit])
        for visit in names
        if seen[visit] or expected[visit]
    ]
    refunds = recorded[REFUND] + (cut[REFUND] if evidence.left else 0)
    paid = [evidence.shop.refunds(pid)[0] for pid in evidence.pids]
    if refunds or any(paid):
        counts.append(Count("refunds paid", paid, sum(paid), refunds))
    return counts


def _cut_short(evidence: Evidence, visits: Sequence[Counter[Visit]]) -> Counter[Visit]:
    """Return what the kill left unrecorded: known for the script, counted for a real model."""
    if evidence.last("killed") is None:
        return Counter()
    if evidence.scripted:
        return Counter(_CUT_SHORT.get(evidence.plan.kill_at, {}))
    return visits[0] - evidence.recorded(1) - Counter({LOOKUP: visits[0][LOOKUP]})


def _repeated(evidence: Evidence, cut: Counter[Visit]) -> Counter[Visit]:
    """Return what was cut short and has no record of its own, or was done again.

    A refund that went out before the kill is done again only where the shop drops the repeat.
    """
    repeated = Counter(cut)
    if evidence.plan.support is not SideEffectSupport.IDEMPOTENT and not evidence.left:
        del repeated[REFUND]
    return repeated


def _lookups(evidence: Evidence, seen: Counter[Visit]) -> int:
    """Return how often the shop should have been asked; for a real model, how often it was."""
    if not evidence.scripted:
        return seen[LOOKUP]
    asked = evidence.plan.support is SideEffectSupport.OUTCOME_QUERYABLE
    return int(asked and evidence.plan.kill_at == "in-tool" and evidence.last("killed") is not None)


def _faults(evidence: Evidence, counts: Sequence[Count]) -> Iterator[str]:
    point = evidence.plan.kill_at
    if point != "none" and evidence.last("killed") is None:
        yield f"the turn never came to the point {point!r}, so nobody was killed"
    wanted = RunState.NEEDS_ATTENTION if evidence.left else RunState.COMPLETED
    if evidence.run.state is not wanted:
        problem = evidence.run.problem
        why = "" if problem is None else f": {problem.type_name}: {problem.message}"
        yield f"the run is {evidence.run.state.value}, not {wanted.value}{why}"
    for count in counts:
        if count.counted != count.expected:
            yield f"{count.what}: counted {count.counted}, and {count.expected} would be right"
    yield from _faults_of_attempts(evidence)
    yield from _faults_of_receipts(evidence)
    for times, cents in map(evidence.shop.refunds, evidence.pids):
        if evidence.scripted and cents != times * PAID_CENTS:
            yield f"{cents} cents went back in {times} refunds of {PAID_CENTS}"
    finished = evidence.last("finished")
    if evidence.scripted and finished is not None and finished.report.text != ANSWER:
        yield f"the answer is another than the script's: {finished.report.text}"


def _faults_of_attempts(evidence: Evidence) -> Iterator[str]:
    killed, finished = evidence.last("killed"), evidence.last("finished")
    # Each effect that a person settles may let the run go on, up to the next one.
    endings = [ending for ending, _ in groupby(row.ending for row in evidence.attempts)]
    wanted = [] if killed is None else ["lost"]
    wanted += ["needs_attention"] if evidence.last("parked") is not None else []
    wanted += [] if evidence.left else ["completed"]
    if endings != wanted:
        yield f"the attempts ended as {endings}, and {wanted} would be right"
    pids = [*dict.fromkeys(attempt.pid for attempt in evidence.attempts)]
    if pids != evidence.pids or len(pids) < (1 if killed is None else 2):
        yield "the run was not finished by another process than the one that was killed"
    if finished is not None and evidence.attempts:
        last = evidence.attempts[-1].generation
        before = sum(operation.generation < last for operation in evidence.operations)
        if finished.report.number != before:
            yield (
                f"{finished.report.number} operations were answered from the journal, and"
                f" {before} had been recorded before"
            )


def _faults_of_receipts(evidence: Evidence) -> Iterator[str]:
    states = [receipt.state.value for receipt in evidence.receipts]
    if evidence.left and ReceiptState.AMBIGUOUS not in states:
        yield f"the receipts are {states}, and one should be ambiguous"
    if not evidence.left and set(states) - {ReceiptState.COMPLETED}:
        yield f"the receipts are {states}, and all should be completed"
    if not evidence.scripted or evidence.left:
        return
    refunds = evidence.recorded()[REFUND]
    if len(states) != refunds:
        yield f"{len(states)} effects have receipts, and {refunds} would be right: the refunds"
    doubtful = evidence.plan.kill_at == "in-tool"
    settler = SETTLERS[evidence.plan.support] if doubtful else None
    if evidence.settler != settler:
        yield f"doubt was settled by {evidence.settler}, and {settler} would be right"


def _named(visit: Visit) -> str:
    kind, name = visit
    match kind:
        case "model":
            return f"model request {name}"
        case "mcp":
            return f"MCP {name}"
        case "lookup":
            return "lookup at the shop"
        case _:
            return f"tool {name}"
