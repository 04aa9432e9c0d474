from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perdure.context import Context
from perdure.declaration import EffectDeclaration, Reported, Verdict
from perdure.effects.support import EffectPolicy, SideEffectSupport
from perdure.errors import InvalidInvocation, InvalidPayload
from perdure.journal.failures import failure_of
from perdure.journal.handlers import Handlers
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.record import Outcome, Record, Success, check_outcome

_BY_KIND: Final = {
    OperationKind.TOOL_CALL: EffectDeclaration(),
    OperationKind.MCP_REQUEST: EffectDeclaration(),
    OperationKind.EVENT_DELIVERY: EffectDeclaration(
        policy=EffectPolicy(support=SideEffectSupport.IDEMPOTENT)
    ),
}
"""What operations do to the world when nobody said otherwise. Other kinds change nothing."""


class EmbeddedRuntime:
    """Executes operations inside a run of the embedded engine, in this process.

    Worker functions are chosen by kind and handler id; their records go to the run's journal.
    `effects` says what a worker does to the world, None for one that changes nothing. A worker
    that it does not name has an effect if it serves tool calls, MCP requests or event deliveries;
    deliveries are taken to be recognised by their key, and are sent again.
    """

    def __init__(
        self,
        context: Context,
        handlers: Handlers,
        *,
        effects: Mapping[tuple[OperationKind, str], EffectDeclaration | None] | None = None,
    ) -> None:
        self._context = context
        self._handlers = handlers
        self._effects = effects or {}

    async def execute(self, invocation: Invocation) -> Record:
        """Return the record of an invocation of this run, calling its worker if there is none yet.

        An exception out of the worker, or an outcome that is not strict JSON, is recorded as a
        failure. With an effect, a `Failure` called `EffectRejected` or `EffectNotSent` is a
        refusal, as is such an exception; any other, raised or returned, leaves it ambiguous.

        Durable when it returns: the record, fsynced, and with it the receipt of an effect.
        If it raises: `MissingHandler`, `InvalidInvocation` or `InvalidPayload` before anything is
        called, or as `Performer.perform`.
        """
        invocation.validate()
        if invocation.run_id != self._context.run_id:
            raise InvalidInvocation(
                f"operation {invocation.stable_key} belongs to another run than this one,"
                f" {self._context.run_id}: bind the runtime of its own run"
            )
        worker = self._handlers.lookup(invocation.kind, invocation.handler_id)

        async def handler() -> Outcome | Reported:
            outcome = await worker(invocation)
            try:
                check_outcome(invocation.stable_key, outcome)
            except InvalidPayload as error:
                if not isinstance(outcome, Success):
                    raise
                # Whatever it did, it has done.
                return Reported(failure_of(error), Verdict.APPLIED)
            return outcome

        key = (invocation.kind, invocation.handler_id)
        effect = self._effects.get(key, _BY_KIND.get(invocation.kind))
        performed = await self._context.execute(invocation, handler, effect=effect)
        return Record(invocation, performed.outcome)
