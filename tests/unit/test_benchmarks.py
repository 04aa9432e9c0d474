from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as command
from benchmarks import durability, page, table
from benchmarks.row import Figure, NotDurable, Row, Setting, Target


def figure(value: float, *targets: Target, ratio: float | None = None) -> Figure:
    return Figure(label="work", value=value, unit="ms", floor=1, ratio=ratio, targets=targets)


@pytest.mark.parametrize(
    ("lines", "total", "told", "complaint"),
    [
        (["called a", "done a", "killed", "called b", "done a", "done b"], 2, 2, None),
        (["called a", "killed", "called a", "done a"], 1, 1, None),
        (["called a", "done a", "killed", "called a", "done a"], 1, 1, "1 completed operations"),
        (["called a", "done a", "killed"], 2, 2, "of 2 operations 1 completed"),
        (["called a", "done a"], 1, 0, "0 are told of"),
    ],
)
def test_what_ran_again_or_got_lost_is_not_durable(
    lines: list[str], total: int, told: int, complaint: str | None
) -> None:
    words = [line.split() for line in lines]
    if complaint is None:
        durability._judge(words, total, told)
        return
    with pytest.raises(NotDurable, match=complaint):
        durability._judge(words, total, told)


@pytest.mark.parametrize(
    ("shown", "verdict"),
    [
        (figure(5), ""),
        (figure(5, Target(5)), "met"),
        (figure(5.1, Target(5)), "missed"),
        (figure(5, Target(4, at_least=True)), "met"),
        (figure(5, Target(6, at_least=True)), "missed"),
        (figure(5, Target(1.6, of="ratio"), ratio=1.5), "met"),
        (figure(5, Target(9), Target(1.6, of="ratio"), ratio=1.7), "missed"),
    ],
)
def test_a_verdict_holds_all_targets(shown: Figure, verdict: str) -> None:
    assert shown.verdict == verdict


def run(
    monkeypatch: pytest.MonkeyPatch, folder: Path, row: Row, *arguments: str
) -> tuple[int, dict]:
    monkeypatch.setitem(sys.modules, "benchmarks.made_up", SimpleNamespace(ROW=row))
    monkeypatch.setattr(command, "_MODULES", {"P0": "made_up"})
    file = folder / "run.json"
    code = command.main(["--only", "p0", "--json", str(file), "--folder", str(folder), *arguments])
    return code, json.loads(file.read_text())


def made_up(**members: object) -> Row:
    shown = [figure(5, Target(1))]
    return Row(**{"number": "P0", "work": "w", "floor": "f", "measure": lambda s: shown, **members})


def test_a_missed_target_is_told_and_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, document = run(monkeypatch, tmp_path, made_up(), "--quick")
    assert code == 0
    assert document["rows"][0]["figures"][0]["verdict"] == "missed"
    assert document["quick"] is True
    assert "synchronous=FULL" in document["machine"]["durability"]


def test_a_row_that_is_not_durable_fails_before_any_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(setting: Setting) -> None:
        raise NotDurable("3 completed operations ran again")

    code, document = run(monkeypatch, tmp_path, made_up(check=check))
    assert code == 1
    assert document["rows"][0]["figures"] == []
    assert "FAILED" in capsys.readouterr().out


def test_the_page_shows_the_last_run_and_keeps_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written = tmp_path / "page.md"
    written.write_text(f"before\n{page._BEGIN}\nold\n{page._END}\nafter\n")
    _, document = run(monkeypatch, tmp_path, made_up())
    page.write(document, written)
    text = written.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| P0 | work | 5 ms | 1 |" in text


def test_the_plain_table_is_aligned() -> None:
    lines = [("P1", "long words", "1 ms", "", "", "", "met"), ("P10", "x", "10 ms", *[""] * 4)]
    heading, first, second = table.plain(lines).splitlines()
    assert heading.index("perdure") == first.index("1 ms") == second.index("10 ms")
