from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import NODEFAULT

from perdure.canonical import read_document
from perdure.errors import InvalidDocument, InvalidHistory, InvalidPayload, UnsupportedDocument
from perdure.journal.payloads.bounds import ENVELOPE, Bounds
from perdure.journal.payloads.exact import Byte, Exact
from perdure.journal.payloads.history import encode_history, parse_history
from perdure.journal.payloads.messages import Message

T = TypeVar("T", bound=Exact)

_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Member:
    """A member of an envelope that the wire spells in another way than the value.

    `kind` is its type on the wire; `default` what it is where it is missing, which most may not be.
    """

    name: str
    kind: Any
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    default: Any = NODEFAULT


def _read_messages(text: str) -> tuple[Message, ...]:
    return parse_history(text.encode())


def _write_messages(messages: tuple[Message, ...]) -> str:
    return encode_history(messages).decode()


def messages_member(name: str) -> Member:
    """Return the member of messages, which the wire holds as the text of a history document."""
    return Member(name, str, _read_messages, _write_messages)


@dataclass(frozen=True)
class Envelope(Generic[T]):
    """How a kind of document is written and read: its version, then the members of its value.

    All members of the value's type stand in the document, in that order; none may be missing or be
    added, whatever the type's defaults are. A value that no reader would accept is not written.
    """

    value: type[T]
    what: str
    invalid: type[InvalidDocument]
    unsupported: type[UnsupportedDocument | InvalidDocument]
    version: int = 1
    payload_kind: str | None = None
    bounds: Bounds = ENVELOPE
    version_default: Any = NODEFAULT
    members: Mapping[str, Member] = field(default_factory=dict[str, Member])

    def encode(self, value: T) -> bytes:
        """Return the document of a value; raise `invalid`."""
        document: dict[str, object] = {"version": self.version}
        if self.payload_kind is not None:
            document["payload_kind"] = self.payload_kind
        try:
            for name in self.value.__struct_fields__:
                member = self.members.get(name)
                held = getattr(value, name)
                document[member.name if member else name] = member.write(held) if member else held
            data = _encode(document)
            self._decoder.decode(data)
            self.bounds.check(data, what=self.what)
        except (InvalidPayload, InvalidHistory, ValueError, TypeError, RecursionError) as error:
            raise self.invalid(f"{self.what} cannot be written: {error}") from error
        return data

    def parse(self, data: bytes) -> T:
        """Return the value of a document.

        Raises `invalid` for the size or the shape, then `unsupported`, then `invalid` again for
        what stands in its members.
        """
        try:
            self.bounds.check_size(data, what=self.what)
            document = read_document(data, self._decoder, what=self.what, refuse=self.invalid)
            self.bounds.check(data, what=self.what)
        except InvalidPayload as error:
            raise self.invalid(str(error)) from error
        if self.payload_kind not in {None, getattr(document, "payload_kind", None)}:
            raise self.invalid(f"{self.what} is not of the payload kind {self.payload_kind}")
        if document.version != self.version:
            raise self.unsupported(
                f"{self.what} has version {document.version} and this release reads version"
                f" {self.version}: use releases that agree on both sides"
            )
        try:
            return self.value(**{name: self._read(name, document) for name in self._names})
        except (InvalidPayload, InvalidDocument, UnsupportedDocument) as error:
            raise self.invalid(f"{self.what} is refused: {error}") from error

    def _read(self, name: str, document: Any) -> Any:
        member = self.members.get(name)
        return member.read(getattr(document, member.name)) if member else getattr(document, name)

    @property
    def _names(self) -> tuple[str, ...]:
        return self.value.__struct_fields__

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        fields: list[tuple[str, Any, Any]] = [("version", Byte, self.version_default)]
        if self.payload_kind is not None:
            fields.append(("payload_kind", str, NODEFAULT))
        for info in msgspec.structs.fields(self.value):
            member = self.members.get(info.name)
            fields.append(
                (member.name, member.kind, member.default)
                if member
                else (info.name, info.type, NODEFAULT)
            )
        shape = msgspec.defstruct(
            f"{self.value.__name__}Document", fields, kw_only=True, forbid_unknown_fields=True
        )
        return msgspec.json.Decoder(shape)
