"""Every promise of an engine, kept on every kind of storage."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from perdure import App
from perdure.testing.engine import EngineCheck, checks
from tests.harness import run
from tests.storages import url_of

pytestmark = pytest.mark.usefixtures("storage")


@pytest.mark.parametrize("check", checks(), ids=lambda check: check.name)
def test_an_engine_keeps_what_it_promises(tmp_path: Path, check: EngineCheck) -> None:
    run(check(partial(App, url_of(tmp_path))))
