from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import App, Context, operation
from perdure.storage.queries import load_migrations
from perdure.testing.crash import CrashPoints

_PROGRAM = """
import sys
from perdure.testing.crash import CrashAt
probe = CrashAt(*{arguments!r})
for point in ["commit.begin record call/1", "commit.done record call/1",
              "commit.begin record call/10", "commit.begin record call/1"]:
    print(point, flush=True)
    probe(point)
"""


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("commit.begin record call/1", 2), 4),
        (("commit.begin", 2), 3),
        (("commit.begin record call/10", 1), 3),
        (("", 2), 2),
    ],
)
def test_a_crash_kills_the_process_at_the_nth_time_of_its_point(
    arguments: tuple[str, int], printed: int
) -> None:
    program = _PROGRAM.format(arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL
    assert len(done.stdout.splitlines()) == printed


def test_a_point_that_is_not_passed_kills_nothing() -> None:
    program = _PROGRAM.format(arguments=("commit.begin", 4))
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_the_points_of_a_run_are_listed_whatever_shares_a_commit(tmp_path: Path) -> None:
    points = CrashPoints()
    app = App(f"sqlite:///{tmp_path}/runs.db", probe=points)

    @app.run(version=1)
    async def double(context: Context) -> list[int]:
        return await asyncio.gather(*(context.call(twice, number) for number in range(2)))

    @operation(read_only=True)
    async def twice(number: int) -> int:
        return number * 2

    assert app.run_sync(double) == [0, 2]
    recorded = {"record call/1", "record call/2"}
    operations = {"call/1", "call/2"}
    written = {
        *(f"migrate {number}" for number, _ in load_migrations("sqlite")),
        "register_worker",
        "start_run",
        "end_run",
        "retire_worker",
        *recorded,
    }
    expected = {f"commit.{moment} {what}" for moment in ("begin", "done") for what in written}
    expected |= {
        f"operation.{moment} {what}" for moment in ("call", "called") for what in operations
    }
    assert sorted(points.passed) == sorted(expected)
    assert points.crashes() == [(point, 1) for point in points.passed]


def test_a_point_passed_again_is_another_crash() -> None:
    points = CrashPoints()
    for point in ("a", "b", "a"):
        points(point)
    assert points.crashes() == [("a", 1), ("b", 1), ("a", 2)]
