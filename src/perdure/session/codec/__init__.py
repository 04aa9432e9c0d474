"""What the data of messages mean: UI messages, or plain text."""

from perdure.session.codec.port import Codec, Event, FoldedMessage, Input, Output, Projection
from perdure.session.codec.said import Approval, Regeneration, Said, Saying, ToolResult
from perdure.session.codec.text import TextCodec
from perdure.session.codec.ui_message import UiMessageCodec
from perdure.session.codec.written import Encoder, Whole

__all__ = [
    "Approval",
    "Codec",
    "Encoder",
    "Event",
    "FoldedMessage",
    "Input",
    "Output",
    "Projection",
    "Regeneration",
    "Said",
    "Saying",
    "TextCodec",
    "ToolResult",
    "UiMessageCodec",
    "Whole",
]
