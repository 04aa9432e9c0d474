"""Approvals: what a run waits for a person, or a system outside, to answer."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from perdure.activity import Place
from perdure.canonical import encode, sha256_hex
from perdure.errors import InvalidPayload
from perdure.fence import Fence
from perdure.journal.invocation import Invocation


class ApprovalKind(enum.StrEnum):
    """What is asked for: whether something may be done, or what came of it elsewhere."""

    APPROVAL = "approval"
    EXTERNAL = "external"


class Approve(msgspec.Struct, frozen=True, tag="approve", tag_field="decision"):
    """It may be done; with these arguments instead of those that were shown, if not None."""

    arguments: dict[str, Any] | None = None


class Deny(msgspec.Struct, frozen=True, tag="deny", tag_field="decision"):
    """It may not be done; `message` says why, to whoever wanted to."""

    message: str = ""


class Result(msgspec.Struct, frozen=True, tag="result", tag_field="decision"):
    """What came of it elsewhere: a JSON value, or with `is_error` what went wrong."""

    value: Any = None
    is_error: bool = False


Answer: TypeAlias = Approve | Deny | Result


class Answered(msgspec.Struct, frozen=True):
    """An answer, and whose it is; None where nobody has signed it."""

    answer: Answer
    by: str | None


class Approval(msgspec.Struct, frozen=True):
    """Something that a run asked for, and what was answered.

    `item_id` names it within its run. `name` is what is to be done, such as a tool, and
    `arguments_json` with what. `open` tells whether an answer still counts: nobody has answered,
    and the run still waits. `answer` and who gave it when are None until then. Times are wall
    seconds, UTC; `expires_at` is when the run stops waiting, or None. `asked_by` is the place of
    the operation that waits.
    """

    run_id: str
    item_id: str
    kind: ApprovalKind
    name: str
    arguments_json: bytes
    asked_at: float
    expires_at: float | None
    open: bool
    answer: Answer | None = None
    answered_by: str | None = None
    answered_at: float | None = None
    asked_by: Place = ("", 0)

    @property
    def digest(self) -> str:
        """The digest of the arguments, by which an answer is bound to what was shown."""
        return sha256_hex(self.arguments_json)


class NewApproval(msgspec.Struct, frozen=True):
    """Something that a run asks for; `arguments_json` is one JSON document."""

    item_id: str
    kind: ApprovalKind
    name: str
    arguments_json: bytes
    asked_at: float


class NewAnswer(msgspec.Struct, frozen=True):
    """An answer to be written; `by` says whose, and `at` is wall seconds, UTC."""

    answer: Answer
    by: str
    at: float


class ApprovalStore(Protocol):
    """The port through which runs ask, and people answer."""

    async def begin_approval(
        self,
        fence: Fence,
        invocation: Invocation,
        input_sha256: bytes,
        wake_at: float | None,
        approval: NewApproval,
    ) -> None:
        """Write what is asked for, and that a wait for the message `answered` begins.

        Durable when it returns: both, fsynced.
        If it raises: `LeaseLost` when the fence no longer holds, or a `StorageError`; nothing was
        written.
        """
        ...

    async def read_approval(self, run_id: str, item_id: str) -> Approval | None:
        """Return what a run asked for, or None."""
        ...

    async def list_approvals(
        self, run_id: str | None = None, *, open_only: bool = True, limit: int = 100
    ) -> Sequence[Approval]:
        """Return what runs asked for, oldest first; of one run, or of any."""
        ...

    async def answer_approval(
        self, run_id: str, item_id: str, answer: NewAnswer, expect_digest: str | None = None
    ) -> Approval:
        """Write an answer unless there is one, and let the run go on; return how it stands.

        Durable when it returns: the answer, fsynced.
        If it raises: `UnknownApproval`, `AlreadyResolved` with the answer that won,
        `ApprovalClosed` when the run waits no more, `ApprovalChanged` for another digest than
        `expect_digest`, or a `StorageError`; nothing was written.
        """
        ...


ASKING: Final = "approval.resume"
"""The step of what an agent's tool calls ask for."""


class _Signed(msgspec.Struct):
    by: str | None = None


_answers: Final = msgspec.json.Decoder(Answer)
_signed: Final = msgspec.json.Decoder(_Signed)


def encode_answer(answer: Answer, by: str | None = None) -> bytes:
    """Return an answer, and whose it is, as a JSON document.

    Raises `InvalidPayload` for values that JSON has not.
    """
    value = {"decision": type(answer).__struct_config__.tag, **msgspec.structs.asdict(answer)}
    return encode(value if by is None else {**value, "by": by}, what="answer")


def decode_answer(document: bytes) -> Answer:
    """Return the answer of a JSON document that `encode_answer` wrote."""
    return _answers.decode(document)


def signer_of(document: bytes) -> str | None:
    """Return whose answer a JSON document that `encode_answer` wrote is, or None."""
    return _signed.decode(document).by


def answered(item_id: str) -> str:
    """Return the name of the message that a run awaits for something that it asked for."""
    return f"perdure:approval:{item_id}"


def check_answer(kind: ApprovalKind, answer: Answer) -> None:
    """Check that an answer is one to what is asked; raises `InvalidPayload`."""
    if kind is ApprovalKind.EXTERNAL and isinstance(answer, Approve):
        raise InvalidPayload(
            "what is done elsewhere is not approved: answer with its Result, or with Deny"
        )
    if kind is ApprovalKind.APPROVAL and isinstance(answer, Result):
        raise InvalidPayload("what needs approval has no result yet: answer with Approve or Deny")


def item_of(step_id: str, sequence: int) -> str:
    """Return the id of what is asked for at a place: the number of the call, as far as that does.

    It is a step id with its sequence, as people read and type it.
    """
    before, _, step = step_id.rpartition(ASKING)
    if step == "" and step_id.endswith(ASKING):
        return f"{before}{sequence}"
    return f"{step_id}.{sequence}"


def shown_item(run_id: str, item_id: str) -> str:
    """Return what a session calls something that one of its runs asks for."""
    return f"{run_id}:{item_id}"
