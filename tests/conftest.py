"""Settings that every test shares. Warnings are errors by pyproject.toml."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from perdure.storage.postgres.server_clock import ServerClock
from tests.acceptance.samples import sample, some
from tests.postgres_server import PostgresServer
from tests.services import own_postgres
from tests.storages import kept_on_server

# Machines differ in speed, so no example has a deadline and none is called slow. In CI the same
# examples run every time: a failure there belongs to the change, not to the day.
_SLOW = [HealthCheck.too_slow]
settings.register_profile("default", deadline=None, max_examples=12, suppress_health_check=_SLOW)
settings.register_profile(
    "ci",
    settings.get_profile("default"),
    max_examples=60,
    derandomize=True,
    database=None,
    print_blob=True,
)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# What is started in the background may have been told to ignore interrupts, and would tell its own
# children so. Tests interrupt themselves and their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_PROMISES = Path(__file__).parent / "conformance"


def _function_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have a few of the tests that run on every storage run on a server, with one case each.

    Of what every driver promises, one in sixteen is tested there, and one in eight in memory, which
    is SQLite without its file; in CI, everything is.
    """

    def kept(storage: str) -> list[pytest.Item]:
        cases = ((item, getattr(item, "callspec", None)) for item in items)
        return [item for item, case in cases if case and storage in case.params.values()]

    def promised(item: pytest.Item) -> bool:
        return item.path.is_relative_to(_PROMISES)

    served = kept("postgres")
    asked = [item for item in served if promised(item)]
    tested = sample([item for item in served if not promised(item)], _function_of)
    beside = [item for item in kept("memory") if promised(item)]
    chosen = {
        *some(tested, lambda item: _function_of(item).encode(), of=48),
        *some(asked, lambda item: item.nodeid.encode(), of=16),
        *some(beside, lambda item: item.nodeid.encode()),
    }
    left = {*served, *beside} - chosen
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=list(left))


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Name a PostgreSQL database in which tests make schemas of their own."""
    url = os.environ.get("PERDURE_TEST_POSTGRES_URL")
    if url:
        yield url
        return
    with own_postgres(in_memory=True) as server:
        yield server.url


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """Keep a PostgreSQL server that tests may restart."""
    with own_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Have the test run on each kind of storage: see `url_of`."""
    if request.param == "sqlite":
        yield "sqlite"
        return
    # A clock that a test turns is then the server's too, but for its leases.
    monkeypatch.setattr(ServerClock, "hear", lambda clock, now: None)
    with kept_on_server(tmp_path, request.getfixturevalue("postgres")):
        yield "postgres"
