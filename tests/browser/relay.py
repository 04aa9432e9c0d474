"""A way to a server that breaks where a test says, and that is mended later."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

_PATIENCE_SECONDS: Final = 60.0


class Relay:
    """Passes connections on to a server, until they are cut."""

    def __init__(self, url: str) -> None:
        self._server = (urlsplit(url).hostname, urlsplit(url).port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._broken = False
        self._lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._refused = threading.Semaphore(0)

    def cut(self) -> None:
        """Lose every connection, and whatever is tried until `mend`."""
        with self._lock:
            self._broken = True
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def mend(self, after: int) -> None:
        """Let connections through again, after some more were tried in vain."""
        for _ in range(after):
            assert self._refused.acquire(timeout=_PATIENCE_SECONDS)
        self._broken = False

    def serve(self) -> None:
        """Take connections, until `close`."""
        with suppress(OSError):
            while True:
                coming, _ = self._listening.accept()
                with self._lock:
                    if self._broken:
                        self._refused.release()
                        coming.close()
                        continue
                    going = socket.create_connection(self._server)
                    self._open |= {coming, going}
                for source, target in ((coming, going), (going, coming)):
                    threading.Thread(target=self._pass_on, args=(source, target)).start()

    def close(self) -> None:
        """Take no more connections, and end those that there are."""
        self.cut()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(1 << 16):
                target.sendall(chunk)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(source)
        source.close()


@contextmanager
def relay(url: str) -> Iterator[Relay]:
    """Keep a way to the server of a URL."""
    it = Relay(url)
    serving = threading.Thread(target=it.serve)
    serving.start()
    try:
        yield it
    finally:
        it.close()
        serving.join()
