"""What several acceptance tests share."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance import bank
from tests.acceptance.children import running, until
from tests.acceptance.samples import FULL, SEED, STORAGES
from tests.acceptance.scenarios import Target
from tests.postgres_server import PostgresServer
from tests.storages import Places


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell with a failure how to make the same choice again."""
    report = yield
    if report.failed:
        chosen = f"PERDURE_TEST_SEED={SEED} PERDURE_TEST_FULL={int(FULL)}"
        report.sections.append(("What was sampled", chosen))
    return report


@pytest.fixture(scope="module", params=STORAGES)
def places(request: pytest.FixtureRequest) -> Iterator[Places]:
    """Have the stores of a module's tests on each kind of storage."""
    server = None if request.param == "sqlite" else request.getfixturevalue("postgres")
    places = Places(server)
    yield places
    places.drop()


@pytest.fixture
def folder(places: Places, tmp_path: Path) -> Path:
    """Return a folder whose store is on each kind of storage."""
    places.use(tmp_path)
    return tmp_path


@contextmanager
def keeping_bank(tmp_path_factory: pytest.TempPathFactory, places: Places) -> Iterator[Target]:
    """Keep a bank for accounts whose stores are at some places."""
    folder = tmp_path_factory.mktemp("bank")
    with running(folder, bank.serve, folder / "books.db", folder / "port") as serving:
        until((folder / "port").exists, serving)
        yield Target(int((folder / "port").read_text()), folder / "books.db", places)


@pytest.fixture(scope="module")
def target(places: Places, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Keep one bank for all accounts."""
    with keeping_bank(tmp_path_factory, places) as it:
        yield it


@pytest.fixture(scope="module")
def target_at_own_server(
    own_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    """Keep a bank for accounts whose stores are at a server that may crash."""
    places = Places(own_server.url)
    with keeping_bank(tmp_path_factory, places) as it:
        yield it
    places.drop()


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the environment of programs that import much: they share the bytecode of it all."""
    if not sys.dont_write_bytecode:
        yield {**os.environ}
        return
    kept = tmp_path_factory.mktemp("bytecode")
    yield {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(kept)}
    shutil.rmtree(kept)
