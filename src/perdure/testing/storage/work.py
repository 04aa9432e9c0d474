from __future__ import annotations

import itertools
import random
from typing import Any, Final

from perdure.approvals import Approve, NewAnswer
from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Move, ReceiptState
from perdure.effects.store import Owner
from perdure.fence import Fence
from perdure.journal.invocation import SEQUENCE_LIMIT, OperationKind
from perdure.journal.record import Failure, Success, Suspended, SuspensionReason
from perdure.testing.storage.expecting import ensure
from perdure.testing.storage.scene import Process, delay, message, settlement

_DICE: Final = random.Random(3)  # noqa: S311 - it draws cases
_PARTS: Final = [b'"%s"' % _DICE.randbytes(450).hex().encode() for _ in range(8)]


def talk(length: int) -> bytes:
    """Return a conversation of up to 8 messages, whose beginnings are worth sharing."""
    return b"[" + b",".join(_PARTS[:length]) + b"]"


async def worked(process: Process, run_id: str) -> Fence:
    """Start a run that records something of every kind, and whose effects are in every state."""
    fence = await process.start(run_id, talk(6))
    ends = [*itertools.accumulate(len(part) + 1 for part in _PARTS)]
    for number in range(1, 4):
        cuts = tuple(ends[: 2 * number])
        await process.append(fence, "model", number, document=talk(2 * number), cuts=cuts)
    for number, outcome in enumerate(
        (
            Success(talk(5)),
            Failure("Code", retryable=True, type_name="T", message="m" * 999, data_json=b"{}"),
            Suspended(SuspensionReason.APPROVAL, b'{"tool":"pay"}'),
        )
    ):
        kind = OperationKind.TOOL_CALL
        what: dict[str, Any] = {
            "outcome": outcome,
            "kind": kind,
            "attempt": number + 1,
            "nested": number == 1,
        }
        await process.append(fence, "tool", SEQUENCE_LIMIT - number, **what)
    await process.store.begin_timer(fence, *delay(fence), 1e9 + 0.25)
    await _told(process, fence)
    await _asked(process, fence)
    await process.attempted_in(fence, ReceiptState.COMPLETED)
    await process.attempted_in(fence, ReceiptState.FAILED, 2)
    doubted = await process.attempted_in(fence, ReceiptState.AMBIGUOUS, 3)
    said: dict[str, Any] = {"by": "ada", "why": "it was \U0001f980", "version": doubted.version}
    await process.store.settle_effect(settlement(doubted, Move.RULE_OUT, **said))
    claim = process.effect(
        identity=OperationIdentity(run_id, "charge", "bank", 3),
        owner=Owner(fence.holder, fence.generation),
    )
    again, mine = await process.store.claim_effect(claim)
    ensure(mine, "what was ruled out may be sent again")
    await process.store.settle_effect(settlement(again, Move.DOUBT, problem="no reply"))
    return fence


async def _told(process: Process, fence: Fence) -> None:
    """Send a run messages: one that it takes, and some that wait, of which one was edited."""
    for number in range(4):
        await process.store.send_message(message(fence.run_id, f"m-{number}", b"%d" % number))
    edited = message(fence.run_id, "m-2", b'"edited"', sent_by="ada \U0001f980")
    await process.store.send_message(edited, edit=True)
    await process.take(fence, "news", SEQUENCE_LIMIT)


async def _asked(process: Process, fence: Fence) -> None:
    """Ask for two things, of which one is answered."""
    for number in (1, 2):
        await process.ask(fence, number)
    answer = Approve({"amount": 5, "of": [1.5, None, "\U0001f980"]})
    await process.store.answer_approval(fence.run_id, "1", NewAnswer(answer, "ada", 7.5))
