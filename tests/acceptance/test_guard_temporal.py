"""The Temporal example against a real server, which tries an activity again."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure import guard
from tests.harness import run
from tests.services import require

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = None if os.environ.get("PERDURE_TEST_TEMPORAL_URL") else shutil.which("temporal")


@asynccontextmanager
async def connected() -> AsyncGenerator[Client]:
    if PROGRAM is None:
        yield await Client.connect(require("temporal").removeprefix("temporal://"))
        return
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=PROGRAM) as server:
        yield server.client


def test_a_server_that_tries_an_activity_again_is_not_charged_for_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("guard_temporal")
    tried: list[Any] = []

    async def guard_and_lose(*arguments: Any, **options: Any) -> Any:
        tried.append(await guard(*arguments, **options))
        if len(tried) == 1:
            raise ConnectionResetError("the attempt's result did not arrive")
        return tried[-1]

    monkeypatch.setattr(example, "guard", guard_and_lose)

    async def main() -> str:
        async with connected() as client:
            return await example.check_out(client, f"invoice-{tmp_path.name}")

    try:
        receipt = run(main())
    finally:
        del sys.modules["guard_temporal"]
    assert [answer["receipt"] for answer in tried] == [receipt, receipt]
    assert capfd.readouterr().out.count("charging invoice-") == 1
