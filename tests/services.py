"""Services outside the process that some tests need, such as a database server.

Each is where `PERDURE_TEST_<NAME>_URL` says; PostgreSQL is started by the tests themselves where
its programs are found.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

import pytest

from tests.postgres_server import PostgresServer, find_binaries, server


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
