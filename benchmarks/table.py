from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TIMES = "\N{MULTIPLICATION SIGN}"
HEADINGS = ("row", "measured", "perdure", "floor", "ratio", "target", "verdict")


def cells(row: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the lines of the table that a measured row, as a document, makes."""
    if row["failure"]:
        return [(row["number"], row["work"], row["failure"], "", "", "", "FAILED")]
    return [(row["number"], *_figure(figure)) for figure in row["figures"]]


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


def show(lines: Sequence[tuple[str, ...]]) -> None:
    """Print the table, with rich where it is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        print(plain(lines))
        return
    table = Table(*HEADINGS)
    colours = {"met": "green", "missed": "yellow", "FAILED": "bold red"}
    for line in lines:
        table.add_row(*line, style=colours.get(line[-1]))
    Console().print(table)


def plain(lines: Sequence[tuple[str, ...]]) -> str:
    """Return the table as aligned text."""
    rows = [HEADINGS, *lines]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def markdown(lines: Sequence[tuple[str, ...]]) -> str:
    """Return the table as Markdown."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)
