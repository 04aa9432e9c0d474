from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from perdure.journal.payloads.media import Audio, Binary, Document, Image, Metadata, Video


class CacheTtl(enum.StrEnum):
    """How long a provider is to keep what stands before a cache point."""

    FIVE_MINUTES = "five_minutes"
    ONE_HOUR = "one_hour"


class TextContent(msgspec.Struct, frozen=True, tag_field="kind", tag="text"):
    """Text."""

    content: str


class AnnotatedText(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="text-content"
):
    """Text with notes of the application."""

    content: str
    metadata: tuple[Metadata, ...] = ()


class UploadedContent(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    kw_only=True,
    tag_field="kind",
    tag="uploaded-file",
):
    """A file that was uploaded to a provider before."""

    file_id: str
    provider_name: str
    media_type: str | UnsetType = UNSET
    metadata: tuple[Metadata, ...] = ()


class CachePoint(msgspec.Struct, frozen=True, tag_field="kind", tag="cache-point"):
    """A place up to which a provider is to keep what it read."""

    ttl: CacheTtl


UserContent: TypeAlias = (
    TextContent
    | AnnotatedText
    | UploadedContent
    | CachePoint
    | Image
    | Audio
    | Video
    | Document
    | Binary
)
