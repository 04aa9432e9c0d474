"""What stands on the disk when an effect is sent: each sync of the log is heard of, in order.

A process that is killed leaves what it wrote to the kernel; only a sync outlasts a power cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, effect, operation
from tests.acceptance.children import run
from tests.acceptance.syncs import Syncs, can_be_counted

pytestmark = pytest.mark.skipif(
    not can_be_counted(), reason="the SQLite of this Python hides its functions"
)

_DECLARED: dict[str, Callable[[Any], Any]] = {
    "effect": effect(),
    "read only": operation(read_only=True),
}


def act(folder: Path, declared: str, failing: str | None) -> None:
    """Act once in a run and note what happened in which order; let the sync of a write fail."""
    passed: list[str] = []
    syncs = Syncs(lambda: passed.append("synced"))

    def probe(point: str) -> None:
        passed.append(point)
        syncs.fails = point == failing and passed.count(point) == 1

    async def touch() -> None:
        passed.append("touched")

    touching = _DECLARED[declared](touch)
    app = App(f"sqlite:///{folder}/runs.db", probe=probe)

    @app.run(version=1)
    async def acting(context: Context) -> None:
        await context.call(touching)

    app.run_sync(acting, run_id="run-1")
    (folder / "passed").write_text(json.dumps(passed))


def test_the_claim_is_synced_before_the_handler_is_called(tmp_path: Path) -> None:
    """Also, the record and the receipt that goes with it cost one sync together."""
    passed = _passed(tmp_path, "effect")
    claim, settle = "commit.{} receipt.claim", "commit.{} settle call/1"
    assert _of_the_operation(passed) == [
        *(claim.format("begin"), "synced", claim.format("done")),
        *("effect.send", "operation.call call/1", "touched", "operation.called call/1"),
        *("effect.sent", settle.format("begin"), "synced", settle.format("done")),
    ]


def test_nothing_is_synced_before_what_only_reads_is_called(tmp_path: Path) -> None:
    passed = _passed(tmp_path, "read only")
    assert _of_the_operation(passed) == [
        *("operation.call call/1", "touched", "operation.called call/1"),
        *("commit.begin record call/1", "synced", "commit.done record call/1"),
    ]


def test_nothing_is_called_when_the_claim_could_not_be_synced(tmp_path: Path) -> None:
    begin, done = "commit.begin receipt.claim", "commit.done receipt.claim"
    passed = _passed(tmp_path, "effect", begin)
    assert passed.count(begin) == 2
    first = passed.index(begin)
    second = passed.index(begin, first + 1)
    assert passed[second : second + 3] == [begin, "synced", done]
    assert done not in passed[first:second]
    assert "operation.call call/1" not in passed[:second]
    assert passed.count("touched") == 1


def _passed(folder: Path, declared: str, failing: str | None = None) -> list[str]:
    run(folder, act, folder, declared, failing)
    return json.loads((folder / "passed").read_text())


def _of_the_operation(passed: list[str]) -> list[str]:
    begin, end = passed.index("commit.done start_run"), passed.index("commit.begin end_run")
    return passed[begin + 1 : end]
