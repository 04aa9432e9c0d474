from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from perdure.cli.screen import Screen
from perdure.cli.sheet import plain
from perdure.cli.words import number_of

if TYPE_CHECKING:
    from rich.console import Console

    from perdure.demo.report import Moment, Report

_FORMS: Final = {
    "asked": "  asks the model, request {number}",
    "called": "    calls {text}",
    "returned": "    {text} is done",
    "paid": "    the shop pays {number} cents back; the receipt {key} is in flight",
    "dropped": "    sends it again as {key}: the shop knows the key, and pays nothing",
    "doubted": "    finds the receipt {key} in flight, and its worker gone: was it paid?",
    "landed": "    asks the shop for {key}: it landed, {number} cents; nothing is sent again",
    "missed": "    asks the shop for {key}: not there; sent again once it cannot arrive any more",
    "killed": "  killed by signal {signal}",
    "finished": "  finished: {operations} came from the journal",
    "failed": "  {text}",
    "parked": "  nobody can tell: the run is parked, and waits for a person",
}
_STYLES: Final = {
    "asked": "cyan",
    "returned": "green",
    "dropped": "bold green",
    "doubted": "bold yellow",
    "landed": "bold green",
    "missed": "bold yellow",
    "killed": "bold red",
    "finished": "bold green",
    "failed": "bold red",
    "parked": "bold yellow",
}
_KEY_SHOWN: Final = 15


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

    def open(self, title: str, question: str) -> None:
        """Say what is going to happen."""
        self._line(title, "bold")
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
        if told := _told(report):
            self._line(told, _STYLES.get(report.what, ""))

    def pause(self) -> None:
        """Let somebody else write; the next worker is then announced again."""
        self._end_text()
        self._worker = 0

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


def _told(report: Report) -> str:
    """Return what a report says as a line; empty for one that is shown otherwise or not at all."""
    form = _FORMS.get(report.what, "")
    key, number = report.text[:_KEY_SHOWN], report.number
    operations = number_of(number, "operation")
    return form.format(
        text=report.text, key=key, number=number, signal=-number, operations=operations
    )
