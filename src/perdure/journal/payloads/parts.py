from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import force_setattr

from perdure.journal.payloads.content import UserContent
from perdure.journal.payloads.exact import I64, U63
from perdure.journal.payloads.media import Audio, Media, Metadata, kind_of, settle_provider


class Outcome(enum.StrEnum):
    """How a tool call ended."""

    SUCCESS = "success"
    FAILED = "failed"
    DENIED = "denied"
    INTERRUPTED = "interrupted"


class ToolKind(enum.StrEnum):
    """The tools whose payload is known to everybody."""

    TOOL_SEARCH = "tool_search"
    CAPABILITY_LOAD = "capability_load"


class Speaker(enum.StrEnum):
    """Who spoke."""

    USER = "user"
    ASSISTANT = "assistant"


class Part(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="part_kind"):
    """A part of a message; what is `UNSET` or an empty list is left out of the document.

    Raises `InvalidPayload` for what no reader accepts.
    """

    def __post_init__(self) -> None:
        settle_provider(self)


def success() -> Outcome:
    """Return the outcome of what says none."""
    # From a factory, for a plain default would be left out, and an outcome is always written.
    return Outcome.SUCCESS


class SystemPromptPart(Part, frozen=True, tag="system-prompt"):
    """Instructions of the application."""

    content: str
    timestamp_unix_ms: I64 | UnsetType = UNSET
    dynamic_ref: str | UnsetType = UNSET


class UserPromptPart(Part, frozen=True, tag="user-prompt"):
    """What a person says."""

    content: UserContent
    timestamp_unix_ms: I64 | UnsetType = UNSET


class SpeechPart(Part, frozen=True, tag="speech"):
    """Something spoken; its audio is of kind `audio`, whatever was said."""

    speaker: Speaker
    transcript: str | UnsetType = UNSET
    audio: Media | UnsetType = UNSET
    interrupted_at_ms: U63 | UnsetType = UNSET
    id: str | UnsetType = UNSET
    provider_name: str | UnsetType = UNSET
    provider_details: Raw | UnsetType = UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.audio is not UNSET:
            force_setattr(self, "audio", self.audio.as_kind(Audio))


class DiscoveredTool(msgspec.Struct, frozen=True):
    """A tool that a search found."""

    name: str


class SearchReturn(Part, frozen=True):
    """What a search for tools found."""

    tool_call_id: str
    discovered_tools: tuple[DiscoveredTool, ...]
    message: str | UnsetType = UNSET
    metadata: tuple[Metadata, ...] = ()
    timestamp_unix_ms: I64 | UnsetType = UNSET
    outcome: Outcome = msgspec.field(default_factory=success)
    id: str | UnsetType = UNSET
    provider_name: str | UnsetType = UNSET
    provider_details: Raw | UnsetType = UNSET


class ToolSearchReturnPart(SearchReturn, frozen=True, tag="tool-search-return"):
    """What a search for tools found."""


class CapabilityLoadReturnPart(Part, frozen=True, tag="capability-load-return"):
    """What came of loading a capability."""

    tool_call_id: str
    instructions: str | UnsetType = UNSET
    metadata: tuple[Metadata, ...] = ()
    timestamp_unix_ms: I64 | UnsetType = UNSET
    outcome: Outcome = msgspec.field(default_factory=success)


class ToolReturn(Part, frozen=True):
    """The result of a call; each file is of the kind that its media type says."""

    tool_call_id: str
    tool_name: str
    content: str
    files: tuple[Media, ...] = ()
    tool_kind: ToolKind | UnsetType = UNSET
    metadata: tuple[Metadata, ...] = ()
    timestamp_unix_ms: I64 | UnsetType = UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.files:
            files = tuple(file.as_kind(kind_of(file.media_type)) for file in self.files)
            force_setattr(self, "files", files)


class ToolReturnPart(ToolReturn, frozen=True, tag="tool-return"):
    """The result of a tool.

    `outcome` is set to success unless it is said, or to failed by `is_error`, which only older
    writers wrote and which is never kept.
    """

    outcome: Outcome | UnsetType = UNSET
    is_error: bool | UnsetType = UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outcome is UNSET:
            failed = self.is_error is True
            force_setattr(self, "outcome", Outcome.FAILED if failed else Outcome.SUCCESS)
        force_setattr(self, "is_error", UNSET)


class RetryPromptPart(Part, frozen=True, tag="retry-prompt"):
    """A request to try again, for all or for one call."""

    content: str
    tool_name: str | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    timestamp_unix_ms: I64 | UnsetType = UNSET


class ToolAvailabilityPart(Part, frozen=True, tag="tool-availability-delta"):
    """The tools that became available."""

    tools_added: tuple[str, ...]
    tool_call_id: str | UnsetType = UNSET


RequestPart: TypeAlias = (
    SystemPromptPart
    | UserPromptPart
    | SpeechPart
    | ToolSearchReturnPart
    | CapabilityLoadReturnPart
    | ToolReturnPart
    | RetryPromptPart
    | ToolAvailabilityPart
)
