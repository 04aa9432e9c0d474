"""Handlers of a sidecar: commands and functions, what they may do and what comes of it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.errors import InvalidFunction
from perdure.journal import Failure, Invocation, Success, Suspended, parse_record
from perdure.sidecar.command import Command
from perdure.sidecar.config import read_config
from perdure.sidecar.failures import HandlerFailed
from perdure.sidecar.handling import Perform, performers
from tests.harness import run
from tests.services import lacking
from tests.sidecars import COMMAND, TOOL, until

INVOCATION = Invocation("r1", "tools", 1, TOOL, "tools", '{"é":1}'.encode())


def of_command(
    *words: str, most: int = 100_000, environment: dict[str, str] | None = None
) -> Command:
    return Command(words, environment=environment or {}, most_bytes=most)


def python(source: str, **options: Any) -> Command:
    return of_command(sys.executable, "-I", "-c", source, **options)


def failing(command: Command, line: bytes = b"{}\n", seconds: float = 10.0) -> HandlerFailed:
    async def main() -> None:
        await command(line, seconds)

    with pytest.raises(HandlerFailed) as raised:
        run(main())
    return raised.value


def performer(setting: str, load: Any = None) -> Perform:
    text = f'task_queue = "q"\n[[handlers]]\nkind = "tool_call"\nid = "tools"\n{setting}\n'
    config = read_config(text, file="worker.toml")
    return performers(config, load=load or (lambda _: None), environment={})[TOOL, "tools"]


def test_a_command_gets_one_line_and_what_it_prints_is_the_record() -> None:
    perform = performer(f"command = {json.dumps(COMMAND)}")

    async def main() -> bytes:
        return await perform(INVOCATION, 10.0)

    record = parse_record(run(main()))
    assert (record.invocation, record.outcome) == (INVOCATION, Success(b'{"worker":"zigai"}'))


def test_the_program_and_the_records_of_the_page_are_what_a_sidecar_reads(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sidecar.md").read_text("utf-8")
    asked = msgspec.structs.replace(INVOCATION, input_json=b'{"order":"7"}')
    if (node := shutil.which("node")) is None:
        lacking("needs Node.js: install the dependency group services")
    program = tmp_path / "tools.js"
    program.write_text(page.split("```js\n")[1].split("```")[0], "utf-8")

    async def main() -> bytes:
        return await performer(f"command = {json.dumps([node, str(program)])}")(asked, 30.0)

    printed = run(main())
    assert parse_record(printed).outcome == Success(b'{"refunded":"7"}')
    whole = {k: v for k, v in json.loads(printed).items() if k not in {"status", "output_json"}}
    others = page.split("`output_json`:\n\n```json\n")[1].split("```")[0].splitlines()
    outcomes = [
        parse_record(json.dumps({**whole, **json.loads(o)}).encode()).outcome for o in others
    ]
    assert [type(outcome) for outcome in outcomes] == [Failure, Suspended]


@pytest.mark.parametrize(
    ("source", "name", "permanent", "says"),
    [
        ("import sys; sys.exit('no \\x1b luck')", "WorkerFailed", False, "ended with code 1: no"),
        ("import sys; sys.exit(7)", "WorkerFailed", False, "code 7: it said nothing"),
        ("import os; os.kill(os.getpid(), 9)", "WorkerFailed", False, "killed by signal 9"),
        ("print('x' * 200_000)", "WorkerOutputTooLarge", True, "more than 100000 bytes"),
        ("while True: print('x' * 1000)", "WorkerOutputTooLarge", True, "more than 100000 bytes"),
        ("import time; time.sleep(60)", "WorkerTimedOut", False, "more than 0.5 seconds"),
    ],
    ids=["message", "code", "signal", "much", "endless", "time"],
)
def test_what_a_command_may_not_do_is_said(
    source: str, name: str, permanent: bool, says: str
) -> None:
    failed = failing(python(source), seconds=0.5 if name == "WorkerTimedOut" else 10.0)
    assert (failed.name, failed.permanent) == (name, permanent)
    assert says in str(failed)


def test_a_command_that_cannot_be_started_may_be_there_later() -> None:
    failed = failing(of_command("there-is-no-such-program"))
    assert (failed.name, failed.permanent) == ("WorkerNotStarted", False)
    assert "there-is-no-such-program" in str(failed)


def test_a_command_may_write_much_to_stderr_and_read_nothing() -> None:
    source = "import sys; sys.stderr.write('x' * 1_000_000); print('done', end='')"

    async def main() -> bytes:
        return await python(source)(b"y" * 2_000_000, 10.0)

    assert run(main()) == b"done"


@pytest.mark.parametrize("ends", ["time", "cancel", "exit"])
def test_what_a_command_leaves_behind_is_killed_with_it(ends: str, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    os.mkfifo(pid)
    leave = (
        "import os, subprocess, sys, time;"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
        " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL);"
        f"open({str(pid)!r}, 'w').write(str(child.pid))"
    )
    command = python(leave if ends == "exit" else f"{leave}; time.sleep(60)")

    async def main() -> None:
        task = asyncio.create_task(command(b"\n", 2.0 if ends == "time" else 60.0))
        child = int(await asyncio.to_thread(pid.read_text))
        if ends == "cancel":
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not alive(child))

    run(main())


@pytest.mark.parametrize("leaves", ["", "setsid"], ids=["in its session", "in another"])
def test_a_command_that_has_ended_is_not_waited_for_whoever_has_its_pipes(leaves: str) -> None:
    command = of_command(
        *("sh", "-c", f"{leaves} sleep 60 & echo $!"), environment={"PATH": os.environ["PATH"]}
    )

    async def main() -> None:
        child = int(await command(b"\n", 30.0))
        if leaves:
            os.kill(child, signal.SIGKILL)
        await until(lambda: not alive(child))

    run(main())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_command_has_the_environment_that_it_is_given_and_no_more() -> None:
    async def main() -> bytes:
        source = "import os; print(sorted(os.environ), end='')"
        return await python(source, environment={"A": "1", "LC_ALL": "C"})(b"", 10.0)

    assert b"'A'" in (found := run(main()))
    assert b"PATH" not in found
    assert b"HOME" not in found


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("{}", "InvalidRecord"),
        ("", "InvalidRecord"),
        ("no json", "InvalidRecord"),
        ("not utf-8", "InvalidRecord"),
        ("two records", "InvalidRecord"),
        ("record of other", "RuntimeRecordMismatch"),
    ],
)
def test_what_is_no_record_of_this_operation_fails_for_good(printed: str, name: str) -> None:
    other = COMMAND[-1].replace(
        '"invocation": invocation', '"invocation": {**invocation, "sequence": 2}'
    )
    sources = {
        "record of other": other,
        "two records": f"{COMMAND[-1]}\nsys.stdout.write('{{}}')",
        "not utf-8": "import sys; sys.stdout.buffer.write(b'\\xff')",
    }
    source = sources.get(printed, f"print({printed!r})")
    perform = performer(f"command = {json.dumps([sys.executable, '-I', '-c', source])}")

    async def main() -> None:
        await perform(INVOCATION, 10.0)

    with pytest.raises(HandlerFailed) as raised:
        run(main())
    assert (raised.value.name, raised.value.permanent) == (name, True)


async def answer(invocation: Invocation) -> Success:
    return Success(invocation.input_json)


async def fail(invocation: Invocation) -> Success:
    raise LookupError("no such book")


async def leave(invocation: Invocation) -> Success:
    sys.exit("enough")


async def stop(invocation: Invocation) -> Success:
    raise asyncio.CancelledError


async def garble(invocation: Invocation) -> Success:
    return Success(b"{")


async def wait(invocation: Invocation) -> Success:
    await asyncio.Event().wait()
    raise AssertionError


def by_function(function: Any, seconds: float = 10.0) -> Any:
    perform = performer('function = "shop.tools:refund"', lambda _: function)

    async def main() -> bytes:
        return await perform(INVOCATION, seconds)

    return parse_record(run(main())).outcome


def test_a_function_answers_with_its_outcome_or_what_it_raises() -> None:
    assert by_function(answer) == Success(INVOCATION.input_json)
    assert by_function(fail) == Failure("LookupError")
    assert by_function(leave) == Failure("SystemExit")
    assert by_function(stop) == Failure("CancelledError")
    with pytest.raises(HandlerFailed, match="JSON") as raised:
        by_function(garble)
    assert (raised.value.name, raised.value.permanent) == ("InvalidPayload", True)
    with pytest.raises(HandlerFailed) as late:
        by_function(wait, 0.01)
    assert (late.value.name, late.value.permanent) == ("WorkerTimedOut", False)


def test_the_time_limit_of_a_handler_bounds_that_of_a_request() -> None:
    setting = 'function = "shop.tools:refund"\ntime_limit_seconds = 0.01'
    perform = performer(setting, lambda _: wait)

    async def main() -> None:
        await perform(INVOCATION, 10.0)

    with pytest.raises(HandlerFailed, match=r"0\.01"):
        run(main())


def test_an_ordinary_function_is_refused() -> None:
    with pytest.raises(InvalidFunction, match="async def"):
        performer('function = "shop.tools:refund"', lambda _: len)
