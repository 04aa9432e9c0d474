from __future__ import annotations

from collections.abc import Iterable

from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.canonical import check_size
from perdure.errors import InvalidInvocation, InvalidOptions, PerdureError
from perdure.ids import check_identifier
from perdure.journal.binding import Binding, check_record
from perdure.journal.invocation import Invocation
from perdure.journal.record import Record
from perdure.preflight import Preflight
from perdure.runtimes.temporal.answer import failed
from perdure.runtimes.temporal.names import PERDURE
from perdure.runtimes.temporal.options import OperationOptions
from perdure.runtimes.temporal.payload import (
    carried_bytes,
    check_answerable,
    record_of,
)
from perdure.runtimes.temporal.registrations import Registration, Registrations
from perdure.runtimes.temporal.request import OperationRequest
from perdure.runtimes.temporal.starting import start_operation


class TemporalRuntime:
    """Executes each operation as a workflow on Temporal, wherever a worker for its queue runs.

        runtime = TemporalRuntime(client, task_queue="agents", registrations=[(TOOL, "tools")])

    `registrations` are the kinds and handler ids that the workers of the queue have functions for.
    A workflow's id is the stable key of its operation, so whoever executes it again gets the record
    of the one workflow there is, for as long as the namespace retains it. One that failed stays
    failed. Whoever stops waiting leaves the workflow as it is.

    Raises `InvalidOptions` for a queue, a namespace or registrations that cannot be used, and
    `InvalidInvocation` for a handler id that is none.
    """

    def __init__(
        self,
        client: Client,
        *,
        task_queue: str,
        registrations: Iterable[Registration],
        options: OperationOptions | None = None,
    ) -> None:
        self._client = client
        self._task_queue = task_queue
        self._options = options or OperationOptions()
        self._registrations = Registrations(registrations)
        try:
            check_identifier(task_queue, "task queue")
            check_identifier(client.namespace, "namespace")
        except InvalidInvocation as error:
            raise InvalidOptions(str(error)) from error

    def preflight(self, binding: Binding) -> Preflight:
        """Return what checks the registrations for all that a run will need; no server is asked."""
        return self._registrations.preflight(binding)

    async def execute(self, invocation: Invocation) -> Record:
        """Return the record of an invocation, and have a worker execute it if there is none yet.

        Durable when it returns: the record, in the history of the operation's workflow.
        If it raises: before anything is asked for, `InvalidInvocation`, `InvalidPayload` or
        `MissingHandler`; then `RuntimeRecordMismatch` for a key that was used for something else,
        an error of a record that is none, `KeyUnavailable`, a `StorageError` of the data
        converter's external storage, or `RuntimeFailed`.
        """
        document = self.request(invocation)
        key = invocation.stable_key
        try:
            handle = await start_operation(
                self._client,
                PERDURE.workflow,
                document,
                key=key,
                task_queue=self._task_queue,
            )
            record = record_of(await handle.result())
        except ApplicationError as error:
            # What a payload codec or an external storage raises in this process.
            raise _cause(error) from error
        except (WorkflowFailureError, RPCError, RuntimeError) as error:
            # A client that connects only now raises a RuntimeError when it cannot.
            raise failed(key, error) from error
        check_record(record, invocation)
        return record

    def request(self, invocation: Invocation) -> bytes:
        """Return the document that an operation is started with, or raise what forbids it."""
        invocation.validate()
        key = invocation.stable_key
        self._registrations.check(invocation, self._task_queue)
        options = self._options
        check_size(
            invocation.input_json,
            what=f"the input of operation {key}",
            limit_bytes=options.input_limit_bytes,
        )
        document = OperationRequest(
            self._client.namespace, self._task_queue, PERDURE, invocation, options
        ).encode()
        converter = self._client.data_converter
        check_size(
            document,
            what=f"the request for operation {key}",
            limit_bytes=carried_bytes(converter, options.request_limit_bytes),
        )
        check_answerable(invocation, carried_bytes(converter, options.record_limit_bytes))
        return document


def _cause(error: ApplicationError) -> Exception:
    return error.__cause__ if isinstance(error.__cause__, PerdureError) else error
