from __future__ import annotations

from perdure.context import Context
from perdure.errors import InvalidInvocation
from perdure.journal.handlers import Handlers
from perdure.journal.invocation import Invocation
from perdure.journal.record import Outcome, Record, check_outcome


class EmbeddedRuntime:
    """Executes operations inside a run of the embedded engine, in this process.

    Worker functions are chosen by kind and handler id; their records go to the run's journal.
    """

    def __init__(self, context: Context, handlers: Handlers) -> None:
        self._context = context
        self._handlers = handlers

    async def execute(self, invocation: Invocation) -> Record:
        """Return the record of an invocation of this run, calling its worker if there is none yet.

        An exception out of the worker, or an outcome that is not strict JSON, is recorded as a
        failure.

        Durable when it returns: the record, fsynced.
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

        async def handler() -> Outcome:
            outcome = await worker(invocation)
            check_outcome(invocation.stable_key, outcome)
            return outcome

        performed = await self._context.execute(invocation, handler)
        return Record(invocation, performed.outcome)
