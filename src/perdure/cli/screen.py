from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

import msgspec

from perdure.cli.exits import Exit
from perdure.cli.place import HIDDEN, placed
from perdure.cli.sheet import Sheet, plain, plain_lines
from perdure.cli.target import URL_VARIABLE
from perdure.errors import MissingExtra, PerdureError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PLAIN_WIDTH: Final = 1000


class Screen:
    """Where a command writes: one JSON document, or text for people.

    Text for a terminal is laid out and coloured. Anywhere else it is plain lines, as wide as they
    need to be, without control characters. `place` are the options that name the database in
    commands, to be typed again.
    """

    place: str = ""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._hides = False
        for stream in (sys.stdout, sys.stderr):
            # A character that the terminal's encoding lacks must not end the command.
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="backslashreplace")

    def document(self, value: object) -> None:
        """Write a JSON document as one line of stdout; nothing when text is wanted."""
        if self.as_json:
            print(msgspec.json.encode(value).decode(), flush=True)

    def line(self, text: str = "") -> None:
        """Write text to stdout; nothing when JSON is wanted."""
        if not self.as_json:
            self._heed(text)
            print(plain_lines(text), flush=True)

    def note(self, text: str) -> None:
        """Write a line to stderr, for people who watch; nothing when JSON is wanted."""
        if not self.as_json:
            self._heed(text)
            print(plain(text), file=sys.stderr, flush=True)

    def error(self, error: PerdureError, code: Exit) -> None:
        """Say why the command failed and what to do."""
        self.document({"error": self.object_to(error, code)})

    def object_to(self, error: PerdureError, code: Exit) -> dict[str, str | int]:
        """Say what an error says, and return it as a part of a JSON document."""
        name, message = type(error).__name__, placed(str(error), self.place)
        self.note(f"perdure: {message}")
        return {"code": name, "message": message, "exit_code": int(code)}

    def close(self) -> None:
        """Say what is left out of the commands that were written, where that is a password."""
        if self._hides:
            self.note(
                f"{HIDDEN} stands for the password of the database: type it, or set {URL_VARIABLE}"
                " to the URL and leave --url out"
            )

    def _heed(self, text: str) -> None:
        self._hides |= HIDDEN in self.place and self.place in text

    def need_tables(self) -> None:
        """Raise `MissingExtra` when tables are wanted and there is no rich to make them."""
        if not self.as_json and importlib.util.find_spec("rich") is None:
            raise MissingExtra(
                "tables need rich: pip install 'perdure[cli]', or use --json, which does not"
            )

    def show(self, *parts: RenderableType | Sheet) -> None:
        """Write sheets and text of rich; nothing when JSON is wanted."""
        if self.as_json:
            return
        console = self.console()
        width = console.width if console.is_terminal else None
        with nullcontext() if width is not None else console.capture() as capture:
            for part in parts:
                self._heed(str(part.fitted(None) if isinstance(part, Sheet) else part))
                if isinstance(part, Sheet):
                    console.print(part.fitted(width), no_wrap=True, overflow="crop")
                else:
                    # A line of plain text may be a command, to be copied as one.
                    console.print(part, soft_wrap=width is None or isinstance(part, str))
        for line in capture.get().splitlines() if capture is not None else ():
            print(line.rstrip(), flush=True)

    @contextmanager
    def progress(self, what: str, total: int) -> Generator[Callable[[int], None]]:
        """Show on a terminal how far something has come; yields what tells of more of it."""
        if self.as_json or not sys.stderr.isatty():
            yield lambda _: None
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda more: bar.advance(task, more)

    def console(self) -> Console:
        """Return a console on stdout; raises `MissingExtra` without rich."""
        self.need_tables()
        from rich.console import Console

        width = None if sys.stdout.isatty() else _PLAIN_WIDTH
        return Console(width=width, highlight=False, markup=False, emoji=False)
