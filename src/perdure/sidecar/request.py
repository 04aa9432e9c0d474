from __future__ import annotations

import msgspec

from perdure.errors import InvalidInvocation, InvalidPayload
from perdure.journal.invocation import OperationKind
from perdure.runtimes.temporal.names import PERDURE, ZIGAI
from perdure.runtimes.temporal.options import OperationOptions
from perdure.runtimes.temporal.request import OperationRequest, parse_request
from perdure.sidecar.config import Limits


class InvalidRequest(Exception):
    """What is wrong with a request, for whoever sent it."""


class Deployment(msgspec.Struct, frozen=True):
    """What a sidecar serves; a request for anything else is refused."""

    namespace: str
    task_queue: str
    handlers: frozenset[tuple[OperationKind, str]]
    limits: Limits = Limits()


def admit(body: bytes, deployment: Deployment) -> OperationRequest:
    """Return what a body asks for, if it is served here. Raises `InvalidRequest`."""
    try:
        request = parse_request(body)
    except (InvalidInvocation, InvalidPayload) as error:
        raise InvalidRequest(str(error)) from error
    if request.namespace != deployment.namespace:
        raise InvalidRequest("the request is for another namespace than this sidecar serves")
    if request.task_queue != deployment.task_queue:
        raise InvalidRequest("the request is for another task_queue than this sidecar serves")
    if request.names not in {PERDURE, ZIGAI}:
        known = " or ".join(f"{names.workflow} and {names.activity}" for names in (PERDURE, ZIGAI))
        raise InvalidRequest(f"workflow_name and activity_name are {known}")
    invocation = request.invocation
    if (invocation.kind, invocation.handler_id) not in deployment.handlers:
        raise InvalidRequest(
            f"no {invocation.kind} handler {invocation.handler_id!r} is registered on this sidecar"
        )
    if len(invocation.input_json) > deployment.limits.input_bytes:
        raise InvalidRequest(f"an input is {deployment.limits.input_bytes} bytes at most")
    _check_terms(request.options, deployment.limits)
    return request


def _check_terms(options: OperationOptions, limits: Limits) -> None:
    for name, value, most in (
        (
            "start_to_close_timeout_ms",
            options.start_to_close_seconds * 1000,
            limits.start_to_close_seconds * 1000,
        ),
        (
            "schedule_to_close_timeout_ms",
            options.schedule_to_close_seconds * 1000,
            limits.schedule_to_close_seconds * 1000,
        ),
        (
            "maximum_interval_ms",
            options.maximum_interval_seconds * 1000,
            limits.schedule_to_close_seconds * 1000,
        ),
        ("maximum_attempts", options.maximum_attempts, limits.maximum_attempts),
    ):
        if value > most:
            raise InvalidRequest(f"{name} is {most:.0f} at most on this sidecar")
