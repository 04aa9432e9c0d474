from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.table import cells, markdown

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_BEGIN = "<!-- results: written by the command -->"
_END = "<!-- end of results -->"


def write(document: dict[str, Any], page: Path = PAGE) -> None:
    """Put the results of a run into the page, in place of those of the run before."""
    before, begin, rest = page.read_text("utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise SystemExit(f"{page.name} has no place for results: {_BEGIN} … {_END}")
    page.write_text(f"{before}{begin}\n\n{_results(document)}\n\n{end}{after}", "utf-8")


def _results(document: dict[str, Any]) -> str:
    lines = [line for row in document["rows"] for line in cells(row)]
    facts = "\n".join(f"- {name}: {value}" for name, value in document["machine"].items())
    return f"Measured on {document['date']}.\n\n{markdown(lines)}\n\n{facts}"
