from __future__ import annotations

from typing import Final

import msgspec

from perdure.adapters.pydantic_ai.failures import raised_from
from perdure.journal.record import Failure, Outcome, Success, failed_of


class _Raised(msgspec.Struct):
    error_name: str
    type_name: str
    message: str
    retryable: bool
    data: msgspec.Raw


class _Output(msgspec.Struct):
    raised: _Raised | None = None


_encode: Final = msgspec.json.Encoder().encode
_outputs: Final = msgspec.json.Decoder(_Output)
_MEMBER: Final = b'{"raised":'


def telling(outcome: Outcome) -> Outcome:
    """Return an outcome as a record carries it to where an agent reacts to it.

    Of a failure a record has the name alone. An error of Pydantic AI, to which agents react, is
    therefore what an operation came to: another model is asked, or the same one again.
    """
    if not isinstance(outcome, Failure) or outcome.data_json is None:
        return outcome
    failed = failed_of("", outcome)
    if raised_from(failed) is failed:
        return outcome
    raised = _Raised(
        outcome.error_name,
        outcome.type_name,
        outcome.message,
        outcome.retryable,
        msgspec.Raw(outcome.data_json),
    )
    return Success(_encode(_Output(raised)))


def told(outcome: Outcome) -> Outcome:
    """Return the outcome that `telling` was given."""
    if not isinstance(outcome, Success) or not outcome.output_json.startswith(_MEMBER):
        return outcome
    try:
        raised = _outputs.decode(outcome.output_json).raised
    except msgspec.ValidationError:
        raised = None
    if raised is None:
        return outcome
    return Failure(
        raised.error_name,
        retryable=raised.retryable,
        type_name=raised.type_name,
        message=raised.message,
        data_json=bytes(raised.data),
    )
