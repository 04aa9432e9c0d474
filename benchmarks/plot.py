"""Draws how costs grow: a panel for each storage and axis, with lines of our own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_COLOURS = {"P1": "#1f6feb", "P5": "#d1570a", "P6": "#2da44e", "P12": "#8250df"}
_WIDTH, _HEIGHT = 300, 200
_LEFT, _TOP, _RIGHT, _BOTTOM = 40, 34, 12, 36
_GREY = "#888"

Point = dict[str, Any]


def draw(growth: dict[str, list[Point]]) -> str:
    """Return a drawing of points: cost over size, each series as a multiple of its first point."""
    points = growth["points"]
    storages = list(dict.fromkeys(point["storage"] for point in points))
    axes = list(dict.fromkeys(point["axis"] for point in points))
    top = max([2.0, *(multiple for series in _series(points) for _, multiple in series)]) * 1.1
    panels = [
        _panel(
            [p for p in points if (p["storage"], p["axis"]) == (storage, axis)],
            f"{storage}: {axis}",
            (column * _WIDTH, row * _HEIGHT),
            top,
        )
        for row, storage in enumerate(storages)
        for column, axis in enumerate(axes)
    ]
    width, height = len(axes) * _WIDTH, len(storages) * _HEIGHT + 24
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="11">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>'
    )
    return "\n".join([head, *panels, _legend(height - 8), "</svg>", ""])


def _series(points: Sequence[Point]) -> list[list[tuple[int, float]]]:
    """Return the series of points, their costs as multiples of the first."""
    found: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    first: dict[tuple[str, ...], float] = {}
    for point in points:
        key = (point["storage"], point["axis"], point["row"])
        cost = point["cost"] / first.setdefault(key, point["cost"])
        found.setdefault(key, []).append((point["size"], cost))
    return list(found.values())


def _panel(points: Sequence[Point], title: str, corner: tuple[int, int], top: float) -> str:
    if not points:
        return ""
    x_0, y_0 = corner[0] + _LEFT, corner[1] + _TOP
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    sizes = sorted({point["size"] for point in points})
    low, span = math.log(sizes[0]), math.log(sizes[-1]) - math.log(sizes[0])

    def at(size: float, multiple: float) -> str:
        x = x_0 + wide * (math.log(size) - low) / span
        return f"{x:.1f},{y_0 + high * (1 - multiple / top):.1f}"

    logarithm = [(size, math.log(size) / math.log(sizes[0])) for size in sizes]
    drawn = [
        _text(x_0, y_0 - 10, title, "start"),
        _line([at(sizes[0], top), at(sizes[0], 0), at(sizes[-1], 0)], _GREY),
        _line([at(*pair) for pair in logarithm if pair[1] <= top], _GREY, dashed=True),
    ]
    for multiple in range(1, math.floor(top) + 1):
        _, _, y = at(sizes[0], multiple).partition(",")
        drawn.append(_text(x_0 - 6, float(y) + 4, f"{multiple}\N{MULTIPLICATION SIGN}", "end"))
    for size in sizes:
        x, _, _ = at(size, 0).partition(",")
        drawn.append(_text(float(x), y_0 + high + 16, _short(size), "middle"))
    rows = dict.fromkeys(point["row"] for point in points)
    for row, series in zip(rows, _series(points), strict=True):
        drawn.append(_line([at(*pair) for pair in series], _COLOURS[row]))
    return "\n".join(drawn)


def _legend(y: int) -> str:
    entries = [*_COLOURS.items(), ("a logarithm", _GREY)]
    return "\n".join(
        f'<text x="{_LEFT + 60 * place}" y="{y}" fill="{colour}">{name}</text>'
        for place, (name, colour) in enumerate(entries)
    )


def _line(pairs: Sequence[str], colour: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<polyline points="{" ".join(pairs)}" fill="none" stroke="{colour}"'
        f' stroke-width="1.5"{dashes}/>'
    )


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def _short(size: int) -> str:
    if size >= 1_000_000:
        return f"{size / 1_000_000:g} M"
    return f"{size / 1000:g} k" if size >= 1000 else str(size)
