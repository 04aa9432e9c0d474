from perdure.journal.binding import Binding
from perdure.journal.handlers import Handlers
from perdure.journal.invocation import (
    Invocation,
    OperationKind,
    encode_invocation,
    parse_invocation,
)
from perdure.journal.record import (
    Failure,
    Outcome,
    Record,
    Success,
    Suspended,
    SuspensionReason,
    encode_record,
    parse_record,
)
from perdure.journal.runtime import Runtime

__all__ = [
    "Binding",
    "Failure",
    "Handlers",
    "Invocation",
    "OperationKind",
    "Outcome",
    "Record",
    "Runtime",
    "Success",
    "Suspended",
    "SuspensionReason",
    "encode_invocation",
    "encode_record",
    "parse_invocation",
    "parse_record",
]
