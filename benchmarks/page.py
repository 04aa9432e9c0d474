from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import growth, plot, suite
from benchmarks.peers import comparison
from benchmarks.storages import POSTGRES, SQLITE
from benchmarks.table import HEADINGS, lines, markdown

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
DRAWING = "growth.svg"


def write(documents: Sequence[dict[str, Any]], page: Path = PAGE) -> None:
    """Put the results of runs into the page, each section in place of those before.

    Of what several runs have measured, the last one counts.
    """
    document = _merged(documents)
    text = page.read_text("utf-8")
    if document["rows"]:
        text = put(text, "results", _results(document))
    if "peers" in document:
        text = put(text, "peers", _peers(document))
    if "growth" in document:
        text = put(text, "growth", _growth(document))
        page.with_name(DRAWING).write_text(plot.draw(document["growth"]), "utf-8")
    page.write_text(text, "utf-8")


def _merged(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    merged = {**documents[0], "dates": sorted({document["date"] for document in documents})}
    for document in documents[1:]:
        merged["machine"] = document["machine"]
        merged["rows"] = _replaced(merged["rows"], document["rows"], "number", "storage")
        if "growth" in document:
            merged["growth"] = document["growth"]
        if "peers" in document:
            former, peers = merged.get("peers", {"settings": {}, "figures": []}), document["peers"]
            merged["peers"] = {
                "settings": {**former["settings"], **peers["settings"]},
                "figures": _replaced(
                    former["figures"], peers["figures"], "number", "storage", "peer"
                ),
            }
    return merged


def _replaced(
    former: list[dict[str, Any]], newer: list[dict[str, Any]], *names: str
) -> list[dict[str, Any]]:
    """Return entries without those that newer ones of the same key stand for, in order."""
    keys = {tuple(entry[name] for name in names) for entry in newer}
    kept = [entry for entry in former if tuple(entry[name] for name in names) not in keys]
    order = [(number, storage) for number in suite.MODULES for storage in (SQLITE, POSTGRES)]
    return sorted(kept + newer, key=lambda entry: order.index((entry["number"], entry["storage"])))


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
    return f"Measured on {' and '.join(document['dates'])}."


def _facts(document: dict[str, Any]) -> str:
    return _list(f"{name}: {value}" for name, value in document["machine"].items())


def _list(items: Any) -> str:
    return "\n".join(f"- {item}" for item in items)
