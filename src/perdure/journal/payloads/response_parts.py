from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from perdure.journal.payloads.media import AnyMedia, Metadata
from perdure.journal.payloads.parts import (
    Outcome,
    Part,
    SearchReturn,
    SpeechPart,
    ToolKind,
    ToolReturn,
    success,
)


class TextPart(Part, frozen=True, tag="text"):
    """What a model says."""

    content: str
    id: str | UnsetType = UNSET
    provider_name: str | UnsetType = UNSET
    provider_details: Raw | UnsetType = UNSET


class ThinkingPart(Part, frozen=True, tag="thinking"):
    """What a model thinks."""

    content: str
    signature: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    provider_name: str | UnsetType = UNSET
    provider_details: Raw | UnsetType = UNSET
    metadata: tuple[Metadata, ...] = ()


class _Call(Part, frozen=True):
    tool_call_id: str
    tool_name: str
    args: str
    tool_kind: ToolKind | UnsetType = UNSET
    id: str | UnsetType = UNSET
    provider_name: str | UnsetType = UNSET
    provider_details: Raw | UnsetType = UNSET


class ToolCallPart(_Call, frozen=True, tag="tool-call"):
    """A call of a tool; `args` is text that the model meant as JSON."""

    thought_signature: str | UnsetType = UNSET


class BuiltinToolCallPart(_Call, frozen=True, tag="builtin-tool-call"):
    """A call of a provider's own tool."""


class _SearchCall(Part, frozen=True):
    tool_call_id: str
    queries: tuple[str, ...]
    id: str | UnsetType = UNSET
    provider_name: str | UnsetType = UNSET
    provider_details: Raw | UnsetType = UNSET


class ToolSearchCallPart(_SearchCall, frozen=True, tag="tool-search-call"):
    """A search for tools."""


class BuiltinToolSearchCallPart(_SearchCall, frozen=True, tag="builtin-tool-search-call"):
    """A provider's own search for tools."""


class CapabilityLoadCallPart(Part, frozen=True, tag="capability-load-call"):
    """A call that loads a capability."""

    tool_call_id: str
    capability_id: str


class CompactionPart(Part, frozen=True, tag="compaction"):
    """What a provider made of the conversation before it."""

    content: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    provider_name: str | UnsetType = UNSET
    provider_details: Raw | UnsetType = UNSET


class FilePart(Part, frozen=True, tag="file"):
    """A file that a model made."""

    content: AnyMedia


class BuiltinToolSearchReturnPart(SearchReturn, frozen=True, tag="builtin-tool-search-return"):
    """What a provider's own search for tools found."""


class BuiltinToolReturnPart(ToolReturn, frozen=True, tag="builtin-tool-return"):
    """The result of a provider's own tool."""

    outcome: Outcome = msgspec.field(default_factory=success)
    id: str | UnsetType = UNSET
    provider_name: str | UnsetType = UNSET
    provider_details: Raw | UnsetType = UNSET


ResponsePart: TypeAlias = (
    TextPart
    | ThinkingPart
    | ToolCallPart
    | ToolSearchCallPart
    | BuiltinToolSearchCallPart
    | CapabilityLoadCallPart
    | BuiltinToolCallPart
    | BuiltinToolSearchReturnPart
    | BuiltinToolReturnPart
    | CompactionPart
    | FilePart
    | SpeechPart
)
