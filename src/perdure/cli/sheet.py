from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from rich.table import Table

_GAP: Final = 2
_ELASTIC_CHARACTERS: Final = 12


class Column(msgspec.Struct, frozen=True):
    """A column of a sheet.

    `number` aligns it to the right. An `elastic` one is cut to what room is left. Those with the
    highest `dispensable` are left out first where a terminal is too narrow; 0 is never left out.
    """

    name: str
    number: bool = False
    elastic: bool = False
    dispensable: int = 0


class Sheet:
    """A table that fits the terminal that it is shown on; cells are text of rich, or anything."""

    def __init__(
        self, title: str, columns: Sequence[Column], rows: Iterable[Iterable[object]]
    ) -> None:
        self._title = title
        self._columns = columns
        self._rows = [[_cell(value) for value in row] for row in rows]

    def fitted(self, width: int | None) -> Table:
        """Return the table for a terminal of so many characters; None shows everything."""
        from rich.table import Table

        shown = self._columns if width is None else self._that_fit(width)
        table = Table(title=self._title or None, title_justify="left", box=None, pad_edge=False)
        table.title_style = "bold"
        table.header_style = "dim"
        table.show_header = any(column.name for column in shown)
        table.padding = (0, _GAP, 0, 0)
        for column in shown:
            table.add_column(
                column.name,
                justify="right" if column.number else "left",
                no_wrap=True,
                overflow="ellipsis",
                min_width=None if column.elastic else self._width(column),
            )
        places = [self._columns.index(column) for column in shown]
        for row in self._rows:
            table.add_row(*(row[place] for place in places))
        return table

    def _that_fit(self, width: int) -> list[Column]:
        shown = [*self._columns]
        while sum(self._width(column) + _GAP for column in shown) - _GAP > width:
            most = max(shown, key=lambda column: column.dispensable)
            if not most.dispensable:
                break
            shown.remove(most)
        return shown

    def _width(self, column: Column) -> int:
        if column.elastic:
            return _ELASTIC_CHARACTERS
        place = self._columns.index(column)
        return max(len(column.name), *(row[place].cell_len for row in self._rows), 0)


def plain(text: str) -> str:
    """Return text as one line without control characters, whatever a run put into it."""
    return "".join(
        char if char.isprintable() else " " if char.isspace() else ascii(char)[1:-1]
        for char in text
    )


def _cell(value: object) -> Any:
    from rich.text import Text

    if isinstance(value, Text):
        return value
    return Text("" if value is None else plain(str(value)))
