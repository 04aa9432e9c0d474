from __future__ import annotations

import msgspec

from perdure.canonical import RECORD_LIMIT_BYTES
from perdure.errors import OperationFailed
from perdure.ids import error_name_of
from perdure.journal.record import Failure, Outcome
from perdure.journal.store import pack_outcome
from perdure.wording import printable, text_of

_ENVELOPE_BYTES = 1024


def failure_of(error: BaseException) -> Failure:
    """Return the failure that an exception out of a handler is journalled as.

    An `OperationFailed` is kept as it is, so that a failure rebuilt by an adapter, or one of a
    nested operation, does not change its name on the way up.
    """
    if isinstance(error, OperationFailed):
        data = None if error.data is None else msgspec.json.encode(error.data)
        message = printable(error.message)
        return Failure(error.code, error.retryable, error.type_name, message, data)
    kind = type(error)
    return Failure(error_name_of(kind), type_name=_qualified(kind), message=text_of(error))


def bounded(outcome: Outcome, input_bytes: int) -> Outcome:
    """Turn an outcome that no record can hold into the failure that says so."""
    size = len(pack_outcome(outcome)[1])
    if size + input_bytes + _ENVELOPE_BYTES <= RECORD_LIMIT_BYTES:
        return outcome
    return Failure(
        "InvalidPayload",
        type_name="perdure.errors.InvalidPayload",
        message=f"the outcome has {size} bytes, and a record holds {RECORD_LIMIT_BYTES} with its"
        " input: store large data elsewhere and return a reference to it",
    )


def _qualified(kind: type[BaseException]) -> str:
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return printable(f"{kind.__module__}.{kind.__qualname__}")
