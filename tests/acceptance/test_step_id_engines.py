"""Engines that try a step again: both attempts have one id, and the next step has another."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from temporalio import activity, workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure.session import step_id
from tests.harness import run
from tests.services import connected

ROOT = Path(__file__).parents[2]
SECONDS = timedelta(seconds=10)

START = """
import asyncio, sys
from vercel.workflow import start
from tests.acceptance.vercel_steps import turn

async def main():
    await (await start(turn, sys.argv[1])).return_value()

asyncio.run(main())
"""


class Activities:
    """Note the step of each attempt, and fail in the first of all."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []

    @activity.defn
    async def attempt(self) -> None:
        info = activity.info()
        self.seen.append((info.attempt, step_id.from_temporal("i", info)))
        if len(self.seen) == 1:
            raise ConnectionResetError("the model went away")


@workflow.defn
class Turn:
    @workflow.run
    async def run(self) -> None:
        for named in (None, None, "tool"):
            await workflow.execute_activity(
                "attempt", activity_id=named, start_to_close_timeout=SECONDS
            )


def test_temporal_tries_an_activity_again_under_one_id() -> None:
    activities = Activities()

    async def main() -> None:
        queue = f"steps-{uuid4()}"
        async with (
            connected() as client,
            Worker(
                client,
                task_queue=queue,
                workflows=[Turn],
                activities=[activities.attempt],
                workflow_runner=UnsandboxedWorkflowRunner(),
            ),
        ):
            await client.execute_workflow(Turn.run, id=queue, task_queue=queue)

    run(main())
    assert activities.seen == [(1, "i-1"), (2, "i-1"), (1, "i-2"), (1, "i-tool")]


def test_vercel_workflow_tries_a_step_again_under_one_id(tmp_path: Path) -> None:
    environment = {**os.environ, "WORKFLOW_LOCAL_DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    seen = {note.name: note.read_text("utf-8") for note in tmp_path.iterdir() if note.is_file()}
    assert sorted(seen) == ["model-1", "model-2", "tool"], done.stderr
    assert seen["model-1"] == seen["model-2"] != seen["tool"]
    assert all(named.startswith("i-step_") for named in seen.values())
