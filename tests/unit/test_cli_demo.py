from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from perdure import RunState, SideEffectSupport
from perdure.cli import main
from perdure.cli.finale import Finale, sections
from perdure.cli.parser import KILL_POINTS, SUPPORTS
from perdure.cli.screen import Screen
from perdure.cli.timeline import Timeline
from perdure.demo.evidence import LOOKUP, Evidence
from perdure.demo.plan import Plan
from perdure.demo.report import Moment, Report
from perdure.demo.shop import Shop
from perdure.demo.story import ANSWER, ORDER, PAID_CENTS
from perdure.demo.verdict import SETTLERS, judge
from perdure.effects.receipt import Receipt, ReceiptState
from perdure.engine.history import AttemptRow, OperationRow
from perdure.engine.store import RunRow

FIRST, SECOND = 11, 12
QUERYABLE, IDEMPOTENT, NEITHER = SETTLERS
"""What the shop can do, in the order in which the code has it."""


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path / "shop.db")
    made.create()
    return made


def _operation(step_id: str, sequence: int, kind: str, handler: str, attempt: int) -> OperationRow:
    identity = (step_id, sequence, kind, handler, b"", "success")
    return OperationRow(*identity, 1, 1, 1, attempt, 0.0, 0.0)


def _receipt(support: SideEffectSupport, **changed: Any) -> Receipt:
    receipt = Receipt(
        operation_key="op-1",
        run_id="r",
        idempotency_key="tool.call",
        target="shop",
        ordinal=1,
        support=support,
        arguments_sha256=b"",
        state=ReceiptState.COMPLETED,
        attempt=2 if support is IDEMPOTENT else 1,
        holder="a",
        generation=2 if support is IDEMPOTENT else 1,
        version=3,
        first_claimed_at=0.0,
        claimed_at=0.0,
        decided_by="demo" if support is NEITHER else None,
    )
    return msgspec.structs.replace(receipt, **changed)


def _moments(support: SideEffectSupport) -> list[Moment]:
    killed = [
        Moment(1, FIRST, Report("asked", number=1)),
        Moment(1, FIRST, Report("killed", "", -9)),
    ]
    parked = [Moment(2, SECOND, Report("parked"))] if support is NEITHER else []
    return [*killed, *parked, Moment(2, SECOND, Report("finished", ANSWER, 1))]


def _evidence(shop: Shop, support: SideEffectSupport = QUERYABLE, **changed: Any) -> Evidence:
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
    plan = {name: changed.pop(name) for name in ("kill_at", "model", "moments") if name in changed}
    parked = [AttemptRow(2, "b", "worker-2", SECOND, 1.0, 2.0, "needs_attention", 0, 1)]
    last = 3 if support is NEITHER else 2
    known: dict[str, Any] = {
        "plan": Plan(
            **{"kill_at": "in-tool", "support": support, "moments": _moments(support), **plan}
        ),
        "leaves": False,
        "shop": shop,
        "run": run,
        "attempts": [
            AttemptRow(1, "a", "worker-1", FIRST, 0.0, 1.0, "lost", 0, 0),
            *(parked if support is NEITHER else []),
            AttemptRow(last, "b", "worker-2", SECOND, 1.0, 2.0, "completed", 1, 1),
        ],
        "operations": [
            _operation("model.stream", 1, "model_stream", "refunds.model", 1),
            _operation("tool.call", 1, "tool_call", "refunds.shop.refund_order", last),
        ],
        "receipts": [_receipt(support)],
    }
    return Evidence(**{**known, **changed})


def _happen(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, *refunders: int, support: Any = QUERYABLE
) -> None:
    """Ask the model, let processes pay money back, and ask for it where that can be done."""
    shop.visit("model", "1", FIRST)
    for pid in refunders:
        monkeypatch.setattr("perdure.demo.shop.os.getpid", lambda pid=pid: pid)
        shop.refund(ORDER, PAID_CENTS, "op-1", once=support is IDEMPOTENT)
    if support is QUERYABLE:
        shop.visit(*LOOKUP, SECOND)


@pytest.mark.parametrize("model", [None, "real"])
@pytest.mark.parametrize(
    ("support", "refunders", "others"),
    [
        (QUERYABLE, [FIRST], {"tool refund_order": ([1, 0], 1), "lookup at the shop": ([0, 1], 1)}),
        (IDEMPOTENT, [FIRST, SECOND], {"tool refund_order": ([1, 1], 2)}),
        (NEITHER, [FIRST], {"tool refund_order": ([1, 0], 1)}),
    ],
)
def test_a_refund_that_was_in_doubt_is_expected_once(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    model: str | None,
    support: SideEffectSupport,
    refunders: list[int],
    others: dict[str, Any],
) -> None:
    _happen(shop, monkeypatch, *refunders, support=support)
    verdict = judge(_evidence(shop, support, model=model))
    assert (verdict.faults, verdict.replayed, verdict.answer) == ([], 1, ANSWER)
    assert verdict.settled_by == SETTLERS[support]
    counted = {count.what: (count.by_worker, count.expected) for count in verdict.counts}
    assert counted == {"model request 1": ([1, 0], 1), "refunds paid": ([1, 0], 1), **others}


@pytest.mark.parametrize("refunders", [[], [FIRST, SECOND]])
def test_a_refund_too_few_or_too_many_is_a_fault(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, refunders: list[int]
) -> None:
    _happen(shop, monkeypatch, *refunders)
    count = len(refunders)
    assert judge(_evidence(shop)).faults == [
        f"tool refund_order: counted {count}, and 1 would be right",
        f"refunds paid: counted {count}, and 1 would be right",
    ]


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"moments": [Moment(2, SECOND, Report("finished", ANSWER, 1))]}, "nobody was killed"),
        ({"attempts": []}, "the attempts ended as []"),
        ({"operations": []}, "model request 1: counted 1, and 0 would be right"),
        ({"kill_at": "mcp"}, "MCP bank_day: counted 0, and 1 would be right"),
        ({"leaves": True, "moments": _moments(NEITHER)[:-1]}, "one should be ambiguous"),
        ({"receipts": [_receipt(QUERYABLE, attempt=2)]}, "settled by repeat, and lookup"),
        ({"receipts": [_receipt(QUERYABLE, decided_by="ada")]}, "settled by person, and lookup"),
        ({"kill_at": "none"}, "settled by lookup, and None"),
        ({"receipts": [_receipt(QUERYABLE)] * 2}, "2 effects have receipts, and 1 would be"),
        (
            {"receipts": [_receipt(QUERYABLE, state=ReceiptState.AMBIGUOUS)]},
            "the receipts are ['ambiguous'], and all should be completed",
        ),
    ],
)
def test_what_is_not_as_it_should_be_is_a_fault(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], fault: str
) -> None:
    _happen(shop, monkeypatch, FIRST)
    faults = judge(_evidence(shop, **changed)).faults
    assert any(fault in told for told in faults), faults


def test_what_is_typed_next_stands_in_one_line_and_no_harmless_repeat_alarms(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _happen(shop, monkeypatch, FIRST, SECOND, support=IDEMPOTENT)
    receipts = [_receipt(IDEMPOTENT, earlier_unknown=True)]
    told = _evidence(shop, IDEMPOTENT, receipts=receipts)
    timeline = Timeline(told.run, b"1", told.attempts, told.operations, {}, frozenset(), receipts)
    narrow = Console(width=60, force_terminal=True, highlight=False, file=io.StringIO())
    monkeypatch.setattr(Screen, "console", lambda self: narrow)
    finale = Finale(told.plan, judge(told), timeline, 1.0, tmp_path / ("kept" * 20), [])
    Screen(as_json=False).show(*sections(finale))
    shown = narrow.file.getvalue()  # type: ignore[attr-defined]
    *_, before, command = shown.splitlines()
    assert before.endswith("look with:")
    assert command == f"  perdure show r --url sqlite:///{tmp_path}/{'kept' * 20}/runs.db"
    assert "may have been applied" not in shown
    assert "none, as long as its target drops repeats" in shown


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--no-settle", "give it --keep DIR and --support at-least-once"),
        ("--no-settle --keep kept", "give it --keep DIR and --support at-least-once"),
        ("--resume kept --kill-at mcp", "leave the other options out"),
        ("--resume kept --no-settle", "leave the other options out"),
        ("--resume kept", "holds no turn of a demo"),
        ("--support at_least_once --no-settle", "give it --keep DIR and --support at-least-once"),
        ("--port 8000", "give them with --chat"),
        ("--no-open", "give them with --chat"),
        ("--chat --kill-at mcp", "leave --kill-at, --support, --no-settle and --resume out"),
        ("--chat --support idempotent", "leave --kill-at, --support, --no-settle and --resume out"),
        ("--chat --no-settle", "leave --kill-at, --support, --no-settle and --resume out"),
        ("--chat --resume kept", "leave --kill-at, --support, --no-settle and --resume out"),
        ("--chat --keep .", "give --keep a new or an empty folder"),
        ("--chat --port 65536", "a port is a number from 0 to 65535"),
        ("--chat --model nobody:nothing", "--model nobody:nothing: Unknown model"),
        ("--support once", "(choose from 'outcome-queryable', 'idempotent', 'at-least-once')"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    problem: str,
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "mine").touch()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["demo", *words.split()]) == 2
    assert problem in capsys.readouterr().err
    assert [*folder.iterdir(), *tmp_path.iterdir()] == [folder / "mine", folder]


def test_every_choice_is_explained_in_the_manual() -> None:
    manual = Path(__file__).parents[2].joinpath("docs", "cli.md").read_text("utf-8")
    choices = [*KILL_POINTS, *SUPPORTS]
    assert [choice for choice in choices if f"`{choice}`" not in manual] == []


@pytest.mark.parametrize(("words", "missing"), [("", "rich"), ("--chat", "starlette")])
def test_a_demo_that_cannot_be_shown_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, missing: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["demo", *words.split()]) == 2
    assert list(tmp_path.iterdir()) == []
