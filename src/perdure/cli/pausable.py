from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from perdure.app import App
from perdure.cli.exits import Exit
from perdure.cli.screen import Screen
from perdure.cli.sheet import Column, Sheet
from perdure.cli.target import looked_into

R = TypeVar("R")


class Pausable(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """A command that lists what may be paused and resumed by its name.

    `noun` is what people call one, and the command its plural; `pauses` and `resumes` say what
    that means for one.
    """

    noun: str
    lists: str
    pauses: str
    resumes: str
    columns: Sequence[Column]
    rows: Callable[[App], Awaitable[Sequence[R]]]
    pause: Callable[[App, str], Awaitable[None]]
    resume: Callable[[App, str], Awaitable[None]]
    describe: Callable[[R], dict[str, Any]]
    cells: Callable[[R], tuple[object, ...]]

    def add(self, commands: Any, add: Callable[..., Any]) -> None:
        """Add the command and its options to the command line."""
        command = add(commands, f"{self.noun}s", self.lists, store=True)
        below = command.add_subparsers(dest="change", metavar="COMMAND")
        for name, what in (("pause", self.pauses), ("resume", self.resumes)):
            change = add(below, name, what, store=True, below=True)
            change.add_argument("name", metavar="NAME", help=f"the {self.noun}'s name")

    async def run(self, options: argparse.Namespace, screen: Screen) -> Exit:
        """List them, or pause or resume one."""
        if options.change is None:
            screen.need_tables()
        async with looked_into(options) as app:
            match options.change:
                case "pause":
                    await self.pause(app, options.name)
                case "resume":
                    await self.resume(app, options.name)
                case _:
                    return self._list(await self.rows(app), screen)
            described = [self.describe(row) for row in await self.rows(app)]
        (found,) = [each for each in described if each["name"] == options.name]
        screen.document(found)
        screen.line(f"{self.noun} {options.name} {'is paused' if found['paused'] else 'goes on'}")
        return Exit.OK

    def _list(self, rows: Sequence[R], screen: Screen) -> Exit:
        screen.document({f"{self.noun}s": [self.describe(row) for row in rows]})
        if rows:
            screen.show(Sheet("", self.columns, map(self.cells, rows)))
        else:
            screen.line(f"no {self.noun}s: a worker writes those that its App declares")
        return Exit.OK
