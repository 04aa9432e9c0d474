from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure import RunState
from perdure.cli.parser import KILL_POINTS
from perdure.demo.report import Moment, Report
from perdure.demo.shop import Shop
from perdure.demo.story import ANSWER, ORDER, PAID_CENTS
from perdure.demo.verdict import Evidence, judge
from perdure.engine.store import AttemptRow, OperationRow, RunRow

FIRST, SECOND = 11, 12


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path / "shop.db")
    made.create()
    return made


def _operation(step_id: str, sequence: int, kind: str, handler: str, attempt: int) -> OperationRow:
    identity = (step_id, sequence, kind, handler, b"", "success")
    return OperationRow(*identity, 1, 1, 1, attempt, 0.0, 0.0)


def _evidence(shop: Shop, **changed: Any) -> Evidence:
    """Return a turn killed in its only tool, which had refunded and had not been recorded."""
    run = RunRow(
        *("r", "refund", 1, RunState.COMPLETED, b"", None, 2),
        cancel_requested=False,
        output_json=b"null",
        problem=None,
        created_at=0.0,
        started_at=0.0,
        finished_at=1.0,
    )
    known: dict[str, Any] = {
        "point": "in-tool",
        "scripted": True,
        "moments": [
            Moment(1, FIRST, Report("asked", number=1)),
            Moment(1, FIRST, Report("killed", number=-9)),
            Moment(2, SECOND, Report("finished", ANSWER, 1)),
        ],
        "shop": shop,
        "run": run,
        "attempts": [
            AttemptRow(1, "a", "worker-1", FIRST, 0.0, 1.0, "lost", 0, 0),
            AttemptRow(2, "b", "worker-2", SECOND, 1.0, 2.0, "completed", 1, 1),
        ],
        "operations": [
            _operation("model.stream", 1, "model_stream", "refunds.model", 1),
            _operation("tool.call", 1, "tool_call", "refunds.shop.refund_order", 2),
        ],
    }
    return Evidence(**{**known, **changed})


def _happen(shop: Shop, monkeypatch: pytest.MonkeyPatch, *refunders: int) -> None:
    shop.visit("model", "1", FIRST)
    for pid in refunders:
        monkeypatch.setattr("perdure.demo.shop.os.getpid", lambda pid=pid: pid)
        shop.refund(ORDER, PAID_CENTS)


def test_what_was_under_way_is_expected_twice(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    _happen(shop, monkeypatch, FIRST, SECOND)
    for scripted in (True, False):
        verdict = judge(_evidence(shop, scripted=scripted))
        assert (verdict.faults, verdict.replayed, verdict.answer) == ([], 1, ANSWER)
        counted = {count.what: (count.by_worker, count.expected) for count in verdict.counts}
        assert counted == {
            "model request 1": ([1, 0], 1),
            "tool refund_order": ([1, 1], 2),
            "refunds paid": ([1, 1], 2),
        }


@pytest.mark.parametrize("refunders", [[SECOND], [FIRST, SECOND, SECOND]])
def test_a_refund_too_few_or_too_many_is_a_fault(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, refunders: list[int]
) -> None:
    _happen(shop, monkeypatch, *refunders)
    count = len(refunders)
    assert judge(_evidence(shop)).faults == [
        f"tool refund_order: counted {count}, and 2 would be right",
        f"refunds paid: counted {count}, and 2 would be right",
    ]


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"moments": [Moment(2, SECOND, Report("finished", ANSWER, 1))]}, "nobody was killed"),
        ({"attempts": []}, "the attempts ended as []"),
        ({"operations": []}, "model request 1: counted 1, and 0 would be right"),
        ({"point": "mcp"}, "MCP bank_day: counted 0, and 1 would be right"),
    ],
)
def test_what_is_not_as_it_should_be_is_a_fault(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], fault: str
) -> None:
    _happen(shop, monkeypatch, FIRST, SECOND)
    faults = judge(_evidence(shop, **changed)).faults
    assert any(fault in told for told in faults), faults


def test_every_kill_point_is_explained_in_the_manual() -> None:
    manual = Path(__file__).parents[2].joinpath("docs", "cli.md").read_text("utf-8")
    assert [point for point in KILL_POINTS if f"`{point}`" not in manual] == []
