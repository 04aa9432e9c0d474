from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perdure.errors import MissingHandler, RuntimeRecordMismatch
from perdure.ids import namespaced
from perdure.journal.invocation import Invocation, OperationKind
from perdure.journal.record import Record, Success, check_outcome, success_of
from perdure.journal.runtime import Runtime


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """One run on one runtime: the handler id of each kind and the namespace of the steps.

    A kind without a handler id cannot be executed. The empty namespace adds nothing.
    """

    run_id: str
    runtime: Runtime
    handler_ids: Mapping[OperationKind, str]
    namespace: str = ""

    def with_namespace(self, namespace: str) -> Binding:
        """Return the same binding with a namespace inside the one it has.

        Raises `InvalidInvocation` when the two together are not an identifier.
        """
        return msgspec.structs.replace(self, namespace=namespaced(self.namespace, namespace))

    async def execute(
        self, kind: OperationKind, step_id: str, sequence: int, input_json: bytes
    ) -> Success:
        """Execute one operation and return its success.

        Durable when it returns: the record, as the runtime promises.
        If it raises: `MissingHandler`, `InvalidInvocation` or `InvalidPayload` (the runtime was
        not asked), `OperationFailed` or `OperationSuspended` (recorded), `RuntimeRecordMismatch`
        or an error of the record (the runtime broke its contract), or what the runtime raised.
        """
        invocation = self._invocation(kind, step_id, sequence, input_json)
        invocation.validate()
        record = await self.runtime.execute(invocation)
        _check_record(record, invocation)
        return success_of(invocation.stable_key, record.outcome)

    def _invocation(
        self, kind: OperationKind, step_id: str, sequence: int, input_json: bytes
    ) -> Invocation:
        handler_id = self.handler_ids.get(kind)
        if handler_id is None:
            known = ", ".join(sorted(self.handler_ids)) or "no kind"
            raise MissingHandler(
                f"run {self.run_id} has no handler id for {kind} (it has one for {known}): add it"
                " to the binding's handler_ids"
            )
        step_id = namespaced(self.namespace, step_id)
        return Invocation(self.run_id, step_id, sequence, kind, handler_id, input_json)


def _check_record(record: Record, invocation: Invocation) -> None:
    if record.invocation == invocation:
        check_outcome(invocation.stable_key, record.outcome)
        return
    record.validate()
    differing = ", ".join(
        name
        for name in Invocation.__struct_fields__
        if getattr(record.invocation, name) != getattr(invocation, name)
    )
    raise RuntimeRecordMismatch(
        f"the runtime answered {invocation.stable_key} with a record that differs in {differing};"
        " the key was used for something else before, or the runtime mixed up two operations"
    )
