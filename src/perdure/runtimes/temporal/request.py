from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from perdure.canonical import read_document
from perdure.errors import InvalidInvocation, InvalidOptions, InvalidPayload
from perdure.ids import check_identifier
from perdure.journal.invocation import Invocation, InvocationDocument
from perdure.runtimes.temporal.names import Names
from perdure.runtimes.temporal.options import (
    LARGEST_COEFFICIENT_MILLI,
    LONGEST_MS,
    MOST_ATTEMPTS,
    OperationOptions,
    thousandths,
)

Milliseconds = Annotated[int, Meta(ge=1, le=LONGEST_MS)]
Attempts = Annotated[int, Meta(ge=1, le=MOST_ATTEMPTS)]
Milli = Annotated[int, Meta(ge=1000, le=LARGEST_COEFFICIENT_MILLI)]


class _RetryDocument(msgspec.Struct, forbid_unknown_fields=True):
    initial_interval_ms: Milliseconds
    backoff_coefficient_milli: Milli
    maximum_interval_ms: Milliseconds
    maximum_attempts: Attempts


class _ActivityDocument(msgspec.Struct, forbid_unknown_fields=True):
    start_to_close_timeout_ms: Milliseconds
    schedule_to_close_timeout_ms: Milliseconds
    heartbeat_timeout_ms: Milliseconds | None
    retry: _RetryDocument

    @classmethod
    def of(cls, options: OperationOptions) -> _ActivityDocument:
        heartbeat = options.heartbeat_seconds
        return cls(
            thousandths(options.start_to_close_seconds),
            thousandths(options.schedule_to_close_seconds),
            None if heartbeat is None else thousandths(heartbeat),
            _RetryDocument(
                thousandths(options.initial_interval_seconds),
                thousandths(options.backoff_coefficient),
                thousandths(options.maximum_interval_seconds),
                options.maximum_attempts,
            ),
        )

    def options(self) -> OperationOptions:
        heartbeat = self.heartbeat_timeout_ms
        return OperationOptions(
            start_to_close_seconds=self.start_to_close_timeout_ms / 1000,
            schedule_to_close_seconds=self.schedule_to_close_timeout_ms / 1000,
            heartbeat_seconds=None if heartbeat is None else heartbeat / 1000,
            initial_interval_seconds=self.retry.initial_interval_ms / 1000,
            backoff_coefficient=self.retry.backoff_coefficient_milli / 1000,
            maximum_interval_seconds=self.retry.maximum_interval_ms / 1000,
            maximum_attempts=self.retry.maximum_attempts,
        )


class _RequestDocument(msgspec.Struct, forbid_unknown_fields=True):
    """A request as the wire spells it, in the order in which it is written."""

    version: Literal[1]
    namespace: str
    task_queue: str
    workflow_name: str
    activity_name: str
    workflow_id: str
    invocation: InvocationDocument
    activity: _ActivityDocument


_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(_RequestDocument)


class OperationRequest(msgspec.Struct, frozen=True):
    """An invocation, and where, under which names and how it is to be executed."""

    namespace: str
    task_queue: str
    names: Names
    invocation: Invocation
    options: OperationOptions = OperationOptions()

    def encode(self) -> bytes:
        """Return the wire document of a request whose invocation is valid."""
        return _encode(
            _RequestDocument(
                1,
                self.namespace,
                self.task_queue,
                self.names.workflow,
                self.names.activity,
                self.invocation.stable_key,
                InvocationDocument.of(self.invocation),
                _ActivityDocument.of(self.options),
            )
        )


def parse_request(data: bytes) -> OperationRequest:
    """Return the request of a wire document.

    Raises `InvalidPayload` for the shape, the times, the namespace, the queue, a workflow id that
    is not the stable key, or an input that is none, and `InvalidInvocation` for the identity.
    """
    document = read_document(data, _decoder, what="request", refuse=InvalidPayload)
    try:
        options = document.activity.options()
        check_identifier(document.namespace, "namespace")
        check_identifier(document.task_queue, "task queue")
    except (InvalidOptions, InvalidInvocation) as error:
        raise InvalidPayload(f"the request cannot be executed: {error}") from error
    invocation = document.invocation.invocation()
    invocation.validate()
    if document.workflow_id != invocation.stable_key:
        raise InvalidPayload(
            f"the request has the workflow id {document.workflow_id[:200]!r}, which is not the key"
            f" of its operation, {invocation.stable_key}"
        )
    names = Names(document.workflow_name, document.activity_name)
    return OperationRequest(document.namespace, document.task_queue, names, invocation, options)
