from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from perdure.cli.parser import KILL_POINTS
from perdure.cli.screen import Screen
from perdure.cli.sheet import plain

if TYPE_CHECKING:
    from rich.console import Console

    from perdure.demo.report import Moment

_STYLES: Final = {"asked": "cyan", "returned": "green", "killed": "bold red"}


class Stage:
    """Shows a demo while it happens; on a terminal text appears as it arrives.

    Used as a context manager, around what is shown. Shows nothing when JSON is wanted.
    """

    def __init__(self, screen: Screen) -> None:
        self._console: Console | None = None if screen.as_json else screen.console()
        self._screen = screen
        self._open = ExitStack()
        self._text = ""
        self._worker = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._open.close()
        self._end_text()

    def open(self, question: str, point: str) -> None:
        """Say what is going to happen."""
        what = "not killed at all" if point == "none" else f"killed {KILL_POINTS[point]}"
        self._line(f"A refund agent, {what}.", "bold")
        self._line(f"customer: {question}")
        if self._live:
            assert self._console is not None
            self._open.enter_context(self._console.status("loading the worker processes"))
        else:
            self._line("loading the worker processes")

    def show(self, moment: Moment) -> None:
        """Show what a worker reports."""
        report = moment.report
        if report.what == "ready":
            return
        self._open.close()
        if moment.worker != self._worker:
            self._worker = moment.worker
            self._line(f"\nworker {moment.worker} (pid {moment.pid})", "bold")
        if report.what == "said":
            self._say(report.text)
            return
        self._end_text()
        match report.what:
            case "asked":
                self._line(f"  asks the model, request {report.number}", _STYLES["asked"])
            case "called":
                self._line(f"    calls {report.text}")
            case "returned":
                self._line(f"    {report.text} is done", _STYLES["returned"])
            case "killed":
                self._line(f"  killed by signal {-report.number}", _STYLES["killed"])
            case "finished":
                replayed = f"{report.number} operations were answered from the journal"
                self._line(f"  finished: {replayed}", "bold green")
            case "failed":
                self._line(f"  {report.text}", "bold red")
            case _:
                pass

    @property
    def _live(self) -> bool:
        return self._console is not None and self._console.is_terminal

    def _line(self, text: str, style: str = "") -> None:
        if self._live:
            assert self._console is not None
            self._console.print("\n".join(map(plain, text.split("\n"))), style=style)
        else:
            self._screen.line(text)

    def _say(self, text: str) -> None:
        if self._live:
            assert self._console is not None
            self._console.print(
                ("" if self._text else "    ") + plain(text), end="", soft_wrap=True
            )
        self._text += text

    def _end_text(self) -> None:
        text, self._text = self._text, ""
        if not text:
            return
        if self._live:
            assert self._console is not None
            self._console.print()
        else:
            self._line(f"    {text}")
