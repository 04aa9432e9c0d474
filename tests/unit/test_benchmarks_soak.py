"""How a soak ends: with counts, or with one reason and nothing left under way."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks.soak import command as soak_command
from benchmarks.soak.faults import Server, SoakFailed
from benchmarks.soak.run import Report, _first_failure, _insist
from benchmarks.soak.target import CountingTarget
from perdure.errors import RunConflict
from tests.harness import run


def test_the_first_failure_ends_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        ended: list[str] = []

        async def waiting() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("waiting")

        async def failing() -> None:
            raise SoakFailed("the server is gone")

        async def late() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise SoakFailed("this says nothing any more")

        tasks = [asyncio.create_task(work()) for work in (waiting, late, failing)]
        with pytest.raises(SoakFailed, match="the server is gone"):
            await _first_failure(tasks, 60.0)
        assert all(task.done() for task in tasks)
        with pytest.raises(SoakFailed, match="1 runs had not ended"):
            await _first_failure([asyncio.create_task(waiting())], 0.0)
        assert ended == ["waiting", "waiting"]

    run(main())
    assert caplog.text == ""


def test_a_target_that_closes_hangs_up_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        target = CountingTarget(random.Random(1))
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        port = await target.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b'{"do": "lo')
        await writer.drain()
        while not target._serving:
            await asyncio.sleep(0)
        await target.close()
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        assert (told, target._serving) == ([], set())

    run(main())
    assert caplog.text == ""


def test_a_server_that_does_not_come_back_is_told(tmp_path: Path) -> None:
    with pytest.raises(SoakFailed, match="could not be started"):
        run(Server(tmp_path / "data", str(tmp_path / "no-program")).restart())


def test_a_run_that_comes_to_something_else_is_told() -> None:
    class Other:
        async def start(self, name: str, *, run_id: str) -> None:
            raise RunConflict("it is another one")

    with pytest.raises(SoakFailed, match="run-1 came to something else: it is another one"):
        run(_insist(Other(), "run-1", Report()))


@pytest.mark.parametrize(
    ("report", "code", "lines"),
    [
        (Report(completed=3, effects=12), 0, ["runs completed: 3, effects applied: 12", "faults"]),
        (Report(wrong=["run-1 is failed"]), 1, ["runs", "faults", "WRONG: run-1 is failed"]),
        (Report(completed=3, failed="it is gone"), 1, ["FAILED after 3 runs: it is gone"]),
    ],
)
def test_the_command_says_what_happened(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    report: Report,
    code: int,
    lines: list[str],
) -> None:
    monkeypatch.setattr(soak_command, "soak", lambda plan: report)
    assert command.main(["soak"]) == code
    said = capsys.readouterr()
    shown = said.out.splitlines()
    assert len(shown) == len(lines)
    assert all(line.startswith(begins) for line, begins in zip(shown, lines, strict=True))
    assert said.err == ""
    assert logging.getLogger("perdure").level == logging.NOTSET
