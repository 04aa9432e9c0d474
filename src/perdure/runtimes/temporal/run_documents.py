from __future__ import annotations

from typing import Annotated, Final

import msgspec
from temporalio.common import RawValue

from perdure.engine.dispatch import Rested
from perdure.errors import InvalidPayload
from perdure.runtimes.temporal.address import MOST_HEARTBEAT_SECONDS
from perdure.runtimes.temporal.payload import document_of, document_value

WORKFLOW: Final = "perdure.run.v1"
ACTIVITY: Final = "perdure.drive.v1"
WAKE: Final = "perdure.wake.v1"


class RunRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the workflow of a run is started with, and its activity.

    `heartbeat_seconds` is how long a worker may be silent until another one gets the run.
    `searchable` says that the namespace has the search attributes of runs, and `cancel` that the
    end of the run was asked for.
    """

    run_id: str
    function: str
    heartbeat_seconds: Annotated[float, msgspec.Meta(gt=0, le=MOST_HEARTBEAT_SECONDS)]
    searchable: bool = False
    cancel: bool = False


_encode: Final = msgspec.json.Encoder().encode
_request: Final = msgspec.json.Decoder(RunRequest)
_rested: Final = msgspec.json.Decoder(Rested)


def request_value(request: RunRequest) -> RawValue:
    """Return a request as Temporal carries it."""
    return document_value(_encode(request))


def request_of(value: RawValue) -> RunRequest:
    """Return the request that was carried; raises `InvalidPayload` for anything else."""
    try:
        return _request.decode(document_of(value))
    except msgspec.DecodeError as error:
        raise InvalidPayload(f"this is no request for a run: {error}") from error


def rested_value(rested: Rested) -> RawValue:
    """Return how a run stands as Temporal carries it."""
    return document_value(_encode(rested))


def rested_of(value: RawValue) -> Rested:
    """Return how a run stands as it was carried; raises `InvalidPayload` for anything else."""
    try:
        return _rested.decode(document_of(value))
    except msgspec.DecodeError as error:
        raise InvalidPayload(f"this does not say how a run stands: {error}") from error
