from __future__ import annotations

import argparse
from contextlib import suppress
from typing import Any, Final, NoReturn

from perdure.cli.answer import add_answers
from perdure.cli.approvals import add_approvals
from perdure.cli.erase import add_erase
from perdure.cli.exits import MEANINGS
from perdure.cli.fork import add_fork
from perdure.cli.key import add_key
from perdure.cli.queues import QUEUES
from perdure.cli.reencrypt import add_reencrypt
from perdure.cli.schedules import SCHEDULES
from perdure.cli.send import add_send
from perdure.cli.serve import add_serve, port
from perdure.cli.sessions import add_sessions
from perdure.cli.sidecar import add_sidecar
from perdure.cli.target import KEY_FILE_VARIABLE, URL_VARIABLE
from perdure.cli.token import add_token
from perdure.cli.typed import positive
from perdure.engine.retention import Retention
from perdure.engine.store import RunState
from perdure.errors import CommandError

KILL_POINTS: Final = {
    "model-stream": "in the middle of the streamed answer, after the tools have run",
    "before-tools": "after the model asked for tools, before any of them has run",
    "in-tool": "inside the refund tool, after the shop paid and before that was recorded",
    "mcp": "while the MCP server's answer is not recorded yet",
    "after-tools": "after the last tool, before the model is asked again",
    "none": "nowhere: the same turn without a kill",
}
"""Where `perdure demo` can kill its worker."""

SUPPORTS: Final = {
    "outcome-queryable": "the shop can be asked what became of a refund",
    "idempotent": "the shop knows a repeat by its operation key, and pays once",
    "at-least-once": "the shop can neither be asked nor tell a repeat: a person looks at its book",
}
"""What the shop of `perdure demo` can do about a refund that was cut short."""

_TARGET: Final = "the App to load, as module:attribute, such as shop.agents:app"


class Parser(argparse.ArgumentParser):
    """Raises what it has to object to, so that it is reported as every other error is."""

    def error(self, message: str) -> NoReturn:
        """Raise `CommandError`; nothing is printed and the process goes on."""
        raise CommandError(f"{message}; see {self.prog} --help")

    def parse_known_args(self, *args: Any, **named: Any) -> tuple[Any, list[str]]:
        """Object to what is unknown in the name of the command that it was typed for."""
        parsed, unknown = super().parse_known_args(*args, **named)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown


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
    add_serve(commands, _add)
    add_token(commands, _add)
    add_sidecar(commands, _add)
    _add_start(commands)
    _add_check(commands)
    _add_gc(commands)
    add_key(commands, _add)
    add_reencrypt(commands, _add)
    SCHEDULES.add(commands, _add)
    QUEUES.add(commands, _add)
    add_sessions(commands, _add)
    runs = _add(commands, "runs", "list runs, newest first", store=True)
    states = [state.value for state in RunState]
    runs.add_argument("--state", choices=states, help="only runs in this state")
    runs.add_argument("--limit", type=positive(int), default=20, help="at most N (20)", metavar="N")
    for name, what in (
        ("show", "show a run: its attempts and the timeline of its operations"),
        ("cancel", "end runs; a worker that executes one is told"),
        (
            "resume",
            "let runs that failed or need attention go on, after their cause was mended",
        ),
    ):
        command = _add(commands, name, what, store=True)
        if name == "show":
            command.add_argument("run_id", metavar="RUN", help="the run's id")
            command.add_argument(
                "--operation",
                metavar="STEP/SEQ",
                help="show this operation whole: what went in and what came of it",
            )
        else:
            command.add_argument("run_ids", metavar="RUN", nargs="+", help="the id of a run")
        if name == "resume":
            command.add_argument(
                "--anyway",
                action="store_true",
                help="although it waits for an effect to be settled, for code that was changed",
            )
    add_approvals(commands, _add)
    add_answers(commands, _add)
    add_send(commands, _add)
    add_fork(commands, _add)
    add_erase(commands, _add)
    _add_archive(commands)
    _add_effects(commands)
    _add(commands, "doctor", "check the database, its workers and its runs", store=True)
    return parser


def _add_archive(commands: Any) -> None:
    what = "write all that the database holds of a run to a file, for import; it is plaintext"
    export = _add(commands, "export", what, store=True)
    export.add_argument("run_id", metavar="RUN", help="the run's id")
    export.add_argument("-o", "--output", metavar="FILE", help="the file to write (stdout)")
    what = "write a run that was exported to the database, which is made if there is none"
    take = _add(commands, "import", what, store=True)
    take.add_argument("file", metavar="FILE", help="what export wrote; - reads stdin")
    take.add_argument(
        "--go-on",
        action="store_true",
        help="let `resume` take up a run that was cancelled before it was exported",
    )


def _add_demo(commands: Any) -> None:
    points = "\n".join(f"  {name:<18} {what}" for name, what in KILL_POINTS.items())
    supports = "\n".join(f"  {name:<18} {what}" for name, what in SUPPORTS.items())
    demo = _add(
        commands,
        "demo",
        "kill an agent's process in the middle of a turn and watch another finish it",
        epilog=f"kill points:\n{points}\n\nwhat the shop can do:\n{supports}",
    )
    demo.add_argument(
        "--kill-at",
        choices=KILL_POINTS,
        metavar="POINT",
        help="where the worker is killed (in-tool)",
    )
    demo.add_argument(
        "--support",
        type=lambda text: text.replace("_", "-"),
        choices=SUPPORTS,
        metavar="SUPPORT",
        help="what the shop can do about a repeated refund (outcome-queryable)",
    )
    demo.add_argument(
        "--model",
        metavar="PROVIDER:NAME",
        help="ask a real model, such as openai:gpt-5, instead of the scripted one",
    )
    demo.add_argument("--keep", metavar="DIR", help="write everything to DIR and leave it there")
    demo.add_argument(
        "--no-settle",
        action="store_true",
        help="with --keep and at-least-once: stop where a person has to say, and let that be you",
    )
    demo.add_argument(
        "--resume", metavar="DIR", help="finish the turn that --no-settle left in DIR"
    )
    demo.add_argument(
        "--chat",
        action="store_true",
        help="chat with the agent on a page, and kill its worker there",
    )
    demo.add_argument(
        "--port", type=port, default=0, metavar="N", help="with --chat: the port of the page (any)"
    )
    demo.add_argument("--no-open", action="store_true", help="with --chat: open no browser")


def _add_worker(commands: Any) -> None:
    worker = _add(commands, "worker", "execute the runs of an App until it is told to stop")
    worker.add_argument("target", metavar="MODULE:APP", help=_TARGET)
    worker.add_argument("--name", help="the name that timelines show")
    worker.add_argument(
        "--concurrency", type=positive(int), metavar="N", help="at most N runs at once"
    )
    worker.add_argument(
        "--lease-seconds",
        type=positive(float),
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
        "--version", type=positive(int), metavar="N", help="the function's version (the newest)"
    )
    start.add_argument(
        "--deadline",
        dest="deadline_seconds",
        type=positive(float),
        metavar="SECONDS",
        help="how long it may take from now on, waits included; then it fails",
    )
    start.add_argument("--queue", metavar="NAME", help="the queue that it waits in (none)")
    start.add_argument("--key", metavar="KEY", help="what the queue bounds by itself, if it does")
    start.add_argument(
        "--priority",
        type=int,
        default=0,
        metavar="N",
        help="those with a higher one are claimed first (0)",
    )
    start.add_argument("--wait", action="store_true", help="wait for the result and print it")


def _add_check(commands: Any) -> None:
    check = _add(
        commands,
        "check",
        "replay stored runs against the code as it is now, performing nothing; for CI",
    )
    check.add_argument("target", metavar="MODULE:APP", help=_TARGET)
    check.add_argument(
        "--run",
        action="append",
        metavar="RUN",
        help="this run; again for more (all that are open and the newest others)",
    )
    check.add_argument(
        "--limit",
        type=positive(int),
        default=100,
        help="at most N of each state (100)",
        metavar="N",
    )
    check.add_argument("--open", action="store_true", help="open runs only, for deployments")
    check.add_argument("--all", action="store_true", help="list those that match, too")


def _add_gc(commands: Any) -> None:
    gc = _add(commands, "gc", "delete what is over for longer than it is kept", store=True)
    kept = Retention()
    for name, what in (
        ("runs", "runs, from their end"),
        ("receipts", "receipts of effects, from their settlement"),
        ("tombstones", "tombstones of erased receipts"),
        ("audit", "audit records in the database"),
        ("workers", "workers that are gone"),
        ("sessions", "messages of sessions, from the last one"),
    ):
        days = getattr(kept, f"{name}_days")
        default = "forever" if days is None else f"{days:g}"
        gc.add_argument(
            f"--{name}-days",
            type=_days,
            default=default,
            metavar="N",
            help=f"keep {what} for N days, or forever ({default})",
        )
    gc.add_argument("--dry-run", action="store_true", help="only say what would be deleted")


def _days(text: str) -> float | None:
    with suppress(ValueError):
        if text == "forever" or float(text) >= 0:
            return None if text == "forever" else float(text)
    raise argparse.ArgumentTypeError("it is 0 or more days, or forever")


def _add_effects(commands: Any) -> None:
    effects = _add(
        commands, "effects", "list the effects of which nobody knows what became", store=True
    )
    effects.add_argument("--all", action="store_true", help="every effect that has a receipt")
    effects.add_argument("--run", metavar="RUN", help="only effects of this run")
    effects.add_argument(
        "--limit", type=positive(int), default=20, help="at most N (20)", metavar="N"
    )
    below = effects.add_subparsers(dest="effects_command", metavar="COMMAND")
    key: Final = "the effect's key, or its beginning of 8 characters or more"
    show = _add(below, "show", "show everything known of an effect", store=True, below=True)
    show.add_argument("key", metavar="KEY", help=key)
    settle = _add(
        below, "settle", "decide about an effect of which nobody knows", store=True, below=True
    )
    # What is missing is named by the command, all of it at once.
    settle.usage = (
        "%(prog)s KEY (--landed JSON | --did-not-land | --retry) --why TEXT --expect-version N"
        " [--by NAME] [--url URL | --app MODULE:APP] [--json]"
    )
    settle.add_argument("key", nargs="?", metavar="KEY", help=key)
    _add_decision(settle)
    watch = _add(below, "watch", "tell of every change of a receipt", store=True, below=True)
    watch.add_argument(
        "--run", metavar="RUN", default=argparse.SUPPRESS, help="only effects of this run"
    )
    watch.add_argument(
        "--for",
        dest="seconds",
        type=positive(float),
        metavar="SECONDS",
        help="end after so many seconds instead of at Ctrl-C",
    )


def _add_decision(settle: Parser) -> None:
    decision = settle.add_mutually_exclusive_group()
    decision.add_argument(
        "--landed", metavar="JSON", help="it was applied, and this is the answer; - reads stdin"
    )
    decision.add_argument(
        "--did-not-land", action="store_true", help="it was not applied and never will be"
    )
    decision.add_argument(
        "--retry", action="store_true", help="send it again, although it may have been applied"
    )
    settle.add_argument("--why", metavar="TEXT", help="how this is known; kept with the decision")
    settle.add_argument(
        "--expect-version",
        type=positive(int),
        metavar="N",
        help="the version of the receipt that was looked at",
    )
    settle.add_argument("--by", metavar="NAME", help="who decides (the login name)")


def _add(
    commands: Any,
    name: str,
    what: str,
    *,
    store: bool = False,
    below: bool = False,
    epilog: str | None = None,
) -> Parser:
    parser: Parser = commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # Below a command that takes the same options, one that is not typed must not unset them.
    unset = argparse.SUPPRESS if below else None
    if store:
        where = parser.add_mutually_exclusive_group()
        where.add_argument(
            "--url",
            default=unset,
            help=f"the database, such as sqlite:///runs.db ({URL_VARIABLE})",
        )
        where.add_argument(
            "--app", metavar="MODULE:APP", default=unset, help="the database of this App"
        )
        parser.add_argument(
            "--key-file",
            metavar="FILE",
            default=unset,
            help=f"the keys of an encrypted database ({KEY_FILE_VARIABLE})",
        )
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS if below else False,
        help="write one JSON document instead",
    )
    return parser


def _epilog() -> str:
    codes = "\n".join(f"  {code.value:<4} {what}" for code, what in MEANINGS.items())
    return f"times are UTC\n\nexit codes:\n{codes}"
