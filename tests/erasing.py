"""What is erased in tests: runs with something in every place that can hold it."""

from __future__ import annotations

from pathlib import Path

from perdure import RunState
from perdure.approvals import ApprovalKind, Deny, NewAnswer, NewApproval
from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Move
from perdure.effects.store import EffectClaim, Owner, Settlement
from perdure.effects.support import SideEffectSupport
from perdure.engine.store import NewRun, RunEnd, RunProblem
from perdure.fence import Fence
from perdure.inbox import NewMessage
from perdure.journal import Failure, Invocation, OperationKind
from tests.harness import Stored

WHO = {"by": "ada", "why": "request 17"}
LONG = b'"' + b"MARK-long, which is kept packed " * 20 + b'"'
ENDS = {
    "done": RunEnd(RunState.COMPLETED, b'"MARK-result"'),
    "failed": RunEnd(
        RunState.FAILED, problem=RunProblem("C", "T", "MARK-failure", "MARK-traceback")
    ),
    "other": RunEnd(RunState.COMPLETED, b'"KEEP-result"'),
}


async def effect(
    it: Stored, fence: Fence, name: str, move: Move | None, said: str = ""
) -> OperationIdentity:
    """Leave a receipt of a run as a move leaves it, or in flight."""
    identity = OperationIdentity(fence.run_id, f"{name}-key", f"{name}-target")
    owner = Owner(fence.holder, fence.generation)
    support = SideEffectSupport.AT_LEAST_ONCE
    await it.store.claim_effect(
        EffectClaim(
            operation_key=identity.operation_key,
            identity=identity,
            support=support,
            arguments_sha256=b"5",
            owner=owner,
            settle_seconds=0.0,
            resend_after=None,
        )
    )
    if move is not None:
        settlement = Settlement(
            operation_key=identity.operation_key,
            attempt=1,
            generation=fence.generation,
            move=move,
            payload=said.encode() if move is Move.COMPLETE else None,
            problem=None if move is Move.COMPLETE else said,
        )
        await it.store.settle_effect(settlement)
    return identity


async def filled(it: Stored, run_id: str, mark: str) -> Fence:
    """Write a run with something in every place that holds what it was given or came to."""
    started = await it.store.start_run(
        NewRun(run_id, "work", 1, f'"{mark}-input"'.encode(), 1.0), it.fence.holder
    )
    assert started.claimed is not None
    fence = started.claimed.fence
    turns = [f"{mark}-piece-{number}, ".encode() for number in range(3)]
    document, cuts = b"begins alike, ", [14]
    for number, turn in enumerate(turns):
        document += turn
        cuts.append(len(document))
        await it.append("model", number, document + f"{mark}-tail".encode(), (*cuts,), fence=fence)
    await it.append("tool", 1, b"1", outcome=Failure("Code", f"{mark}-message"), fence=fence)
    await it.append("tool", 2, LONG if mark == "MARK" else b"2", fence=fence)
    wait = Invocation(run_id, "sleep", 1, OperationKind.RETRY_DELAY, "h", f'"{mark}-wait"'.encode())
    await it.store.begin_timer(fence, wait, b"", 5.0)
    said = f'"{mark}-said"'.encode()
    await it.store.send_message(NewMessage(run_id, "m-1", "news", said, "ada", 5.0))
    ask = Invocation(run_id, "ask", 1, OperationKind.APPROVAL_RESUME, "h", b"null")
    arguments = f'{{"to":"{mark}-arguments"}}'.encode()
    asked = NewApproval("1", ApprovalKind.APPROVAL, "pay", arguments, 5.0)
    await it.store.begin_approval(fence, ask, b"", None, asked)
    answer = NewAnswer(Deny(f"{mark}-denial"), "ada", 5.0)
    await it.store.answer_approval(run_id, "1", answer)
    await effect(it, fence, mark, Move.COMPLETE, f'"{mark}-answer"')
    await effect(it, fence, f"{mark}-other", Move.REFUSE, f"{mark}-refusal")
    await it.store.end_run(fence, ENDS[run_id])
    return fence


def bytes_of(folder: Path) -> bytes:
    """Return all that is on the disk for a database, its log included."""
    return b"".join(path.read_bytes() for path in folder.glob("runs.db*") if path.is_file())
