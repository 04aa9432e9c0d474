from __future__ import annotations

import re
from typing import Any, Final

_HEADERS: Final = {
    "authorization",
    "proxy-authorization",
    "cookie",
    "set-cookie",
    "api-key",
    "x-api-key",
    "x-goog-api-key",
}
_SCHEME: Final = re.compile(r"\s*(?:bearer|basic)\s+\S", re.IGNORECASE).match

ADVICE: Final = (
    "secrets are never stored: leave it out, or pass SecretRef('name') of perdure.secrets, which"
    " stores the name alone"
)


def is_secret(value: object) -> bool:
    """Tell whether a value says of itself that it is secret, as those of pydantic do."""
    return hasattr(type(value), "get_secret_value")


def is_credential(key: object, value: object, holder: str) -> bool:
    """Tell whether a member of a dict is a header that carries a credential.

    `holder` is what the dict is called where it stands. A header counts in what is called headers,
    and anywhere if its value begins with the name of a scheme. One without a value is none.
    """
    name = _text(key)
    if name is None or name.lower() not in _HEADERS:
        return False
    items: list[Any] = list(value) if isinstance(value, list | tuple) else [value]  # pyright: ignore[reportUnknownArgumentType]
    texts = [text for text in map(_text, items) if text]
    if holder.lower().rstrip("]'\"").endswith("headers"):
        return bool(texts)
    return any(map(_SCHEME, texts))


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else None
