from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import growth, plot
from benchmarks.peers import comparison
from benchmarks.table import HEADINGS, lines, markdown

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
DRAWING = "growth.svg"


def write(document: dict[str, Any], page: Path = PAGE) -> None:
    """Put the results of a run into the page, each section in place of that of the run before."""
    text = page.read_text("utf-8")
    if document["rows"]:
        text = put(text, "results", _results(document))
    if "peers" in document:
        text = put(text, "peers", _peers(document))
    if "growth" in document:
        text = put(text, "growth", _growth(document))
        page.with_name(DRAWING).write_text(plot.draw(document["growth"]), "utf-8")
    page.write_text(text, "utf-8")


def put(text: str, name: str, section: str) -> str:
    """Return a page with another section between the comments that name its place."""
    begin, end = f"<!-- {name}: written by the command -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise SystemExit(f"the page has no place for {name}: {begin} … {end}")
    return f"{before}{begin}\n\n{section}\n\n{end}{after}"


def _results(document: dict[str, Any]) -> str:
    return (
        f"{_date(document)}\n\n{markdown(HEADINGS, lines(document['rows']))}\n\n{_facts(document)}"
    )


def _peers(document: dict[str, Any]) -> str:
    table = markdown(comparison.headings(), comparison.lines(document))
    return f"{_date(document)}\n\n{table}\n\n{_list(comparison.notes(document))}"


def _growth(document: dict[str, Any]) -> str:
    table = markdown(growth.HEADINGS, growth.lines(document["growth"]))
    return f"{_date(document)}\n\n![how costs grow]({DRAWING})\n\n{table}\n\n{_facts(document)}"


def _date(document: dict[str, Any]) -> str:
    return f"Measured on {document['date']}."


def _facts(document: dict[str, Any]) -> str:
    return _list(f"{name}: {value}" for name, value in document["machine"].items())


def _list(items: Any) -> str:
    return "\n".join(f"- {item}" for item in items)
