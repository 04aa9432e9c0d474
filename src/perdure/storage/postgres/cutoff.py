from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg


@contextmanager
def cut_off_after(connection: psycopg.Connection[Any], seconds: float) -> Generator[None]:
    """Cut a connection off from its server when the block takes too long.

    The thread that waits for the server then goes on, with an error, whatever the server or the
    network does. What it asked for may still be done.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        timer = threading.Timer(seconds, _cut, [line])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def _cut(line: socket.socket) -> None:
    with suppress(OSError):  # it is not connected any more
        line.shutdown(socket.SHUT_RDWR)
