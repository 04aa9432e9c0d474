from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perdure.context import Context
from perdure.declaration import EffectDeclaration, Reported, Verdict
from perdure.effects.support import EffectPolicy, SideEffectSupport
from perdure.errors import InvalidInvocation, InvalidPayload
from perdure.journal.binding import Binding
from perdure.journal.failures import failure_of
from perdure.journal.handlers import Handlers
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.record import Outcome, Record, Success, check_outcome
from perdure.journal.typed_worker import REFUSALS, TypedWorker
from perdure.preflight import Preflight
from perdure.terms import Terms, TermsOf

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
    `effects` says what a worker does to the world, None for one that changes nothing, or is what
    tells the terms of each of its operations. A worker that it does not name has an effect if it
    serves tool calls, MCP requests or event deliveries; deliveries are taken to be recognised by
    their key, and are sent again.
    """

    def __init__(
        self,
        context: Context,
        handlers: Handlers,
        *,
        effects: Mapping[tuple[OperationKind, str], EffectDeclaration | TermsOf | None]
        | None = None,
    ) -> None:
        self._context = context
        self._handlers = handlers
        self._effects = effects or {}

    def preflight(self, binding: Binding) -> Preflight:
        """Return what checks that this process can perform what a run will need."""
        return Preflight(binding, self._handlers)

    async def execute(self, invocation: Invocation) -> Record:
        """Return the record of an invocation of this run, calling its worker if there is none yet.

        An exception out of the worker, an outcome that is not strict JSON, and a malformed request
        or response are recorded as failures. With an effect, a `Failure` called `EffectRejected`
        or `EffectNotSent` is a refusal, as is such an exception or a malformed request; any other,
        raised or returned, leaves it ambiguous.

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
        terms = await self._terms(invocation)

        async def handler() -> Outcome | Reported:
            if isinstance(worker, TypedWorker):
                outcome = await _typed(worker, invocation)
            else:
                outcome = await worker(invocation)
            if isinstance(outcome, Reported):
                return outcome
            try:
                check_outcome(invocation.stable_key, outcome)
            except InvalidPayload as error:
                if not isinstance(outcome, Success):
                    raise
                # Whatever it did, it has done.
                return Reported(failure_of(error), Verdict.APPLIED)
            verdict = None if terms.verdict_of is None else terms.verdict_of(outcome)
            return outcome if verdict is None else Reported(outcome, verdict)

        performed = await self._context.execute(
            invocation, handler, retry=terms.retry, effect=terms.effect
        )
        return Record(invocation, performed.outcome)

    async def _terms(self, invocation: Invocation) -> Terms:
        key = (invocation.kind, invocation.handler_id)
        told = self._effects.get(key, _BY_KIND.get(invocation.kind))
        if told is None or isinstance(told, EffectDeclaration):
            return Terms(effect=told)
        # A replay asks nobody.
        return Terms() if self._context.holds(invocation) else await told(invocation)


async def _typed(worker: TypedWorker, invocation: Invocation) -> Outcome | Reported:
    """Call a worker with the request of an invocation; say what a refused document means."""
    try:
        exchange, request = worker.read(invocation)
    except REFUSALS as refusal:
        return Reported(failure_of(refusal), Verdict.NOT_SENT)
    answer = await worker.function(request)
    try:
        return worker.write(exchange, answer)
    except REFUSALS as refusal:
        # Whatever it did, it has done.
        return Reported(failure_of(refusal), Verdict.APPLIED)
