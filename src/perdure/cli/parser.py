from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final, NoReturn

from perdure.cli.exits import MEANINGS
from perdure.cli.target import URL_VARIABLE
from perdure.engine.store import RunState
from perdure.errors import CommandError

KILL_POINTS: Final = {
    "model-stream": "in the middle of the streamed answer, after the tools have run",
    "before-tools": "after the model asked for tools, before any of them has run",
    "in-tool": "inside the refund tool, after it wrote and before that was recorded",
    "mcp": "while the MCP server's answer is not recorded yet",
    "after-tools": "after the last tool, before the model is asked again",
    "none": "nowhere: the same turn without a kill",
}
"""Where `perdure demo` can kill its worker."""

_TARGET: Final = "the App to load, as module:attribute, such as shop.agents:app"


class Parser(argparse.ArgumentParser):
    """Raises what it has to object to, so that it is reported as every other error is."""

    def error(self, message: str) -> NoReturn:
        """Raise `CommandError`; nothing is printed and the process goes on."""
        raise CommandError(f"{message}; see {self.prog} --help")


def build_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(
        prog="perdure",
        description="Durable AI agents: start runs, execute them, and see what became of them.",
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_demo(commands)
    _add_worker(commands)
    _add_start(commands)
    runs = _add(commands, "runs", "list runs, newest first", store=True)
    states = [state.value for state in RunState]
    runs.add_argument("--state", choices=states, help="only runs in this state")
    runs.add_argument(
        "--limit", type=_positive(int), default=20, help="at most N (20)", metavar="N"
    )
    for name, what in (
        ("show", "show a run: its attempts and the timeline of its operations"),
        ("cancel", "end a run; its worker is told, if one executes it"),
        (
            "resume",
            "let a run that failed or needs attention go on, after its cause was mended",
        ),
    ):
        command = _add(commands, name, what, store=True)
        command.add_argument("run_id", metavar="RUN", help="the run's id")
        if name == "show":
            command.add_argument(
                "--operation",
                metavar="STEP/SEQ",
                help="show this operation whole: what went in and what came of it",
            )
    _add(commands, "doctor", "check the database, its workers and its runs", store=True)
    return parser


def _add_demo(commands: Any) -> None:
    points = "\n".join(f"  {name:<13} {what}" for name, what in KILL_POINTS.items())
    demo = _add(
        commands,
        "demo",
        "kill an agent's process in the middle of a turn and watch another finish it",
        epilog=f"kill points:\n{points}",
    )
    demo.add_argument(
        "--kill-at",
        choices=KILL_POINTS,
        default="model-stream",
        metavar="POINT",
        help="where the worker is killed (model-stream)",
    )
    demo.add_argument(
        "--model",
        metavar="PROVIDER:NAME",
        help="ask a real model, such as openai:gpt-5, instead of the scripted one",
    )
    demo.add_argument("--keep", metavar="DIR", help="write everything to DIR and leave it there")


def _add_worker(commands: Any) -> None:
    worker = _add(commands, "worker", "execute the runs of an App until it is told to stop")
    worker.add_argument("target", metavar="MODULE:APP", help=_TARGET)
    worker.add_argument("--name", help="the name that timelines show")
    worker.add_argument(
        "--concurrency", type=_positive(int), metavar="N", help="at most N runs at once"
    )
    worker.add_argument(
        "--lease-seconds",
        type=_positive(float),
        metavar="S",
        help="how long runs stay this worker's when it stops answering without dying",
    )
    worker.add_argument("--quiet", action="store_true", help="log warnings and errors only")


def _add_start(commands: Any) -> None:
    start = _add(commands, "start", "start a run; a worker executes it")
    start.add_argument("target", metavar="MODULE:APP", help=_TARGET)
    start.add_argument("function", metavar="FUNCTION", help="the name of the run function")
    start.add_argument(
        "input", nargs="?", metavar="JSON", help="its input, if it takes one; - reads it from stdin"
    )
    start.add_argument(
        "--id", dest="run_id", help="the run's id: the same id and input are the same run"
    )
    start.add_argument(
        "--version", type=_positive(int), metavar="N", help="the function's version (the newest)"
    )
    start.add_argument("--wait", action="store_true", help="wait for the result and print it")


def _add(
    commands: Any, name: str, what: str, *, store: bool = False, epilog: str | None = None
) -> Parser:
    parser: Parser = commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if store:
        where = parser.add_mutually_exclusive_group()
        where.add_argument(
            "--url", help=f"the database, such as sqlite:///runs.db ({URL_VARIABLE})"
        )
        where.add_argument("--app", metavar="MODULE:APP", help="the database of this App")
    parser.add_argument("--json", action="store_true", help="write one JSON document instead")
    return parser


def _positive(kind: type[int | float]) -> Callable[[str], int | float]:
    def read(text: str) -> int | float:
        try:
            number = kind(text)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
        return number

    return read


def _epilog() -> str:
    codes = "\n".join(f"  {code.value:<4} {what}" for code, what in MEANINGS.items())
    return f"times are UTC\n\nexit codes:\n{codes}"
