from __future__ import annotations

import base64
import binascii
import enum
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import force_setattr

from perdure.canonical import reserialise
from perdure.errors import InvalidPayload


class Metadata(msgspec.Struct, frozen=True):
    """A note of the application."""

    key: str
    value: str


class UploadedFile(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A file that was uploaded to a provider before."""

    file_id: str
    provider_name: str
    media_type: str | UnsetType = UNSET
    metadata: tuple[Metadata, ...] = ()


class MediaSource(enum.StrEnum):
    """Where the content of a medium is."""

    BYTES = "bytes"
    URL = "url"
    PROVIDER_FILE = "provider_file"
    UPLOADED_FILE = "uploaded_file"


_MEMBERS: Final = {
    MediaSource.BYTES: ("data", ()),
    MediaSource.URL: ("url", ()),
    MediaSource.PROVIDER_FILE: ("file_id", ("provider",)),
    MediaSource.UPLOADED_FILE: ("uploaded_file", ()),
}
"""What each source says: a member that it needs, and others that it may have."""


class Media(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An image, a sound, a document or any other file; `data` is base64.

    Members of other sources than its own are dropped. Raises `InvalidPayload` for what no reader
    accepts. `of` makes one of bytes.
    """

    media_type: str
    filename: str | UnsetType = UNSET
    identifier: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    provider_name: str | UnsetType = UNSET
    provider_details: Raw | UnsetType = UNSET
    thought_signature: str | UnsetType = UNSET
    metadata: tuple[Metadata, ...] = ()
    source: MediaSource
    data: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    uploaded_file: UploadedFile | UnsetType = UNSET

    def __post_init__(self) -> None:
        settle_provider(self)
        needed, allowed = _MEMBERS[self.source]
        for name in ("data", "url", "file_id", "provider", "uploaded_file"):
            if name != needed and name not in allowed:
                force_setattr(self, name, UNSET)
        if getattr(self, needed) is UNSET:
            raise InvalidPayload(f"a medium of source {self.source} has no {needed}")
        if self.data is not UNSET and not _is_base64(self.data):
            raise InvalidPayload("the data of a medium is not base64 with its padding")

    def content(self) -> bytes:
        """Return the content of a medium that carries its bytes.

        Raises `InvalidPayload` for one that says where they are.
        """
        if self.data is UNSET:
            raise InvalidPayload(f"a medium of source {self.source} does not carry its content")
        return base64.b64decode(self.data)

    def as_kind(self, kind: type[AnyMedia]) -> AnyMedia:
        """Return it as one of the five kinds."""
        return kind(**{name: getattr(self, name) for name in Media.__struct_fields__})


class Image(Media, frozen=True, tag_field="kind", tag="image"):
    """A picture."""


class Audio(Media, frozen=True, tag_field="kind", tag="audio"):
    """A sound."""


class Video(Media, frozen=True, tag_field="kind", tag="video"):
    """A film."""


class Document(Media, frozen=True, tag_field="kind", tag="document"):
    """Something to read."""


class Binary(Media, frozen=True, tag_field="kind", tag="binary"):
    """Any other file."""


AnyMedia: TypeAlias = Image | Audio | Video | Document | Binary

KINDS: Final[dict[str, type[AnyMedia]]] = {
    "image": Image,
    "audio": Audio,
    "video": Video,
    "document": Document,
    "binary": Binary,
}
"""The kinds of media by their names on the wire."""


def medium(content: bytes, media_type: str) -> AnyMedia:
    """Return a medium that carries its content, of the kind that its media type says."""
    data = base64.b64encode(content).decode()
    return kind_of(media_type)(source=MediaSource.BYTES, media_type=media_type, data=data)


def kind_of(media_type: str) -> type[AnyMedia]:
    """Return the kind of a media type."""
    for prefix in ("image", "audio", "video"):
        if media_type.startswith(f"{prefix}/"):
            return KINDS[prefix]
    readable = media_type.startswith("text/") or media_type == "application/pdf"
    return Document if readable else Binary


def settle_provider(part: msgspec.Struct) -> None:
    """Check the provider's members of a part that has them, and settle the spelling of the details.

    Raises `InvalidPayload`.
    """
    details: Raw | UnsetType = getattr(part, "provider_details", UNSET)
    if details is not UNSET:
        force_setattr(part, "provider_details", object_of(details))
    identified = details is not UNSET or getattr(part, "id", UNSET) is not UNSET
    if identified and getattr(part, "provider_name", UNSET) is UNSET:
        raise InvalidPayload("an id or details of a provider stand without the provider's name")


def object_of(details: Raw) -> Raw:
    """Return details as they are written; raise `InvalidPayload` unless they are an object."""
    data = reserialise(bytes(details))
    if not data.startswith(b"{"):
        raise InvalidPayload("the details of a provider are not a JSON object")
    return Raw(data)


def _is_base64(text: str) -> bool:
    try:
        # The last characters before the padding may hold bits that no byte has.
        return base64.b64encode(base64.b64decode(text, validate=True)).decode() == text
    except (binascii.Error, ValueError):
        return False
