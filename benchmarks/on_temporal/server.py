"""Temporal's development server, for as long as somebody measures."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.row import Cannot

GROUP = "uv sync --group benchmarks --group services"


@contextmanager
def server(file: Path) -> Generator[str]:
    """Run the server, which keeps everything in one file, and yield its address.

    Raises `Cannot` where there is no program.
    """
    beside = Path(sys.executable).with_name("temporal")
    program = str(beside) if beside.exists() else shutil.which("temporal")
    if program is None:
        raise Cannot(f"there is no program temporal: {GROUP}")
    port = _free_port()
    command = [program, "server", "start-dev", "--headless", "--port", str(port)]
    command += ["--db-filename", str(file), "--log-level", "never"]
    with (file.parent / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _until_listening(port, process)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        return taken.getsockname()[1]


def _until_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("Temporal's server did not start")
