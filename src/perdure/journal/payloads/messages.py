from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import force_setattr

from perdure.errors import InvalidPayload
from perdure.journal.payloads.exact import I64
from perdure.journal.payloads.media import Metadata, object_of
from perdure.journal.payloads.parts import RequestPart, Speaker, SpeechPart
from perdure.journal.payloads.response_parts import ResponsePart
from perdure.journal.payloads.usage import RequestUsage


class RequestState(enum.StrEnum):
    """Whether a request was said to its end."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"


class ResponseState(enum.StrEnum):
    """Whether a response came to its end."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    SUSPENDED = "suspended"
    INTERRUPTED = "interrupted"


class FinishKind(enum.StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    INCOMPLETE_TOOL_CALL = "incomplete_tool_call"
    OTHER = "other"


class FinishReason(msgspec.Struct, frozen=True):
    """Why a model stopped, and what the provider called it."""

    kind: FinishKind
    raw: str


class InstructionPart(msgspec.Struct, frozen=True):
    """A piece of the instructions, and whether it was made for this request."""

    content: str
    dynamic: bool = False


class RequestMessage(
    msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="kind", tag="request"
):
    """What a model was asked; what is `UNSET` or an empty list is left out of the document.

    `parts` is always written. Raises `InvalidPayload` for speech of an assistant.
    """

    parts: tuple[RequestPart, ...]
    timestamp_unix_ms: I64 | UnsetType = UNSET
    instruction_parts: tuple[InstructionPart, ...] = ()
    instructions: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    conversation_id: str | UnsetType = UNSET
    metadata: tuple[Metadata, ...] = ()
    state: RequestState = RequestState.COMPLETE

    def __post_init__(self) -> None:
        _check_speakers(self.parts, Speaker.USER)


class ResponseMessage(
    msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="kind", tag="response"
):
    """What a model answered; what is `UNSET` or an empty list is left out of the document.

    `parts` is always written; a usage that says nothing is dropped. Raises `InvalidPayload` for
    speech of a user, and for details of a provider that are no object.
    """

    parts: tuple[ResponsePart, ...]
    usage: RequestUsage | UnsetType = UNSET
    timestamp_unix_ms: I64 | UnsetType = UNSET
    provider_name: str | UnsetType = UNSET
    provider_url: str | UnsetType = UNSET
    provider_details: Raw | UnsetType = UNSET
    provider_response_id: str | UnsetType = UNSET
    model_name: str | UnsetType = UNSET
    finish_reason: FinishReason | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    conversation_id: str | UnsetType = UNSET
    metadata: tuple[Metadata, ...] = ()
    state: ResponseState = ResponseState.COMPLETE

    def __post_init__(self) -> None:
        _check_speakers(self.parts, Speaker.ASSISTANT)
        if self.provider_details is not UNSET:
            force_setattr(self, "provider_details", object_of(self.provider_details))
        if self.usage is not UNSET and not self.usage.says_something():
            force_setattr(self, "usage", UNSET)


Message: TypeAlias = RequestMessage | ResponseMessage


def _check_speakers(parts: tuple[RequestPart | ResponsePart, ...], speaker: Speaker) -> None:
    for part in parts:
        if isinstance(part, SpeechPart) and part.speaker is not speaker:
            raise InvalidPayload(f"speech of the {part.speaker} stands where the {speaker} speaks")
