from __future__ import annotations

import enum

import msgspec

from perdure.journal.payloads.exact import U63, U64, Exact


class CostSource(enum.StrEnum):
    """Who said what a request cost."""

    PROVIDER = "provider"
    PRICE_TABLE = "price_table"
    MIXED = "mixed"


class RequestDetail(msgspec.Struct, frozen=True):
    """A counter of a provider that has no member of its own."""

    name: str
    value: U63


class RequestCost(msgspec.Struct, frozen=True):
    """What a request cost, in billionths of a US dollar."""

    nano_usd: U63


class RequestUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one model request used; input and output count their cached and audio parts too."""

    input_tokens: U63
    cache_write_tokens: U63 = 0
    cache_read_tokens: U63 = 0
    output_tokens: U63
    reasoning_tokens: U63 = 0
    input_audio_tokens: U63 = 0
    cache_audio_read_tokens: U63 = 0
    output_audio_tokens: U63 = 0
    details: tuple[RequestDetail, ...] = ()
    cost: RequestCost | None = None
    cost_source: CostSource | None = None
    cost_table_version: str | None = None
    duration_ms: U63 | None = None

    def says_something(self) -> bool:
        """Tell whether there is anything to write; where a cost comes from is not enough."""
        counters = (getattr(self, name) for name in self.__struct_fields__ if "_tokens" in name)
        known = self.cost is not None or self.duration_ms is not None
        return known or bool(self.details) or any(counters)


class RunDetail(Exact, frozen=True):
    """A counter of a provider, summed up over a run."""

    name: str
    value: U64


class RunCost(Exact, frozen=True):
    """What a run cost so far, in billionths of a US dollar."""

    nano_usd: U64


class RunUsage(Exact, frozen=True, kw_only=True):
    """What a run used so far."""

    input_tokens: U64 = 0
    cache_write_tokens: U64 = 0
    cache_read_tokens: U64 = 0
    output_tokens: U64 = 0
    reasoning_tokens: U64 = 0
    input_audio_tokens: U64 = 0
    cache_audio_read_tokens: U64 = 0
    output_audio_tokens: U64 = 0
    details: tuple[RunDetail, ...] = ()
    cost: RunCost | None = None
    cost_source: CostSource | None = None
    cost_table_version: str | None = None
    requests: U64 = 0
    tool_calls: U64 = 0
    request_duration_ms: U64 = 0
    run_duration_ms: U64 = 0
