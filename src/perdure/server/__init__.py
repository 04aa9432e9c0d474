"""Serves sessions to people: events, pages, input, and the chat endpoints of the AI SDK."""

from perdure.server.grants import Authorize, Grant, anyone
from perdure.server.limits import Limits
from perdure.server.server import Server, create_server
from perdure.server.tokens import SignedTokens

__all__ = [
    "Authorize",
    "Grant",
    "Limits",
    "Server",
    "SignedTokens",
    "anyone",
    "create_server",
]
