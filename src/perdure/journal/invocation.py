from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from perdure.canonical import INPUT_LIMIT_BYTES, check_payload, encode, read_document, sha256_hex
from perdure.errors import InvalidInvocation
from perdure.ids import check_identifier, stable_key

SEQUENCE_LIMIT: Final = (1 << 64) - 1
"""The largest sequence number."""


class OperationKind(enum.StrEnum):
    """The closed set of side-effecting units; the order is the wire order."""

    MODEL_REQUEST = "model_request"
    MODEL_STREAM = "model_stream"
    TOOL_CALL = "tool_call"
    MCP_REQUEST = "mcp_request"
    EVENT_DELIVERY = "event_delivery"
    RETRY_DELAY = "retry_delay"
    APPROVAL_RESUME = "approval_resume"


class Invocation(msgspec.Struct, frozen=True):
    """A side-effecting unit: its identity plus its exact input.

    `input_json` is one complete JSON document as UTF-8 bytes, 1 byte to 2 MiB; its spelling is
    part of the identity check, so equal inputs must be written with equal bytes.
    """

    run_id: str
    step_id: str
    sequence: int
    kind: OperationKind
    handler_id: str
    input_json: bytes

    @classmethod
    def of(
        cls,
        run_id: str,
        step_id: str,
        sequence: int,
        kind: OperationKind,
        handler_id: str,
        value: object,
    ) -> Invocation:
        """Return a valid invocation whose input is a JSON value.

        Raises `InvalidInvocation` or `InvalidPayload`, in the order of `validate`.
        """
        draft = cls(run_id, step_id, sequence, kind, handler_id, b"null")
        draft.check_identity()
        invocation = msgspec.structs.replace(draft, input_json=encode(value, what="input"))
        invocation.validate()
        return invocation

    @property
    def stable_key(self) -> str:
        """The run/step/sequence key; kind, handler and input are checked against it, not in it."""
        return stable_key(self.run_id, self.step_id, self.sequence)

    @property
    def input_sha256(self) -> str:
        """The digest of the exact input bytes, lowercase hex."""
        return sha256_hex(self.input_json)

    def validate(self) -> None:
        """Check everything: the identity first (`InvalidInvocation`), then the input.

        The input is checked as a document from outside; raises `InvalidPayload`.
        """
        self.check_identity()
        check_payload(
            self.input_json,
            what=f"the input of operation {self.stable_key}",
            limit_bytes=INPUT_LIMIT_BYTES,
        )

    def check_identity(self) -> None:
        """Check the identifiers, the sequence and the kind; raise `InvalidInvocation`."""
        check_identifier(self.run_id, "run id")
        check_identifier(self.step_id, "step id")
        check_identifier(self.handler_id, "handler id")
        # A bool is an int to Python, and not to the wire.
        if type(self.sequence) is not int or not 0 <= self.sequence <= SEQUENCE_LIMIT:
            raise InvalidInvocation(
                f"the sequence {self.sequence!r} of step {self.step_id} is not a whole number from"
                f" 0 to {SEQUENCE_LIMIT}"
            )
        if type(self.kind) is not OperationKind:
            raise InvalidInvocation(
                f"the kind {self.kind!r} of step {self.step_id} is not an OperationKind"
            )


class InvocationDocument(msgspec.Struct, forbid_unknown_fields=True):
    """An invocation as the wire spells it: the input document is a string."""

    run_id: str
    step_id: str
    sequence: Annotated[int, msgspec.Meta(ge=0)]
    kind: OperationKind
    handler_id: str
    input_json: str

    def __post_init__(self) -> None:
        if self.sequence > SEQUENCE_LIMIT:
            raise ValueError(f"`sequence` is over {SEQUENCE_LIMIT}")

    @classmethod
    def of(cls, invocation: Invocation) -> InvocationDocument:
        """Return the document of a valid invocation."""
        return cls(
            invocation.run_id,
            invocation.step_id,
            invocation.sequence,
            invocation.kind,
            invocation.handler_id,
            invocation.input_json.decode(),
        )

    def invocation(self) -> Invocation:
        """Return the invocation, which is not validated yet."""
        return Invocation(
            self.run_id,
            self.step_id,
            self.sequence,
            self.kind,
            self.handler_id,
            self.input_json.encode(),
        )


_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(InvocationDocument)


def encode_invocation(invocation: Invocation) -> bytes:
    """Return the wire document of an invocation.

    Raises `InvalidInvocation` or `InvalidPayload` for one that no reader would accept.
    """
    invocation.validate()
    return _encode(InvocationDocument.of(invocation))


def parse_invocation(data: bytes) -> Invocation:
    """Return the invocation of a wire document.

    Raises `InvalidInvocation` for the shape, the identifiers or the sequence, then
    `InvalidPayload` for the input.
    """
    document = read_document(data, _decoder, what="invocation", refuse=InvalidInvocation)
    invocation = document.invocation()
    invocation.validate()
    return invocation
