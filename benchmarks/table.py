from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

TIMES = "\N{MULTIPLICATION SIGN}"
HEADINGS = ("row", "on", "measured", "perdure", "floor", "ratio", "target", "verdict")

Line = tuple[str, ...]


def lines(rows: Iterable[dict[str, Any]]) -> list[Line]:
    """Return the lines of the table that measured rows, as documents, make."""
    return [line for row in rows for line in _row(row)]


def _row(row: dict[str, Any]) -> list[Line]:
    ahead = (row["number"], row["storage"])
    if row["failure"]:
        return [(*ahead, row["work"], row["failure"], "", "", "", "FAILED")]
    if row["skipped"]:
        return [(*ahead, row["work"], row["skipped"], "", "", "", "")]
    return [(*ahead, *_figure(figure)) for figure in row["figures"]]


def _figure(figure: dict[str, Any]) -> tuple[str, ...]:
    floor = "" if figure["floor"] is None else quantity(figure["floor"], figure["floor_unit"])
    ratio = "" if figure["ratio"] is None else f"{figure['ratio']:.2f}{TIMES}"
    targets = " and ".join(_target(target, figure["unit"]) for target in figure["targets"])
    value = quantity(figure["value"], figure["unit"])
    return figure["label"], value, floor, ratio, targets, figure["verdict"]


def _target(target: dict[str, Any], unit: str) -> str:
    sign = "≥" if target["at_least"] else "≤"
    limit = target["limit"]
    return (
        f"{sign} {limit:g}{TIMES}" if target["of"] == "ratio" else f"{sign} {quantity(limit, unit)}"
    )


def quantity(value: float, unit: str) -> str:
    """Return a number with three significant digits and its unit."""
    number = f"{value:,.0f}" if value == 0 or abs(value) >= 100 else f"{value:.3g}"
    return f"{number}{unit}" if unit in {"", "/s", "%"} else f"{number} {unit}"


def show(headings: Line, lines: Sequence[Line]) -> None:
    """Print a table: to a terminal with rich, where that is installed."""
    if not sys.stdout.isatty() or find_spec("rich") is None:
        print(plain(headings, lines))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*headings)
    colours = {"met": "green", "missed": "yellow", "FAILED": "bold red"}
    for line in lines:
        table.add_row(*line, style=colours.get(line[-1]))
    Console().print(table)


def plain(headings: Line, lines: Sequence[Line]) -> str:
    """Return a table as aligned text."""
    rows = [headings, *lines]
    widths = [max(len(row[column]) for row in rows) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def markdown(headings: Line, lines: Sequence[Line]) -> str:
    """Return a table as Markdown."""
    rows = [headings, ("---",) * len(headings), *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)
