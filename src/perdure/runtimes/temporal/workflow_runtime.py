from __future__ import annotations

import asyncio
from collections.abc import Iterable

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.canonical import check_size
from perdure.errors import DuplicateOperation
from perdure.journal.binding import Binding, check_record
from perdure.journal.invocation import Invocation
from perdure.journal.record import Record
from perdure.preflight import Preflight
from perdure.runtimes.temporal.activity import have_performed
from perdure.runtimes.temporal.answer import failed
from perdure.runtimes.temporal.names import PERDURE
from perdure.runtimes.temporal.options import OperationOptions
from perdure.runtimes.temporal.payload import (
    PAYLOAD_LIMIT_BYTES,
    check_answerable,
    record_of,
)
from perdure.runtimes.temporal.registrations import Registration, Registrations


class WorkflowRuntime:
    """Executes operations as activities of the workflow that it was made in.

    An activity's id is the stable key of its operation. The workflow's history is the journal: on
    replay it gives back each record, and calls nothing. A record is kept for as long as the runtime
    is, so that a key is executed once: use one runtime in a workflow.
    """

    def __init__(
        self,
        options: OperationOptions,
        task_queue: str | None,
        registrations: Registrations | None,
        *,
        external_storage: bool,
    ) -> None:
        self._options = options
        self._task_queue = task_queue
        self._registrations = registrations
        # Code of a workflow cannot tell whether there is one.
        limit = options.record_limit_bytes
        self._limit_bytes = limit if external_storage else min(limit, PAYLOAD_LIMIT_BYTES)
        self._records: dict[str, Record] = {}
        self._under_way: set[str] = set()

    def preflight(self, binding: Binding) -> Preflight:
        """Return what checks a binding for all that a run will need, and the registrations if any.

        It asks nobody, and so comes to the same on replay.
        """
        known = self._registrations
        return Preflight(binding) if known is None else known.preflight(binding)

    async def execute(self, invocation: Invocation) -> Record:
        """Return the record of an invocation, and have a worker execute it if there is none yet.

        Where the workflow is cancelled meanwhile, the activity is, and once it has ended
        `CancelledError` is raised; it learns of that through heartbeats alone.

        Durable when it returns: the record, in the history of the workflow.
        If it raises: before anything is scheduled, `InvalidInvocation`, `InvalidPayload`,
        `MissingHandler` for what is not among the registrations, `DuplicateOperation` while the
        same key is under way, or `RuntimeRecordMismatch` for a key that was used for something
        else; then an error of a record that is none, or `RuntimeFailed`.
        """
        invocation.validate()
        key = invocation.stable_key
        if key in self._under_way:
            raise DuplicateOperation(
                f"operation {key} is under way already: give each operation a sequence of its own"
            )
        record = self._records.get(key)
        if record is None:
            self._check(invocation)
            self._under_way.add(key)
            try:
                record = await self._performed(invocation)
            finally:
                self._under_way.discard(key)
        check_record(record, invocation)
        return record

    def _check(self, invocation: Invocation) -> None:
        if self._registrations is not None:
            queue = self._task_queue or workflow.info().task_queue
            self._registrations.check(invocation, queue)
        check_size(
            invocation.input_json,
            what=f"the input of operation {invocation.stable_key}",
            limit_bytes=self._options.input_limit_bytes,
        )
        check_answerable(invocation, self._limit_bytes)

    async def _performed(self, invocation: Invocation) -> Record:
        task = asyncio.current_task()
        cancellations = 0 if task is None else task.cancelling()
        try:
            value = await have_performed(
                PERDURE, invocation, self._options, task_queue=self._task_queue
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise failed(invocation.stable_key, error) from error
        record = record_of(value)
        check_record(record, invocation)
        self._records[invocation.stable_key] = record
        if task is not None and task.cancelling() > cancellations:
            # The activity came to its end all the same; whoever was cancelled does not go on.
            raise asyncio.CancelledError
        return record


def workflow_runtime(
    options: OperationOptions | None = None,
    *,
    task_queue: str | None = None,
    registrations: Iterable[Registration] | None = None,
    external_storage: bool = False,
) -> WorkflowRuntime:
    """Return the runtime of a workflow, to be called in its code.

    Its operations go to the workers of `task_queue`, None for the queue of the workflow.
    `registrations` are the kinds and handler ids that these have functions for, None for any.
    `external_storage` says that the data converter of the workers has one, and so carries inputs
    of which Temporal would not carry the record.
    """
    known = None if registrations is None else Registrations(registrations)
    return WorkflowRuntime(
        options or OperationOptions(), task_queue, known, external_storage=external_storage
    )
