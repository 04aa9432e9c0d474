from __future__ import annotations

from typing import Final

from perdure.journal.payloads.exact import Exact

_SECRET_NAMES: Final = {
    "authorization",
    "proxy-authorization",
    "cookie",
    "set-cookie",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
}


class Header(Exact, frozen=True):
    """A header of a request, and whether its value is a secret."""

    name: str
    value: str
    sensitive: bool = False

    def authenticates(self) -> bool:
        """Tell whether it is marked as a secret, or has a name that those have."""
        name = self.name.lower()
        named = "secret" in name or "token" in name or name.endswith("-key")
        return self.sensitive or named or name in _SECRET_NAMES
