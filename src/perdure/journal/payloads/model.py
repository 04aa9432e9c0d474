from __future__ import annotations

import enum
import re
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from perdure.canonical import reserialise
from perdure.errors import (
    InvalidHistory,
    InvalidModelRequest,
    InvalidModelResponse,
    InvalidPayload,
    UnsupportedModelWireVersion,
    UnsupportedVersion,
)
from perdure.journal.payloads.bounds import ENVELOPE
from perdure.journal.payloads.builtin_tools import BuiltinTool
from perdure.journal.payloads.envelope import Envelope, Member, messages_member
from perdure.journal.payloads.exact import U64, Empty, Exact, OneOf
from perdure.journal.payloads.history import encode_history, parse_history
from perdure.journal.payloads.messages import Message, ResponseMessage
from perdure.journal.payloads.settings import Settings


class SchemaVisibility(enum.StrEnum):
    """Who sees the schema of what a tool returns."""

    APPLICATION = "application"
    MODEL_DESCRIPTION = "model_description"


class ToolDefinition(Exact, frozen=True):
    """A tool that the model may call; schemas are JSON as text."""

    name: str
    description: str
    parameters_json_schema: str
    return_json_schema: str | None = None
    return_schema_visibility: SchemaVisibility = SchemaVisibility.APPLICATION


class JsonSchema(Exact, frozen=True):
    """A schema, as text, that the output keeps to."""

    name: str
    schema: str
    strict: bool = True


class Output(OneOf, frozen=True, kw_only=True):
    """What a model is to answer with."""

    text: Empty | UnsetType = UNSET
    json_object: Empty | UnsetType = UNSET
    json_schema: JsonSchema | UnsetType = UNSET


class ErrorPolicy(Exact, frozen=True, kw_only=True):
    """How much of a provider's error is kept."""

    capture_body: bool = False
    max_body_bytes: U64 = 16384
    max_message_bytes: U64 = 4096
    max_code_bytes: U64 = 256


class UrlPolicy(Exact, frozen=True, kw_only=True):
    """Which URLs of media may be fetched."""

    allow_http: bool = False
    allow_local_network: bool = False
    allowed_hosts: tuple[str, ...] = ()


class ModelRequest(Exact, frozen=True, kw_only=True):
    """The input of a model request: the conversation, and how it is to go on.

    `instructions` repeats what the messages say as instructions. None for `timeout_ms` is no limit.
    """

    messages: tuple[Message, ...]
    instructions: tuple[str, ...] = ()
    tools: tuple[ToolDefinition, ...] = ()
    builtin_tools: tuple[BuiltinTool, ...] = ()
    output: Output = Output(text=Empty())
    error_policy: ErrorPolicy = ErrorPolicy()
    url_policy: UrlPolicy = UrlPolicy()
    request_id: str | None = None
    idempotency_key: str | None = None
    timeout_ms: U64 | None = None
    settings: Settings = Settings()


def _read_settings(settings: Settings) -> Settings:
    return settings


def _write_settings(settings: Settings) -> Raw:
    # The only floats of an envelope.
    return Raw(reserialise(msgspec.json.encode(settings)))


# A negative zero is written as a whole number, which would be read without its sign. Within a text
# the quotes of a name have a backslash before them.
_NEGATIVE_ZERO: Final = re.compile(
    rb'("(?:temperature|top_p|presence_penalty|frequency_penalty)"\s*:\s*)-0(?=[\s,}])'
)

_REQUEST: Final = Envelope(
    ModelRequest,
    "the model request",
    InvalidModelRequest,
    UnsupportedModelWireVersion,
    members={
        "messages": messages_member("messages_json"),
        "settings": Member("settings", Settings, _read_settings, _write_settings),
    },
)


def encode_model_request(request: ModelRequest) -> bytes:
    """Return the document of a model request; raise `InvalidModelRequest`."""
    return _REQUEST.encode(request)


def parse_model_request(data: bytes) -> ModelRequest:
    """Return the model request of a document; a history of version 1 in it is brought up to date.

    Raises `InvalidModelRequest` or `UnsupportedModelWireVersion`.
    """
    return _REQUEST.parse(_NEGATIVE_ZERO.sub(rb"\1-0.0", data))


def encode_model_response(response: ResponseMessage) -> bytes:
    """Return the document of a model's response; raise `InvalidModelResponse`."""
    try:
        data = encode_history((response,))
        ENVELOPE.check_size(data, what="the model response")
    except (InvalidHistory, InvalidPayload) as error:
        raise InvalidModelResponse(str(error)) from error
    _only_response((response,))
    return data


def parse_model_response(data: bytes) -> ResponseMessage:
    """Return the response of a document, which is a history of one response.

    Raises `InvalidModelResponse`, also for a history of an unknown version.
    """
    try:
        ENVELOPE.check_size(data, what="the model response")
        messages = parse_history(data)
    except (InvalidHistory, InvalidPayload, UnsupportedVersion) as error:
        raise InvalidModelResponse(f"the model response is refused: {error}") from error
    return _only_response(messages)


def _only_response(messages: tuple[Message, ...]) -> ResponseMessage:
    match messages:
        case (ResponseMessage() as response,):
            return response
        case _:
            raise InvalidModelResponse(
                f"the model response holds {len(messages)} messages, and it holds one response"
            )
