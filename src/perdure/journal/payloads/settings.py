from __future__ import annotations

import enum

from msgspec import UNSET, UnsetType

from perdure.journal.payloads.exact import I64, U32, U64, Byte, Empty, Exact, OneOf
from perdure.journal.payloads.header import Header


class ReasoningEffort(enum.StrEnum):
    """How long a model is to think."""

    NONE = "none"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"
    MAX = "max"


class ServiceTier(enum.StrEnum):
    """How soon a provider is to answer."""

    AUTO = "auto"
    DEFAULT = "default"
    FLEX = "flex"
    PRIORITY = "priority"


class Truncation(enum.StrEnum):
    """Whether a provider may leave out some of the input."""

    AUTO = "auto"
    DISABLED = "disabled"


class Logprobs(Exact, frozen=True):
    """The model says how likely each token was, and its `top` alternatives."""

    top: Byte = 0


class ToolChoice(OneOf, frozen=True, kw_only=True):
    """Which tools a model may call, or has to."""

    auto: Empty | UnsetType = UNSET
    none: Empty | UnsetType = UNSET
    required: Empty | UnsetType = UNSET
    tool: str | UnsetType = UNSET
    allowed: tuple[str, ...] | UnsetType = UNSET


class ExtraBody(OneOf, frozen=True, kw_only=True):
    """A JSON object, as text, that one provider takes into its request."""

    openai: str | UnsetType = UNSET
    xai: str | UnsetType = UNSET
    openai_compatible: str | UnsetType = UNSET
    anthropic: str | UnsetType = UNSET
    bedrock: str | UnsetType = UNSET
    google: str | UnsetType = UNSET
    mistral: str | UnsetType = UNSET
    cohere: str | UnsetType = UNSET
    openrouter: str | UnsetType = UNSET
    snowflake: str | UnsetType = UNSET
    zai: str | UnsetType = UNSET


class Settings(Exact, frozen=True, kw_only=True):
    """How a model is to answer; None leaves it to the provider.

    Ranges are the provider's business: a document carries any number of its type.
    """

    temperature: float | None = None
    max_tokens: U64 | None = None
    stop_sequences: tuple[str, ...] | None = None
    seed: I64 | None = None
    reasoning_effort: ReasoningEffort | None = None
    top_p: float | None = None
    top_k: U32 | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logprobs: Logprobs | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    thinking_budget_tokens: U64 | None = None
    service_tier: ServiceTier | None = None
    truncation: Truncation | None = None
    extra_headers: tuple[Header, ...] | None = None
    extra_body: ExtraBody | None = None
