from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import httpx
from temporalio.client import Client

from benchmarks.child import environment
from benchmarks.on_temporal.use import PAYLOAD, Use

_ROOT = Path(__file__).parents[2]
_CONFIG = """
task_queue = "sidecar"
port = 0

[temporal]
address = "{address}"

[limits]
operations = 64

[[handlers]]
kind = "tool_call"
id = "echo"
function = "benchmarks.on_temporal.workflows:echo"
"""


class Sidecar(Use):
    """A sidecar in a process of its own, asked over HTTP on connections that are kept."""

    label = "the sidecar over HTTP"

    def __init__(self, client: Client, address: str, folder: Path) -> None:
        super().__init__(client, address)
        self._folder = folder

    async def open(self) -> None:
        file = self._folder / "sidecar.toml"
        file.write_text(_CONFIG.format(address=self.address))
        command = [sys.executable, "-m", "perdure", "sidecar", "--config", str(file)]
        with (self._folder / "sidecar.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                *("--json", "--quiet", "--insecure-no-auth"),
                cwd=_ROOT,
                env=environment(),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        self.stack.push_async_callback(_ended, process)
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            raise RuntimeError((self._folder / "sidecar.log").read_text())
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        client = httpx.AsyncClient(base_url=json.loads(line)["url"], timeout=60, limits=limits)
        self._http = await self.stack.enter_async_context(client)

    async def sequence(self, name: str, operations: int) -> list[float]:
        times: list[float] = []
        for number in range(operations):
            body = _body(name, number)
            began = time.perf_counter()
            (await self._http.post("/v1/execute", json=body)).raise_for_status()
            times.append(time.perf_counter() - began)
        return times

    def workflows(self, name: str, operations: int) -> list[str]:
        return [f"{name}/call/{number}" for number in range(operations)]


def _body(name: str, number: int) -> dict[str, object]:
    return {
        "version": 1,
        "namespace": "default",
        "task_queue": "sidecar",
        "workflow_name": "perdure.operation.v1",
        "activity_name": "perdure.execute.v1",
        "workflow_id": f"{name}/call/{number}",
        "invocation": {
            "run_id": name,
            "step_id": "call",
            "sequence": number,
            "kind": "tool_call",
            "handler_id": "echo",
            "input_json": json.dumps(PAYLOAD),
        },
        "activity": {
            "start_to_close_timeout_ms": 60_000,
            "schedule_to_close_timeout_ms": 60_000,
            "heartbeat_timeout_ms": None,
            "retry": {
                "initial_interval_ms": 1000,
                "backoff_coefficient_milli": 2000,
                "maximum_interval_ms": 60_000,
                "maximum_attempts": 5,
            },
        },
    }


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    await process.communicate()
