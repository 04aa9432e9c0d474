from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self, TypeAlias

import msgspec

from perdure.approvals import ApprovalKind, NewApproval
from perdure.effects.identity import OperationIdentity
from perdure.effects.receipt import Move, Receipt, ReceiptState
from perdure.effects.store import EffectClaim, Owner, Settlement
from perdure.effects.support import SideEffectSupport
from perdure.engine.store import NewRun, RunEnd, RunRow, RunState, RunStore
from perdure.fence import Fence
from perdure.inbox import NewMessage
from perdure.journal.digest import Digester
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.record import Outcome, Success
from perdure.journal.store import NewRecord
from perdure.testing.storage.expecting import expect

OpenStore: TypeAlias = Callable[..., Awaitable[RunStore]]
"""Opens one more store on the place of a check, with `blobs` or `vault` where those are given."""

SERVED: Final = (("work", 1),)
IDENTITY: Final = OperationIdentity("invoice-17", "charge", "bank")
_LEASE_SECONDS: Final = 3600.0
_MOVES: Final = {
    ReceiptState.COMPLETED: Move.COMPLETE,
    ReceiptState.FAILED: Move.REFUSE,
    ReceiptState.AMBIGUOUS: Move.DOUBT,
}


class Scene:
    """The stores of one check; the end closes them."""

    def __init__(self, open_store: OpenStore) -> None:
        self._open = open_store
        self._stores: list[RunStore] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for store in reversed(self._stores):
            await store.close()

    async def store(self, **given: Any) -> RunStore:
        """Open one more store; `given` are the blobs or the vault that it is to use."""
        store = await self._open(**given)
        self._stores.append(store)
        return store

    async def process(self, lease_seconds: float = _LEASE_SECONDS, **given: Any) -> Process:
        """Open one more store, with a worker whose lease nobody renews."""
        store = await self.store(**given)
        return Process(store, await store.register_worker("worker", lease_seconds))


class Process:
    """A store and a worker of it, which owns runs and makes attempts."""

    def __init__(self, store: RunStore, holder: str) -> None:
        self.store = store
        self.holder = holder

    # --- runs ---

    async def start(self, run_id: str = "run-1", input_json: bytes = b"null") -> Fence:
        """Start a run and own it."""
        started = await self.store.start_run(new_run(run_id, input_json), self.holder)
        if started.claimed is None:
            raise AssertionError(f"a run that is started with a standing worker: {started}")
        return started.claimed.fence

    async def claim(self, limit: int = 100, *served: tuple[str, int]) -> list[str]:
        """Claim runs that wait, and return their ids."""
        claims = await self.store.claim_runs(self.holder, served or SERVED, limit)
        return [claim.fence.run_id for claim in claims]

    async def run(self, run_id: str = "run-1") -> RunRow:
        """Return a run that is there."""
        row = await self.store.read_run(run_id)
        if row is None:
            raise AssertionError(f"run {run_id} is there: found none")
        return row

    async def state(self, run_id: str = "run-1") -> RunState:
        """Return where a run stands."""
        return (await self.run(run_id)).state

    async def end(self, fence: Fence, state: RunState = RunState.COMPLETED, **how: Any) -> RunRow:
        """End a run, by default with the output 1; return it."""
        how = how or {"output_json": b"1" if state is RunState.COMPLETED else None}
        await self.store.end_run(fence, RunEnd(state, **how))
        return await self.run(fence.run_id)

    async def append(self, fence: Fence, step_id: str, sequence: int, **what: Any) -> None:
        """Record an operation, as `record` makes it."""
        await self.store.append_record(fence, record(fence, step_id, sequence, **what))

    async def take(self, fence: Fence, name: str, sequence: int, **what: Any) -> bool:
        """Take the next message of a name, which is there, with the record of a wait for it."""
        found = await self.store.next_message(fence.run_id, name)
        if found is None:
            raise AssertionError(f"a message {name} is there: found none")
        kind = OperationKind.RETRY_DELAY
        taking = record(fence, "wait", sequence, kind=kind, **what)
        return await self.store.take_message(fence, found, taking)

    async def wait_for(self, fence: Fence, name: str, wake_at: float | None = None) -> None:
        """Write that a wait for the messages of a name begins."""
        await self.store.begin_timer(fence, *delay(fence, step_id=name), wake_at, name)

    async def ask(self, fence: Fence, sequence: int) -> None:
        """Ask for something under the sequence, and wait for the answer."""
        kind = OperationKind.APPROVAL_RESUME
        invocation, digest = delay(fence, sequence, step_id="approval.resume", kind=kind)
        asked = NewApproval(str(sequence), ApprovalKind.APPROVAL, "pay", b'{"amount":9}', 6.5)
        await self.store.begin_approval(fence, invocation, digest, None, asked)

    # --- effects ---

    @property
    def owner(self) -> Owner:
        """The worker as the owner of attempts outside of runs."""
        return Owner(self.holder)

    def effect(self, **changes: Any) -> EffectClaim:
        """Return an attempt that is about to begin."""
        identity = changes.get("identity", IDENTITY)
        fields: dict[str, Any] = {
            "operation_key": identity.operation_key,
            "identity": identity,
            "support": SideEffectSupport.AT_LEAST_ONCE,
            "arguments_sha256": b"5",
            "owner": self.owner,
            "settle_seconds": 5.0,
            "resend_after": None,
            **changes,
        }
        return EffectClaim(**fields)

    async def attempted(
        self, state: ReceiptState = ReceiptState.IN_FLIGHT, **changes: Any
    ) -> Receipt:
        """Make the first attempt of an effect and leave its receipt in a state."""
        receipt, mine = await self.store.claim_effect(self.effect(**changes))
        expect((mine, receipt.state, receipt.attempt), (True, "in_flight", 1), "a first claim")
        if state in _MOVES:
            receipt, landed = await self.store.settle_effect(settlement(receipt, _MOVES[state]))
            expect((landed, receipt.state), (True, state), "the end of a first attempt")
        return receipt

    async def attempted_in(
        self, fence: Fence, state: ReceiptState, number: int = 1, **changes: Any
    ) -> Receipt:
        """Make the first attempt of an effect of a run and leave its receipt in a state."""
        identity = OperationIdentity(fence.run_id, "charge", "bank", number)
        owner = Owner(fence.holder, fence.generation)
        return await self.attempted(state, identity=identity, owner=owner, **changes)


def new_run(run_id: str, input_json: bytes = b"null", version: int = 1) -> NewRun:
    """Return a run of the function `work` to be written."""
    return NewRun(run_id, "work", version, input_json, 5.0)


def record(
    fence: Fence,
    step_id: str,
    sequence: int,
    *,
    document: bytes = b"1",
    cuts: tuple[int, ...] = (),
    outcome: Outcome = Success(b"1"),  # noqa: B008 - frozen
    kind: OperationKind = OperationKind.MODEL_REQUEST,
    attempt: int = 1,
    nested: bool = False,
) -> NewRecord:
    """Return a record to be written."""
    invocation = Invocation(fence.run_id, step_id, sequence, kind, "handler", document)
    digests = Digester().digest(step_id, document, cuts)
    return NewRecord(
        invocation, digests.whole, outcome, attempt, 10.0, 11.5, nested, cuts, digests.newest
    )


def message(
    run_id: str = "run-1",
    message_id: str = "m-1",
    payload_json: bytes = b"1",
    *,
    name: str = "news",
    sent_by: str = "ada",
) -> NewMessage:
    """Return a message to be sent."""
    return NewMessage(run_id, message_id, name, payload_json, sent_by, 6.5)


def delay(
    fence: Fence,
    sequence: int = 1,
    document: bytes = b"{}",
    *,
    step_id: str = "sleep",
    kind: OperationKind = OperationKind.RETRY_DELAY,
) -> tuple[Invocation, bytes]:
    """Return a delay, or a wait, and the digest of its input."""
    invocation = Invocation(fence.run_id, step_id, sequence, kind, "perdure.sleep", document)
    return invocation, hashlib.sha256(document).digest()


def settlement(receipt: Receipt, move: Move, **changes: Any) -> Settlement:
    """Return a move of the last attempt of a receipt."""
    made = Settlement(
        operation_key=receipt.operation_key,
        attempt=receipt.attempt,
        generation=receipt.generation,
        move=move,
        payload=b"1" if move is Move.COMPLETE else None,
    )
    return msgspec.structs.replace(made, **changes)
