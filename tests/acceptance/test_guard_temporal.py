"""The Temporal examples against a real server, which tries an activity again."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from perdure import guard
from tests.acceptance.samples import LONG
from tests.harness import run
from tests.services import connected

pytestmark = LONG

EXAMPLES = Path(__file__).parents[2] / "examples"


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


def test_an_operation_that_is_asked_for_twice_is_performed_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("temporal_operation")

    async def main() -> list[str]:
        async with connected() as client:
            return await example.order(client, f"order-{uuid4().hex}")

    try:
        assert run(main()) == ['{"order": 7}'] * 2
    finally:
        del sys.modules["temporal_operation"]
    assert capfd.readouterr().out.count("ordering") == 1


def test_a_run_goes_on_with_another_worker_on_temporal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("temporal_runs")

    async def main() -> str:
        async with connected() as client:
            host = client.service_client.config.target_host
            url = f"temporal://{host}/default?task_queue=shop-{uuid4().hex}"
            return await example.refund_on(url, f"sqlite:///{tmp_path}/runs.db")

    try:
        assert run(main()) == "1999 cents for order-7"
    finally:
        del sys.modules["temporal_runs"]
