from __future__ import annotations

import argparse
import asyncio
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Final

from perdure.cli import (
    answer,
    approvals,
    change,
    check,
    demo,
    doctor,
    effects,
    erase,
    export,
    fork,
    gc,
    key,
    queues,
    reencrypt,
    runs,
    schedules,
    send,
    serve,
    sessions,
    show,
    sidecar,
    start,
    token,
    worker,
)
from perdure.cli.exits import Exit, exit_of
from perdure.cli.parser import build_parser
from perdure.cli.place import place_of
from perdure.cli.screen import Screen
from perdure.cli.typed import check_text
from perdure.errors import PerdureError

Command = Callable[[argparse.Namespace, Screen], Awaitable[Exit]]

_COMMANDS: Final[dict[str, Command]] = {
    "answer": answer.answer,
    "approvals": approvals.approvals,
    "approve": answer.approve,
    "cancel": change.cancel,
    "check": check.check,
    "demo": demo.demo,
    "deny": answer.deny,
    "doctor": doctor.doctor,
    "effects": effects.effects,
    "erase": erase.erase,
    "export": export.export,
    "fork": fork.fork,
    "gc": gc.gc,
    "import": export.take,
    "key": key.key,
    "queues": queues.QUEUES.run,
    "reencrypt": reencrypt.reencrypt_all,
    "resume": change.resume,
    "runs": runs.runs,
    "schedules": schedules.SCHEDULES.run,
    "send": send.send,
    "sessions": sessions.sessions,
    "serve": serve.serve,
    "show": show.show,
    "sidecar": sidecar.serve,
    "start": start.start,
    "token": token.token,
    "worker": worker.work,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    words = sys.argv[1:] if argv is None else [*argv]
    # Asked for by hand, because what cannot be parsed is reported as a document as well.
    screen = Screen(as_json="--json" in words)
    try:
        return int(_run(words, screen))
    except PerdureError as error:
        code = exit_of(error)
        screen.error(error, code)
        return int(code)
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read the output has gone; what is still buffered must not raise at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.OK)
    except Exception:  # noqa: BLE001 - the boundary of the process: a bug gets a code of its own
        traceback.print_exc()
        return int(Exit.BUG)
    finally:
        screen.close()


def _run(words: Sequence[str], screen: Screen) -> Exit:
    check_text(words)
    parser = build_parser()
    try:
        options = parser.parse_args(words)
    except SystemExit:  # after --help
        return Exit.OK
    if options.version is True:
        screen.line(f"perdure {version('perdure')}")
        return Exit.OK
    if options.command is None:
        parser.print_help()
        return Exit.USAGE
    screen.place = place_of(options)
    return asyncio.run(_command(options, screen))


async def _command(options: argparse.Namespace, screen: Screen) -> Exit:
    return await _COMMANDS[options.command](options, screen)
