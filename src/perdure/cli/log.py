from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from perdure.cli.sheet import plain, plain_lines


class _Compact(logging.Formatter):
    """Writes the time in UTC, the level and the message, without control characters."""

    converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base's name
        return plain(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the base's name
        return plain_lines(super().formatException(ei))


@contextmanager
def logged(*, quiet: bool) -> Generator[None]:
    """Write what a worker does to stderr; when `quiet`, only warnings and errors.

    Other libraries get to write warnings and errors. Where the program set logging up by itself,
    its handlers stay alone.
    """
    root, own = logging.getLogger(), logging.getLogger("perdure")
    level = own.level
    handler = None
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_Compact("%(asctime)sZ %(levelname)-7s %(message)s", "%H:%M:%S"))
        root.addHandler(handler)
    if own.level == logging.NOTSET or quiet:
        own.setLevel(logging.WARNING if quiet else logging.INFO)
    try:
        yield
    finally:
        own.setLevel(level)
        if handler is not None:
            root.removeHandler(handler)
