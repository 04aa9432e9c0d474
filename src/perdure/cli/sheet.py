from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from rich.text import Text

_GAP: Final = 2
_INDENT: Final = 4


class Column(msgspec.Struct, frozen=True):
    """A column of a sheet.

    `number` aligns it to the right. Where a terminal is too narrow, columns are left out by
    `dispensable`, the highest first; 0 is never left out. The `spare` ones among them go before
    anything is cut. Then those with `least` may be cut to so many characters, and then the others
    go. A `below` column is left out when it is empty; it is cut first, and has a line of its own
    below each row rather than being cut below its `least`.
    """

    name: str
    number: bool = False
    least: int = 0
    below: bool = False
    dispensable: int = 0
    spare: bool = False


class Sheet:
    """A table that fits the terminal that it is shown on; cells are text of rich, or anything."""

    def __init__(
        self, title: str, columns: Sequence[Column], rows: Iterable[Iterable[object]]
    ) -> None:
        self._title = title
        self._rows = [dict(zip(columns, map(_cell, row), strict=True)) for row in rows]
        self._columns = [column for column in columns if not column.below or self._fills(column)]
        self._widths = {column: self._natural(column) for column in self._columns}

    def fitted(self, width: int | None) -> Text:
        """Return the table for a terminal of so many characters; None shows everything."""
        from rich.text import Text

        shown = self._columns if width is None else self._that_fit(width)
        widths = self._widths if width is None else self._cut(shown, width)
        below = [column for column in self._columns if column.below and column not in shown]
        lines = [Text(self._title, "bold")] if self._title else []
        if any(column.name for column in shown):
            names = {column: Text(column.name, "dim") for column in shown}
            lines.append(_line(names, shown, widths))
        for row in self._rows:
            lines.append(_line(row, shown, widths))
            lines += [_note(row[column], width) for column in below if row[column]]
        return Text("\n").join(lines)

    def _that_fit(self, width: int) -> list[Column]:
        natural = self._widths
        least = {
            column: min(natural[column], column.least or natural[column]) for column in natural
        }
        above = {column: (least if column.below else natural)[column] for column in natural}
        shown = [*self._columns]
        if _total(above[column] for column in shown) > width:
            shown = [column for column in shown if not column.below]
        shown = _without_the_dispensable(shown, above, width, spare=True)
        return _without_the_dispensable(shown, least, width, spare=False)

    def _cut(self, shown: Sequence[Column], width: int) -> Mapping[Column, int]:
        widths = {column: self._widths[column] for column in shown}
        for column in reversed(shown):
            excess = _total(widths.values()) - width
            if excess > 0 and column.least:
                widths[column] = max(widths[column] - excess, min(widths[column], column.least))
        return widths

    def _natural(self, column: Column) -> int:
        return max(len(column.name), *(row[column].cell_len for row in self._rows), 0)

    def _fills(self, column: Column) -> bool:
        return any(row[column] for row in self._rows)


def plain(text: str) -> str:
    """Return text as one line without control characters, whatever a run put into it."""
    return "".join(
        char if char.isprintable() else " " if char.isspace() else ascii(char)[1:-1]
        for char in text
    )


def plain_lines(text: str) -> str:
    """Return text of several lines without other control characters."""
    return "\n".join(map(plain, text.split("\n")))


def _total(widths: Iterable[int]) -> int:
    return sum(width + _GAP for width in widths) - _GAP


def _without_the_dispensable(
    shown: Sequence[Column], widths: Mapping[Column, int], width: int, *, spare: bool
) -> list[Column]:
    left = [*shown]
    while _total(widths[column] for column in left) > width:
        ranks = [column.dispensable for column in left if column.spare or not spare]
        if not any(ranks):
            break
        left = [column for column in left if column.dispensable != max(ranks)]
    return left


def _line(
    cells: Mapping[Column, Text], shown: Sequence[Column], widths: Mapping[Column, int]
) -> Text:
    from rich.text import Text

    line = Text()
    for column in shown:
        cell = cells[column].copy()
        cell.truncate(widths[column], overflow="ellipsis")
        room = " " * (widths[column] - cell.cell_len)
        gap = " " * _GAP if line else ""
        line = Text.assemble(line, gap, room if column.number else "", cell)
        line.append("" if column.number else room)
    line.rstrip()
    return line


def _note(cell: Text, width: int | None) -> Text:
    from rich.text import Text

    note = Text.assemble(" " * _INDENT, cell)
    if width is not None:
        note.truncate(width, overflow="ellipsis")
    return note


def _cell(value: object) -> Any:
    from rich.text import Text

    if isinstance(value, Text):
        return value
    return Text("" if value is None else plain(str(value)))
