"""What several acceptance tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance import bank
from tests.acceptance.children import running, until
from tests.acceptance.scenarios import Target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Keep one bank for all accounts."""
    folder = tmp_path_factory.mktemp("bank")
    with running(folder, bank.serve, folder / "books.db", folder / "port") as serving:
        until((folder / "port").exists, serving)
        yield Target(int((folder / "port").read_text()), folder / "books.db")
