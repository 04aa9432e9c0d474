from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import __main__ as command
from benchmarks import durability, growth, page, plot, suite, table
from benchmarks.peers import comparison
from benchmarks.row import Cannot, Figure, NotDurable, Row, Setting, Target
from benchmarks.soak.run import Report, _miscounted
from benchmarks.soak.target import CountingTarget
from benchmarks.storages import POSTGRES, SQLITE


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
    monkeypatch.setattr(suite, "MODULES", {"P0": "made_up"})
    monkeypatch.delenv("PERDURE_TEST_POSTGRES_URL", raising=False)
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
    assert "synchronous=FULL" in document["machine"]["SQLite writes"]


def test_a_row_that_is_not_durable_fails_before_any_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(setting: Setting) -> None:
        raise NotDurable("3 completed operations ran again")

    code, document = run(monkeypatch, tmp_path, made_up(check=check))
    assert code == 1
    assert document["rows"][0]["figures"] == []
    assert "FAILED" in capsys.readouterr().out


def test_without_a_server_its_rows_are_skipped_and_say_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, document = run(monkeypatch, tmp_path, made_up(storages=[SQLITE, POSTGRES]))
    assert code == 0
    ours, theirs = document["rows"]
    assert (ours["storage"], ours["skipped"], len(ours["figures"])) == (SQLITE, "", 1)
    assert (theirs["storage"], theirs["figures"]) == (POSTGRES, [])
    assert "--postgres" in theirs["skipped"]


def test_a_row_that_lacks_a_program_is_skipped_and_says_which(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lacking(setting: Setting) -> list[Figure]:
        raise Cannot("there is no program temporal")

    code, document = run(monkeypatch, tmp_path, made_up(measure=lacking))
    assert code == 0
    assert document["rows"][0]["skipped"] == "skipped: there is no program temporal"


def test_the_page_shows_the_last_run_and_keeps_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written = tmp_path / "page.md"
    begin, end = "<!-- results: written by the command -->", "<!-- end of results -->"
    written.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    _, document = run(monkeypatch, tmp_path, made_up())
    page.write([document], written)
    text = written.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| P0 | SQLite | work | 5 ms | 1 |" in text


def test_the_page_shows_the_newest_of_several_runs(tmp_path: Path) -> None:
    def measured(date: str, value: float, *rows: tuple[str, str]) -> dict[str, Any]:
        figures = [{**figure(value).document(), "name": "each"}]
        entries = [{"number": number, "storage": storage} for number, storage in rows]
        return {
            "date": date,
            "machine": {"cores": 2, "load": value},
            "rows": [
                {**entry, "figures": figures, "failure": "", "skipped": ""} for entry in entries
            ],
            "peers": {
                "settings": {},
                "figures": [
                    peer("DBOS", value=value, unit="ms", ratio=None, **entry) for entry in entries
                ],
            },
        }

    written = tmp_path / "page.md"
    names = ("results", "peers")
    places = [f"<!-- {name}: written by the command -->\n<!-- end of {name} -->" for name in names]
    written.write_text("\n".join(places))
    first = measured("2026-01-02", 7, ("P5", SQLITE), ("P5", POSTGRES), ("P10", SQLITE))
    page.write([first, measured("2026-01-01", 3, ("P1", SQLITE), ("P5", SQLITE))], written)
    text = written.read_text()
    results, peers = text.split(places[1].split("\n")[0])
    shown = [("P1", SQLITE, 3), ("P5", SQLITE, 3), ("P5", POSTGRES, 7), ("P10", SQLITE, 7)]
    for section in (results, peers):
        lines = [line.split(" | ") for line in section.splitlines() if line.startswith("| P")]
        assert [(line[0], line[1], line[3]) for line in lines] == [
            (f"| {number}", storage, f"{value} ms") for number, storage, value in shown
        ]
        assert "Measured on 2026-01-01 and 2026-01-02." in section
    assert "- load: 3" in results


def test_the_plain_table_is_aligned() -> None:
    lines = [("P1", "", "long words", "1 ms", *[""] * 4), ("P10", "", "x", "10 ms", *[""] * 4)]
    heading, first, second = table.plain(table.HEADINGS, lines).splitlines()
    assert heading.index("perdure") == first.index("1 ms") == second.index("10 ms")


def peer(who: str, **members: object) -> dict:
    common = {"number": "P1", "storage": SQLITE, "peer": who, "name": "each"}
    return {**common, "failure": "", "reason": "", "remark": "", **members}


def test_peers_stand_beside_the_figure_of_the_same_name() -> None:
    row = {"number": "P1", "storage": SQLITE, "figures": [{**figure(5).document(), "name": "each"}]}
    theirs = [
        peer("DBOS", value=40.0, unit="ms", ratio=8.0),
        peer("Temporal", name="", failure="not durable: 3 ran again"),
        peer("DBOS, WAL", storage=POSTGRES, label="work", value=1.0, unit="ms", ratio=1.0),
    ]
    document = {"rows": [row], "peers": {"settings": {"DBOS": "WAL"}, "figures": theirs}}
    line, alone = comparison.lines(document)
    assert (alone[1], alone[3]) == (POSTGRES, "\N{EM DASH}")
    cells = dict(zip(comparison.headings(), line, strict=True))
    assert (cells["perdure"], cells["DBOS"]) == ("5 ms", "40 ms, 8\N{MULTIPLICATION SIGN}")
    assert cells["Temporal"] == cells["DBOS, WAL"] == "\N{EM DASH}"
    assert comparison.notes(document) == [
        "DBOS: WAL",
        "Temporal on SQLite, P1: not durable: 3 ran again",
    ]


def points(costs: list[float]) -> list[dict]:
    sizes = [10 ** (3 + place) for place in range(len(costs))]
    common = {"storage": SQLITE, "axis": growth.RECORDS, "row": "P1", "milliseconds": 1.0}
    return [{**common, "size": size, "cost": cost} for size, cost in zip(sizes, costs, strict=True)]


@pytest.mark.parametrize(
    ("costs", "verdict"),
    [
        ([2.0, 2.0, 2.0], "met"),
        ([3.0, 4.0, 5.0], "met"),
        ([3.0, 4.0, 9.0], "missed"),
        ([1.0, 10.0, 100.0], "missed"),
    ],
)
def test_nothing_may_grow_faster_than_a_logarithm(costs: list[float], verdict: str) -> None:
    (fit,) = growth.fits(points(costs))
    assert fit["verdict"] == verdict


def test_the_drawing_has_a_line_for_each_series() -> None:
    drawing = plot.draw({"points": points([2.0, 2.0, 4.0]), "fits": []})
    lines = ElementTree.fromstring(drawing).findall("{http://www.w3.org/2000/svg}polyline")
    heights = [float(pair.split(",")[1]) for pair in lines[-1].attrib["points"].split()]
    assert heights[0] == heights[1] > heights[2]


def test_the_target_counts_what_was_applied_again_and_what_is_missing() -> None:
    target = CountingTarget(random.Random(1))
    target._happens = lambda share: False
    for key, drops_repeats in (("a", True), ("a", True), ("b", False)):
        request = {"do": "apply", "key": key, "drops_repeats": drops_repeats}
        assert target._answer({**request, "sent_at": time.monotonic()}) == {"applied": True}
    assert target.applied == {"a": 1, "b": 1}
    late = {"do": "apply", "key": "c", "drops_repeats": False, "sent_at": time.monotonic() - 9}
    assert target._answer(late) is None
    assert [*_miscounted(target, Report(completed=1))] == ["2 effects were applied, of 4"]
    target.applied["b"] = 2
    assert any("more than once" in what for what in _miscounted(target, Report(completed=1)))
