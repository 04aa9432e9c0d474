"""Runs with effects while their workers die: all of them end, and a target counts exactly."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.soak.run import Plan, Report, soak
from benchmarks.soak.worker import EFFECTS
from tests.acceptance.samples import LONG, ON_SERVER
from tests.postgres_server import PostgresServer

_SECONDS = float(os.environ.get("PERDURE_TEST_SOAK_SECONDS", "8"))
_SEED = int(os.environ.get("PERDURE_TEST_SOAK_SEED", "7"))


def check(report: Report) -> None:
    print(*report.lines(), sep="\n")
    assert (report.failed, report.wrong) == (None, [])
    assert report.completed > _SECONDS
    assert report.effects == EFFECTS * report.completed
    # What was sent twice and what had to be asked for: without either, nothing was in doubt.
    assert report.heard["apply"] > report.effects
    assert report.heard["look"] > 0
    assert report.faults["worker killed"] >= 3


@LONG
def test_every_run_ends_and_every_effect_is_applied_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    check(soak(Plan(url=url, runs=16, seconds=_SECONDS, kill_seconds=0.7, seed=_SEED)))


@ON_SERVER
def test_the_same_on_a_server_that_is_stopped_too(own_server: PostgresServer) -> None:
    async def restart() -> None:
        # Here: the server ends with the thread that started it.
        own_server.crash()

    plan = Plan(
        url=own_server.url,
        runs=16,
        seconds=_SECONDS,
        kill_seconds=0.7,
        restart_seconds=_SECONDS / 4,
        restart=restart,
        seed=_SEED,
    )
    report = soak(plan)
    check(report)
    assert report.faults["server restarted"] > 0
