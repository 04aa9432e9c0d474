from __future__ import annotations

import contextlib
from typing import Final
from urllib.parse import SplitResult, parse_qs, urlsplit

import msgspec

from perdure.errors import InvalidInvocation, InvalidUrl
from perdure.ids import check_identifier

MOST_HEARTBEAT_SECONDS: Final = 86_400

_PORT: Final = 7233
_FORM: Final = "temporal://host:7233/namespace?task_queue=agents"
_KNOWN: Final = ("heartbeat_seconds", "store", "task_queue", "tls")


class Address(msgspec.Struct, frozen=True):
    """Where runs on Temporal are: a server, a namespace, and what their task queues begin with.

    `heartbeat_seconds` is how long a worker may be silent, None for as long as its lease. `store`
    is the URL of the store where the URL names it, or None.
    """

    target: str
    namespace: str
    task_queue: str
    tls: bool
    heartbeat_seconds: float | None
    store: str | None


def address_of(url: str) -> Address:
    """Return what a URL says, such as `temporal://host:7233/namespace?task_queue=agents`.

    Without a namespace it is `default`, without a task queue `perdure`. `tls=true` encrypts the
    connection. Raises `InvalidUrl`.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or _PORT
        given = parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise InvalidUrl(f"a URL of Temporal is {_FORM}: {error}") from error
    if not parts.hostname or parts.fragment or "@" in parts.netloc:
        raise InvalidUrl(
            f"a URL of Temporal is {_FORM}, with no user and no fragment; what a server wants to"
            " know of its clients goes into App(…, temporal=connect)"
        )
    strange = [name for name, values in given.items() if name not in _KNOWN or len(values) > 1]
    if strange:
        raise InvalidUrl(
            f"a URL of Temporal takes {', '.join(_KNOWN)}, each once, and not {strange[0]!r}"
        )
    options = {name: values[0] for name, values in given.items()}
    namespace = _namespace_of(parts)
    task_queue = options.get("task_queue", "perdure")
    tls = options.get("tls", "false")
    if tls not in {"true", "false"}:
        raise InvalidUrl(f"tls is true or false in a URL of Temporal, not {tls!r}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    try:
        check_identifier(namespace, "namespace")
        check_identifier(task_queue, "task queue")
    except InvalidInvocation as error:
        raise InvalidUrl(f"{error}; a URL of Temporal is {_FORM}") from error
    return Address(
        f"{host}:{port}",
        namespace,
        task_queue,
        tls == "true",
        _seconds(options.get("heartbeat_seconds")),
        options.get("store"),
    )


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) <= MOST_HEARTBEAT_SECONDS:
            return seconds
    raise InvalidUrl(
        f"heartbeat_seconds is a number over 0 and up to {MOST_HEARTBEAT_SECONDS} in a URL of"
        f" Temporal, not {text!r}"
    )


def _namespace_of(parts: SplitResult) -> str:
    return parts.path.strip("/") or "default"
