from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, OperationFailed, SideEffectSupport, operation
from perdure.cli import main, timeline
from perdure.cli.advice import way_on
from perdure.cli.naming import name_of
from perdure.cli.operation import Problem
from perdure.cli.runs import runs_sheet
from perdure.effects.receipt import Receipt, ReceiptState
from perdure.engine.history import AttemptRow, OperationRow
from perdure.engine.store import RunProblem, RunRow, RunState
from tests.harness import Pause, app_on, once, paused_app, run, sql

Show = Callable[..., tuple[int, str]]
TOOL = "refunds__function_toolset__shop.call_tool.refund_order"


@pytest.fixture
def show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Show:
    """Run show on `run-1` of the folder; returns the exit code and all that was written."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str]:
        code = main(["show", "run-1", "--url", "sqlite:///runs.db", *words])
        return code, "".join(capsys.readouterr())

    return call


def _operation(step_id: str, sequence: int, kind: str, handler: str) -> OperationRow:
    status = "failure" if kind == "tool_call" else "success"
    identity = (step_id, sequence, kind, handler, b"\xab" * 32, status)
    return OperationRow(*identity, 1000, 2000, 1, 1, 10.0, 10.5)


def _run(state: RunState, problem: RunProblem | None = None, run_id: str = "run-1") -> RunRow:
    identity = (run_id, "refund", 1, state, b"", None, 1)
    return RunRow(
        *identity,
        cancel_requested=False,
        output_json=None,
        problem=problem,
        created_at=9.0,
        started_at=9.0,
        finished_at=None if state is RunState.RUNNING else 11.0,
    )


def _timeline() -> timeline.Timeline:
    attempt = AttemptRow(1, "a", "worker", 7, 9.0, None, None, 0, 0)
    operations = [
        _operation("model.stream", 1, "model_stream", "refunds__model.request_stream"),
        _operation("tool.call", 1, "tool_call", TOOL),
    ]
    problems = {("tool.call", 1): Problem("E", "shop.CardDeclined", "no money\x1b[31m " + "x" * 80)}
    row = _run(RunState.RUNNING)
    return timeline.Timeline(row, b"1", [attempt], operations, problems, frozenset())


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (48, "operation what outcome attempt"),
        (80, "operation what outcome at took attempt kind"),
        (100, "operation what outcome at took attempt tries kind in out"),
        (120, "operation what outcome at took attempt tries kind in out digest of in"),
    ],
)
def test_a_timeline_keeps_names_and_problems_in_a_narrow_terminal(width: int, columns: str) -> None:
    title, header, model, tool, problem = (
        timeline.operations_sheet(_timeline()).fitted(width).plain.split("\n")
    )
    assert (title, header.split()) == ("operations", columns.split())
    assert "model request" in model
    assert "tool.call/1" in tool
    assert "refund_order" in tool
    assert problem.startswith("    shop.CardDeclined: no money\\x1b[31m x")
    assert len(problem) == min(width, 120)
    assert max(map(len, (header, model, tool))) <= width


def test_a_wide_terminal_shows_the_handler_and_a_pipe_everything() -> None:
    sheet = timeline.operations_sheet(_timeline())
    *_, tool = sheet.fitted(230).plain.split("\n")
    assert TOOL in tool
    assert tool.endswith("…")
    assert "  abababababab  " in tool
    *_, tool = sheet.fitted(None).plain.split("\n")
    assert tool.endswith("x" * 80)


def _doubt(support: str, **more: Any) -> Receipt:
    return Receipt(
        operation_key="op-0123456789abcdef",
        run_id="run-1",
        idempotency_key="call",
        target="bank",
        ordinal=1,
        support=SideEffectSupport(support),
        arguments_sha256=b"",
        state=ReceiptState.AMBIGUOUS,
        attempt=1,
        holder="a",
        generation=1,
        version=2,
        first_claimed_at=9.0,
        claimed_at=9.0,
        lookup_at=10.0,
        **more,
    )


PLACE = " --url sqlite:///runs.db"
KEY = f"op-0123456789ab{PLACE}"
SETTLE = f"`perdure effects settle {KEY}`; `perdure effects show {KEY}` says"
RESUME = f"`perdure resume run-1{PLACE}` once its cause is mended"
ATTENTION = RunState.NEEDS_ATTENTION


@pytest.mark.parametrize(
    ("state", "code", "receipts", "way"),
    [
        (RunState.FAILED, "ValueError", [], RESUME),
        (RunState.FAILED, "ValueError", [_doubt("at_least_once")], RESUME),
        (ATTENTION, "ReplayMismatch", [], f"{RESUME}, or `perdure cancel run-1{PLACE}` to"),
        (ATTENTION, "EffectAmbiguous", [_doubt("at_least_once")], SETTLE),
        (ATTENTION, "EffectAmbiguous", [_doubt("outcome_queryable", exhausted=True)], SETTLE),
        (
            ATTENTION,
            "EffectAmbiguous",
            [_doubt("outcome_queryable")],
            f"what its target says (asked 00:00:10Z) or {SETTLE}",
        ),
        (ATTENTION, "EffectAmbiguous", [_doubt("idempotent")], RESUME),
        (RunState.CANCELLED, "EffectAmbiguous", [_doubt("at_least_once")], ""),
    ],
)
def test_what_lets_a_run_go_on_is_told(
    state: RunState, code: str, receipts: list[Receipt], way: str
) -> None:
    told = way_on(_run(state, RunProblem(code, code, "why")), receipts, PLACE)
    assert told.startswith(way)
    assert bool(told) is bool(way)


def test_a_problem_of_a_run_is_cut_before_a_column_goes() -> None:
    problem = RunProblem("E", "E", "the payment system is down " * 5)
    rows = [
        _run(RunState.FAILED, problem, "refund-A-1042"),
        _run(RunState.COMPLETED, None, "refund-A-1043"),
    ]
    header, failed, why, completed = runs_sheet(rows, "").fitted(80).plain.split("\n")
    assert header.split() == [*["run", "function", "state", "attempts", "created"], "(UTC)", "took"]
    assert failed.split()[-1] == "s"
    assert (len(why), why[-1]) == (80, "…")
    assert completed.startswith("refund-A-1043")
    assert runs_sheet(rows, "").fitted(120).plain.count("…") == 1


@pytest.mark.parametrize(
    ("step_id", "kind", "handler_id", "name"),
    [
        ("tool.call", "tool_call", TOOL, "refund_order"),
        ("mcp.request", "mcp_request", "a__mcp_server__clock.call_tool.bank_day", "bank_day"),
        ("mcp.list.clock", "mcp_request", "a__mcp_server__clock.get_tools", "list of MCP tools"),
        ("main.model.stream", "model_stream", "a__model.request_stream", "model request"),
        ("2.model.compact", "model_request", "a__model.compact", "model compaction"),
        ("event.1.part_start", "event_delivery", "a__event_stream_handler", "event"),
        ("call", "tool_call", "Shop.charge.v2", "charge"),
        ("model.stream.1.call", "tool_call", "charge", "model request"),
        ("call.1.retry", "retry_delay", "charge", "wait before a retry"),
    ],
)
def test_operations_have_names_for_people(
    step_id: str, kind: str, handler_id: str, name: str
) -> None:
    assert name_of(_operation(step_id, 1, kind, handler_id)) == name


def _failing(folder: Path) -> App:
    app = app_on(folder)

    @operation(read_only=True)
    async def charge(order: str) -> int:
        data = {"bank": ["b\x7f"]}
        raise OperationFailed("k", code="Declined", message="no\x1b[31m", data=data)

    @app.run(version=1)
    async def refund(context: Context, order: str) -> int:
        return await context.call(charge, order)

    return app


def test_a_failed_operation_is_shown_with_its_error_and_whole(tmp_path: Path, show: Show) -> None:
    with pytest.raises(Exception, match="no"):
        run(once(_failing(tmp_path), "refund", "A-1"))
    shown = json.loads(show("--json")[1])
    (operation,) = shown["operations"]
    problem = {"code": "Declined", "type_name": "Declined", "message": "no\x1b[31m"}
    assert (operation["problem"], operation["name"]) == (problem, "charge")
    assert "OperationFailed" in shown["run"]["problem"]["traceback"]
    code, out = show()
    assert (code, "\x1b" in out) == (0, False)
    assert "Declined: no\\x1b[31m" in out.splitlines()[-1]
    assert '  Traceback (most recent call last):\n    File "' in out

    for place in ("call/1", "run-1/call/1"):
        code, out = show("--operation", place)
        assert (code, "\x1b" in out, "\x7f" in out) == (0, False, False)
        for told in ('  "args": [\n    "A-1"\n  ]', '"retryable": false', '"b\\x7f"'):
            assert told in out
    whole = json.loads(show("--operation", "call/1", "--json")[1])
    assert (whole["input"], whole["output"]) == ({"args": ["A-1"], "kwargs": {}}, None)
    assert whole["failure"] == {**problem, "retryable": False, "data": {"bank": ["b\x7f"]}}
    code, out = show("--operation", "call/2")
    assert (code, "has recorded no operation 'call/2'" in out, out.count("\n")) == (2, True, 1)


def test_operations_stand_in_the_order_they_started(tmp_path: Path, show: Show) -> None:
    app = app_on(tmp_path)
    second_is_done = asyncio.Event()

    async def slow() -> None:
        await second_is_done.wait()

    async def fast() -> dict[str, int]:
        return {"cents": 4900}

    @app.run(version=1)
    async def both(context: Context) -> None:
        waiting = asyncio.create_task(context.branch("a").call(slow))
        await asyncio.sleep(0)
        await context.branch("b").call(fast)
        second_is_done.set()
        await waiting

    run(once(app, "both"))
    recorded = sql(tmp_path, "SELECT handler_id FROM records ORDER BY record_number")
    assert [name.rpartition(".")[2] for (name,) in recorded] == ["fast", "slow"]
    names = [operation["name"] for operation in json.loads(show("--json")[1])["operations"]]
    assert names == ["slow", "fast"]
    assert 'output\n{\n  "cents": 4900\n}\n' in show("--operation", "branch.b.1.call/1")[1]


def test_an_attempt_goes_on_only_while_its_worker_lives(tmp_path: Path, show: Show) -> None:
    pause = Pause()

    async def meanwhile() -> list[tuple[int, str]]:
        async with (app := paused_app(tmp_path, pause)):
            await app.start("work", 1, run_id="run-1")
            await pause.reached.wait()
            found = [await asyncio.to_thread(show)]
            sql(tmp_path, "UPDATE workers SET lease_until = 0")
            found += [await asyncio.to_thread(show), await asyncio.to_thread(show, "--json")]
            return found

    (_, before), (_, after), (_, document) = run(meanwhile())
    assert ("goes on" in before, "worker gone" in before) == (True, False)
    assert ("goes on" in after, "worker gone" in after) == (False, True)
    assert "its worker is gone; a worker that serves work@1 takes it over" in after
    assert after.endswith("\n\nnothing recorded yet\n")
    (attempt,) = json.loads(document)["attempts"]
    assert (attempt["ending"], attempt["worker_alive"], attempt["replayed"]) == (None, False, None)


def test_a_damaged_input_is_the_storage(tmp_path: Path, show: Show) -> None:
    async def look(order: str) -> int:
        return len(order)

    app = app_on(tmp_path)

    @app.run(version=1)
    async def one(context: Context, order: Any) -> int:
        return await context.call(look, order)

    run(once(app, "one", "A-1"))
    sql(tmp_path, "UPDATE records SET input_tail = CAST('{}' AS BLOB)")
    code, out = show("--operation", "call/1")
    assert (code, "is damaged in the database" in out) == (4, True)


def test_values_that_are_no_json_are_shown_as_what_they_are(tmp_path: Path, show: Show) -> None:
    app = app_on(tmp_path)

    @operation(read_only=True)
    async def price(name: str) -> Decimal:
        return Decimal("1.50")

    @app.run(version=1)
    async def work(context: Context, names: tuple[str]) -> Decimal:
        return await context.call(price, names[0])

    run(once(app, work, ("tea",)))
    _, shown = show()
    assert '{"tuple":["tea"]}' in shown
    assert '{"decimal":"1.50"}' in shown
    _, shown = show("--operation", "call/1")
    assert '"decimal": "1.50"' in shown
    _, shown = show("--json")
    assert '{"$perdure":"decimal","value":"1.50"}' in shown.replace(" ", "")
