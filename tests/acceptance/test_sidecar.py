"""`perdure sidecar` as a process of its own, on a real server of Temporal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from temporalio.client import Client, WorkflowFailureError

from perdure.journal import Failure, Success, parse_record
from tests.acceptance.samples import LONG
from tests.services import connected, own_temporal
from tests.sidecars import COMMAND, body_of

pytestmark = LONG

TOKEN = "token-that-nobody-may-see-4711"

# Counts its calls, and does what its input says.
WORKER = """
import hashlib, json, os, sys, time
invocation = json.loads(sys.stdin.readline())
asked = json.loads(invocation["input_json"])
with open("calls", "a") as file:
    print(os.getpid(), invocation["run_id"], file=file, flush=True)
if asked == "crash":
    sys.exit("out of luck")
if asked == "garbage":
    print("{}")
    sys.exit()
if asked == "hold":
    while not os.path.exists("go"):
        time.sleep(0.02)
size = asked.get("size", 0) if isinstance(asked, dict) else 0
print(json.dumps({
    "version": 1,
    "invocation": invocation,
    "input_sha256": hashlib.sha256(invocation["input_json"].encode()).hexdigest(),
    "status": "success",
    "output_json": json.dumps({"env": sorted(os.environ), "text": "x" * size}),
}))
"""

FUNCTIONS = """
from perdure.journal.invocation import Invocation
from perdure.journal.record import Success

async def answer(invocation: Invocation):
    with open("calls", "a") as file:
        print("python", invocation.run_id, file=file)
    if invocation.input_json == b'"raise"':
        raise LookupError("no such book")
    return Success(b'{"by":"python"}')
"""

CONFIG = """
task_queue = "{queue}"
port = 0
token_variable = "SIDECAR_TOKEN"

[temporal]
address = "{address}"

[limits]
drain_seconds = 2
heartbeat_seconds = 2
start_seconds = 2

[[handlers]]
kind = "model_request"
id = "support-model"
command = {command}

[[handlers]]
kind = "tool_call"
id = "tools"
function = "functions_of_a_sidecar:answer"
"""


class Program:
    """A sidecar that runs, and how it is asked."""

    def __init__(
        self, process: asyncio.subprocess.Process, url: str, queue: str, folder: Path
    ) -> None:
        self.process = process
        self.queue = queue
        self.folder = folder
        headers = {"authorization": f"Bearer {TOKEN}"}
        limits = httpx.Limits(max_connections=None)
        self.client = httpx.AsyncClient(base_url=url, headers=headers, timeout=60, limits=limits)
        self.printed = b""

    async def execute(self, body: dict[str, Any]) -> httpx.Response:
        return await self.client.post("/v1/execute", json={**body, "task_queue": self.queue})

    async def insist(self, body: dict[str, Any]) -> httpx.Response:
        """Ask for an operation until there is a record of it."""
        while (answer := await self.execute(body)).status_code == 503:
            await asyncio.sleep(float(answer.headers["retry-after"]))
        return answer

    async def begun(self, body: dict[str, Any], times: int = 1) -> None:
        """Return once the handler of an operation was called so often."""
        while self.calls(body["invocation"]["run_id"]) < times:
            await asyncio.sleep(0.02)

    def calls(self, run_id: str) -> int:
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return sum(line.endswith(f" {run_id}") for line in lines)


def on_temporal(folder: Path, scene: Callable[[Client, Path], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(90), connected() as client:
            await scene(client, folder)

    asyncio.run(main())


@asynccontextmanager
async def serving(client: Client, folder: Path, queue: str) -> AsyncGenerator[Program]:
    """Run `perdure sidecar` in a folder until the end of the block."""
    (folder / "worker.py").write_text(WORKER)
    (folder / "functions_of_a_sidecar.py").write_text(FUNCTIONS)
    command = json.dumps([COMMAND[0], "-I", "worker.py"])
    address = client.service_client.config.target_host
    config = CONFIG.format(queue=queue, address=address, command=command)
    (folder / "worker.toml").write_text(config)
    with (folder / "log").open("a") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure", "sidecar", "--config", "worker.toml", "--json"),
            cwd=folder,
            env={**os.environ, "SIDECAR_TOKEN": TOKEN},
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line, (folder / "log").read_text()
    program = Program(process, json.loads(line)["url"], queue, folder)
    try:
        yield program
    finally:
        await program.client.aclose()
        with suppress(ProcessLookupError):
            process.terminate()
        program.printed = line + await process.stdout.read()
        assert await process.wait() in {0, -signal.SIGKILL}, (folder / "log").read_text()


def new(name: str) -> str:
    return f"{name}-{uuid4().hex}"


async def records_of(client: Client, body: dict[str, Any]) -> int:
    return (await history(client, body)).count('"EVENT_TYPE_ACTIVITY_TASK_COMPLETED"')


async def history(client: Client, body: dict[str, Any]) -> str:
    return (await client.get_workflow_handle(body["workflow_id"]).fetch_history()).to_json()


def test_commands_and_functions_answer_under_both_families_of_names(tmp_path: Path) -> None:
    async def scene(client: Client, folder: Path) -> None:
        async with serving(client, folder, new("queue")) as it:
            for family in ("perdure", "zigai"):
                for kind, handler in (("model_request", "support-model"), ("tool_call", "tools")):
                    body = body_of(new("run"), family=family, kind=kind, handler_id=handler)
                    answers = [await it.execute(body) for _ in range(2)]
                    assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
                    assert answers[0].content == answers[1].content
                    record = parse_record(answers[0].content)
                    assert record.invocation.run_id == body["invocation"]["run_id"]
                    assert isinstance(record.outcome, Success)
                    assert it.calls(record.invocation.run_id) == 1
                    described = await client.get_workflow_handle(body["workflow_id"]).describe()
                    assert described.workflow_type == f"{family}.operation.v1"

    on_temporal(tmp_path, scene)


def test_one_key_is_performed_once_for_whoever_asks_and_never_for_another_input(
    tmp_path: Path,
) -> None:
    async def scene(client: Client, folder: Path) -> None:
        async with serving(client, folder, new("queue")) as it:
            run = new("run")
            bodies = [body_of(run, family=family) for family in ("perdure", "zigai")] * 5
            answers = await asyncio.gather(*(it.execute(body) for body in bodies))
            assert {answer.content for answer in answers} == {answers[0].content}
            other = await it.execute(body_of(run, input_json='"other"'))
            # Whoever asks finds that the record is of another input, as with any runtime.
            assert parse_record(other.content).invocation.input_json == b"{}"
            assert it.calls(run) == 1

    on_temporal(tmp_path, scene)


@pytest.mark.parametrize(
    ("asked", "attempts", "name", "retryable", "calls"),
    [
        ("crash", 2, "WorkerFailed", True, 2),
        ("garbage", 5, "InvalidRecord", False, 1),
        ("raise", 5, "LookupError", False, 1),
        ({"size": 3_000_000}, 5, "WorkerOutputTooLarge", False, 1),
    ],
    ids=["crash", "garbage", "raise", "size"],
)
def test_a_key_that_failed_answers_with_its_failure_each_time(
    asked: Any, attempts: int, name: str, retryable: bool, calls: int, tmp_path: Path
) -> None:
    handler = {"kind": "tool_call", "handler_id": "tools"} if asked == "raise" else {}

    async def scene(client: Client, folder: Path) -> None:
        async with serving(client, folder, new("queue")) as it:
            body = body_of(new("run"), input_json=json.dumps(asked), **handler)
            body["activity"]["retry"]["maximum_attempts"] = attempts
            answers = [await it.execute(body) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [200] * 3, answers[0].text
            for answer in answers:
                record = parse_record(answer.content)
                assert record.outcome == Failure(name, retryable)
                assert record.invocation.stable_key == body["workflow_id"]
            assert it.calls(body["invocation"]["run_id"]) == calls
            changed = body_of(body["invocation"]["run_id"], input_json='"other"', **handler)
            stored = parse_record((await it.execute(changed)).content).invocation
            assert stored.input_json == body["invocation"]["input_json"].encode()

    on_temporal(tmp_path, scene)


def test_an_operation_that_is_ended_on_temporal_answers_so(tmp_path: Path) -> None:
    async def scene(client: Client, folder: Path) -> None:
        async with serving(client, folder, new("queue")) as it:
            for how, name in (
                ("terminate", "OperationTerminated"),
                ("cancel", "OperationCancelled"),
            ):
                body = body_of(new("run"), input_json='"hold"')
                asking = asyncio.create_task(it.execute(body))
                await it.begun(body)
                await getattr(client.get_workflow_handle(body["workflow_id"]), how)()
                for answer in (await asking, await it.execute(body)):
                    assert parse_record(answer.content).outcome == Failure(name)
                pid = int((folder / "calls").read_text().splitlines()[-1].split()[0])
                while Path(f"/proc/{pid}").exists():
                    await asyncio.sleep(0.02)

    on_temporal(tmp_path, scene)


def test_a_workflow_that_another_program_has_started_answers_as_far_as_it_is_known(
    tmp_path: Path,
) -> None:
    async def scene(client: Client, folder: Path) -> None:
        async with serving(client, folder, new("queue")) as it:
            late, foreign = body_of(new("run")), body_of(new("run"))
            for body, name in ((late, late["workflow_name"]), (foreign, "reports.v1")):
                handle = await client.start_workflow(
                    name,
                    {**body, "task_queue": it.queue} if body is late else 1,
                    id=body["workflow_id"],
                    task_queue=new("nobody"),
                    execution_timeout=timedelta(seconds=0.2),
                )
                with pytest.raises(WorkflowFailureError):
                    await handle.result()
            answer = await it.execute(late)
            assert parse_record(answer.content).outcome == Failure("OperationTimedOut", True)
            assert (await it.execute(foreign)).status_code == 502

    on_temporal(tmp_path, scene)


def test_the_token_is_nowhere_but_in_the_process(tmp_path: Path) -> None:
    async def scene(client: Client, folder: Path) -> None:
        async with serving(client, folder, new("queue")) as it:
            bodies = [
                body_of(new("run"), family="zigai"),
                body_of(new("run"), input_json='"crash"'),
            ]
            for body in bodies:
                answer = await it.execute(body)
                assert TOKEN not in answer.text
                assert "SIDECAR_TOKEN" not in answer.text
                assert "PATH" in answer.text or "WorkerFailed" in answer.text
                told = await history(client, body)
                assert "workflowExecutionStarted" in told
                assert TOKEN not in told
            statuses: list[int] = []
            for method, path, content, scheme in (
                ("POST", "/v1/execute", b"{", "Basic"),
                ("POST", "/v1/execute", b"{", "Bearer"),
                ("POST", "/v1/execute", json.dumps(bodies[0] | {"version": 2}).encode(), "Bearer"),
                ("GET", "/v1/execute", b"", "Bearer"),
                ("POST", f"/{TOKEN}", b"", "Bearer"),
                ("GET", "/metrics", b"", "Bearer"),
            ):
                headers = {"authorization": f"{scheme} {TOKEN}"}
                answer = await it.client.request(method, path, content=content, headers=headers)
                statuses.append(answer.status_code)
                assert TOKEN not in answer.text + str(answer.headers)
            assert statuses == [401, 400, 400, 405, 404, 200]
        assert TOKEN.encode() not in it.printed
        assert TOKEN not in (folder / "log").read_text()
        assert "out of luck" in (folder / "log").read_text()

    on_temporal(tmp_path, scene)


def test_of_two_sidecars_one_is_killed_and_the_other_answers_each_request_once(
    tmp_path: Path,
) -> None:
    async def scene(client: Client, folder: Path) -> None:
        queue, bodies = new("queue"), [body_of(new("run"), input_json='"hold"') for _ in range(6)]
        for body in bodies:
            body["activity"]["retry"]["maximum_attempts"] = 5
        async with serving(client, folder, queue) as first:
            asking = [asyncio.create_task(first.execute(body)) for body in bodies[:3]]
            for body in bodies[:3]:
                await first.begun(body)
            async with serving(client, folder, queue) as second:
                asking += [asyncio.create_task(first.execute(body)) for body in bodies[3:]]
                for body in bodies:
                    await first.begun(body)
                first.process.send_signal(signal.SIGKILL)
                lost = await asyncio.gather(*asking, return_exceptions=True)
                assert all(isinstance(each, httpx.HTTPError) for each in lost)
                again = [asyncio.create_task(second.execute(body)) for body in bodies * 2]
                for body in bodies[:3]:
                    await second.begun(body, 2)
                (folder / "go").touch()
                answers = await asyncio.gather(*again)
                assert {answer.status_code for answer in answers} == {200}
                assert len({answer.content for answer in answers}) == len(bodies)
        for body in bodies:
            assert await records_of(client, body) == 1

    on_temporal(tmp_path, scene)


def test_a_server_that_dies_and_comes_back_has_each_operation_once(tmp_path: Path) -> None:
    async def main() -> None:
        client = await Client.connect(server.address)
        async with asyncio.timeout(90), serving(client, tmp_path, new("queue")) as it:
            held = body_of(new("run"), input_json='"hold"')
            held["activity"]["retry"]["maximum_attempts"] = 5
            asking = asyncio.create_task(it.insist(held))
            await it.begun(held)
            server.kill()
            fresh = body_of(new("run"), kind="tool_call", handler_id="tools")
            refused = await it.execute(fresh)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert (await it.client.get("/readyz")).status_code == 503
            assert (await it.client.get("/healthz")).status_code == 200
            await asyncio.to_thread(server.start)
            (tmp_path / "go").touch()
            answers = [await asking, await it.insist(fresh)]
            assert [parse_record(answer.content).invocation.run_id for answer in answers] == [
                body["invocation"]["run_id"] for body in (held, fresh)
            ]
            assert [(await it.execute(body)).content for body in (held, fresh)] == [
                answer.content for answer in answers
            ]
            assert it.calls(fresh["invocation"]["run_id"]) == 1
            assert await records_of(client, held) == 1

    with own_temporal(tmp_path / "temporal.db") as server:
        asyncio.run(main())


def test_closing_ends_the_commands_and_leaves_the_operations_to_the_next(tmp_path: Path) -> None:
    async def scene(client: Client, folder: Path) -> None:
        queue, body = new("queue"), body_of(new("run"), input_json='"hold"')
        body["activity"]["retry"]["maximum_attempts"] = 5
        async with serving(client, folder, queue) as first:
            asking = asyncio.create_task(first.execute(body))
            await first.begun(body)
            pid = int((folder / "calls").read_text().split()[0])
            first.process.terminate()
            assert (await asking).status_code == 503
            assert await first.process.wait() == 0
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        (folder / "go").touch()
        async with serving(client, folder, queue) as second:
            answer = await second.execute(body)
            assert isinstance(parse_record(answer.content).outcome, Success)

    on_temporal(tmp_path, scene)


def test_500_requests_at_once_take_bounded_memory(tmp_path: Path) -> None:
    async def scene(client: Client, folder: Path) -> None:
        async with serving(client, folder, new("queue")) as it:
            await it.execute(body_of(new("run"), kind="tool_call", handler_id="tools"))
            before = resident(it.process.pid)
            text = json.dumps("x" * 300_000)
            bodies = [
                body_of(new("run"), kind="tool_call", handler_id="tools", input_json=text)
                for _ in range(500)
            ]
            asking = asyncio.gather(*(it.execute(body) for body in bodies))
            peak = before
            while not asking.done():
                peak = max(peak, resident(it.process.pid))
                await asyncio.sleep(0.05)
            assert {answer.status_code for answer in await asking} == {200}
            # Each is held several times while it is on its way: 150 MB of bodies come to far more.
            assert peak - before < 400_000_000, (before, peak)
            print(f"{before} bytes before, {peak} at most")

    on_temporal(tmp_path, scene)


def resident(pid: int) -> int:
    """Return the bytes of memory that a process has."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
