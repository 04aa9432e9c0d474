"""What several acceptance tests share."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator, Iterator

import pytest

from tests.acceptance import bank
from tests.acceptance.children import running, until
from tests.acceptance.samples import FULL, SEED
from tests.acceptance.scenarios import Target


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell with a failure how to make the same choice again."""
    report = yield
    if report.failed:
        chosen = f"PERDURE_TEST_SEED={SEED} PERDURE_TEST_FULL={int(FULL)}"
        report.sections.append(("What was sampled", chosen))
    return report


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Keep one bank for all accounts."""
    folder = tmp_path_factory.mktemp("bank")
    with running(folder, bank.serve, folder / "books.db", folder / "port") as serving:
        until((folder / "port").exists, serving)
        yield Target(int((folder / "port").read_text()), folder / "books.db")


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the environment of programs that import much: they share the bytecode of it all."""
    if not sys.dont_write_bytecode:
        yield {**os.environ}
        return
    kept = tmp_path_factory.mktemp("bytecode")
    yield {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(kept)}
    shutil.rmtree(kept)
