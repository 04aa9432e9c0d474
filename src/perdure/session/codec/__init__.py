"""What the data of messages mean: UI messages, or plain text."""

from perdure.session.codec.port import Codec, Event, FoldedMessage, Input, Output, Projection
from perdure.session.codec.text import TextCodec
from perdure.session.codec.ui_message import UiMessageCodec
from perdure.session.codec.written import Encoder

__all__ = [
    "Codec",
    "Encoder",
    "Event",
    "FoldedMessage",
    "Input",
    "Output",
    "Projection",
    "TextCodec",
    "UiMessageCodec",
]
