from __future__ import annotations

from msgspec import UNSET, UnsetType

from perdure.journal.payloads.exact import U32, Empty, Exact, OneOf
from perdure.journal.payloads.header import Header

Texts = tuple[str, ...]


class WebSearch(Exact, frozen=True, kw_only=True):
    """The provider searches the web."""

    allowed_domains: Texts | None = None
    excluded_domains: Texts | None = None
    enable_image_understanding: bool | None = None
    enable_image_search: bool | None = None


class XSearch(Exact, frozen=True, kw_only=True):
    """The provider searches posts."""

    allowed_x_handles: Texts | None = None
    excluded_x_handles: Texts | None = None
    from_date: str | None = None
    to_date: str | None = None
    enable_image_understanding: bool | None = None
    enable_video_understanding: bool | None = None


class FileSearch(Exact, frozen=True):
    """The provider searches files that it has."""

    vector_store_ids: Texts
    max_num_results: U32 | None = None


class RemoteMcp(Exact, frozen=True, kw_only=True):
    """The provider calls the tools of an MCP server."""

    server_url: str
    server_label: str
    server_description: str | None = None
    allowed_tools: Texts | None = None
    authorization: str | None = None
    headers: tuple[Header, ...] | None = None


class BuiltinTool(OneOf, frozen=True, kw_only=True):
    """A tool that the provider runs itself."""

    web_search: WebSearch | UnsetType = UNSET
    web_fetch: Empty | UnsetType = UNSET
    x_search: XSearch | UnsetType = UNSET
    code_execution: Empty | UnsetType = UNSET
    file_search: FileSearch | UnsetType = UNSET
    remote_mcp: RemoteMcp | UnsetType = UNSET
