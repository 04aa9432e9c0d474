from __future__ import annotations

import enum
from typing import Any, Final

from perdure.errors import (
    InvalidApprovalRequest,
    InvalidApprovalResponse,
    InvalidDeferredState,
    InvalidPayload,
    UnsupportedApprovalWireVersion,
)
from perdure.journal.payloads.bounds import RESUME_DECISIONS
from perdure.journal.payloads.envelope import Envelope
from perdure.journal.payloads.event import check_object
from perdure.journal.payloads.exact import Exact
from perdure.journal.payloads.tool import ToolCall, call_member


class Execution(enum.StrEnum):
    """When a call may be executed, and by whom."""

    IMMEDIATE = "immediate"
    REQUIRES_APPROVAL = "requires_approval"
    EXTERNAL = "external"


class DecisionAction(enum.StrEnum):
    """What is decided about a call: it is executed, or not, or this is its result."""

    APPROVE = "approve"
    DENY = "deny"
    RESULT = "result"


class Decision(Exact, frozen=True):
    """What is decided about one call; `content` says why, or is the result."""

    call_id: str
    action: DecisionAction
    content: str | None = None
    is_error: bool = False


class ApprovalRequest(Exact, frozen=True, kw_only=True):
    """The input of an approval: a call that waits, and the decision that is proposed for it.

    `arguments_json` is a JSON object as text, what the tool would be called with; the call has the
    arguments as the model wrote them.
    """

    call: ToolCall
    execution: Execution
    arguments_json: str
    proposed: Decision


class ApprovalResponse(Exact, frozen=True):
    """The output of an approval: the decision that holds."""

    decision: Decision


class ResumeDecisions(Exact, frozen=True):
    """What a paused run is resumed with."""

    decisions: tuple[Decision, ...]


def _request(*, bare_details: bool) -> Envelope[ApprovalRequest]:
    return Envelope(
        ApprovalRequest,
        "the approval request",
        InvalidApprovalRequest,
        UnsupportedApprovalWireVersion,
        members={"call": call_member(bare_details=bare_details)},
    )


_REQUEST: Final = _request(bare_details=True)
_WRAPPED_REQUEST: Final = _request(bare_details=False)
_RESPONSE: Final = Envelope(
    ApprovalResponse,
    "the approval response",
    InvalidApprovalResponse,
    UnsupportedApprovalWireVersion,
)
_DECISIONS: Final = Envelope(
    ResumeDecisions,
    "the decisions to resume with",
    InvalidDeferredState,
    InvalidDeferredState,
    bounds=RESUME_DECISIONS,
    version_default=1,
)


def encode_approval_request(request: ApprovalRequest) -> bytes:
    """Return the document of an approval; raise `InvalidApprovalRequest`."""
    _check(request)
    return _REQUEST.encode(request)


def parse_approval_request(data: bytes, *, bare_details: bool = True) -> ApprovalRequest:
    """Return the approval of a document.

    The details of a provider are read in both spellings, and only wrapped in `{"value": …}`
    without `bare_details`. Raises `InvalidApprovalRequest` or `UnsupportedApprovalWireVersion`.
    """
    request = (_REQUEST if bare_details else _WRAPPED_REQUEST).parse(data)
    _check(request)
    return request


def encode_approval_response(response: ApprovalResponse) -> bytes:
    """Return the document of a decision; raise `InvalidApprovalResponse`."""
    _check_decision(response)
    return _RESPONSE.encode(response)


def parse_approval_response(data: bytes) -> ApprovalResponse:
    """Return the decision of a document.

    Raises `InvalidApprovalResponse` or `UnsupportedApprovalWireVersion`.
    """
    response = _RESPONSE.parse(data)
    _check_decision(response)
    return response


def encode_resume_decisions(decisions: ResumeDecisions) -> bytes:
    """Return the document of decisions; raise `InvalidDeferredState`."""
    return _DECISIONS.encode(decisions)


def parse_resume_decisions(data: bytes) -> ResumeDecisions:
    """Return the decisions of a document; raise `InvalidDeferredState`."""
    return _DECISIONS.parse(data)


def _check(request: ApprovalRequest) -> None:
    call = request.call
    rules: dict[str, Any] = {
        "its call has no id or no name": not call.id or not call.name,
        "its call is executed at once": request.execution is Execution.IMMEDIATE,
        "it proposes a decision about another call": request.proposed.call_id != call.id,
    }
    for rule, broken in rules.items():
        if broken:
            raise InvalidApprovalRequest(f"the approval request is refused: {rule}")
    try:
        check_object(request.arguments_json, what="the arguments of the approval request")
    except InvalidPayload as error:
        raise InvalidApprovalRequest(str(error)) from error


def _check_decision(response: ApprovalResponse) -> None:
    if not response.decision.call_id:
        raise InvalidApprovalResponse("the decision of the approval response names no call")
