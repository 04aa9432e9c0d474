"""A sidecar on a port of this machine, with handlers in its own process and no Temporal behind."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from perdure.journal import Failure, Invocation, OperationKind, Record, Success, encode_record
from perdure.runtimes.temporal.request import OperationRequest
from perdure.sidecar.answers import Unavailable
from perdure.sidecar.config import Limits
from perdure.sidecar.failures import HandlerFailed
from perdure.sidecar.handling import Perform
from perdure.sidecar.request import Deployment
from perdure.sidecar.running import SidecarServer
from perdure.sidecar.sidecar import Sidecar

MODEL, TOOL = OperationKind.MODEL_REQUEST, OperationKind.TOOL_CALL
TOKEN = "Bearer s3cret"
QUEUE = "zigai-agents"

# A worker in another language: the protocol and nothing else.
WORKER = """
import hashlib, json, sys
invocation = json.loads(sys.stdin.readline())
print(json.dumps({
    "version": 1,
    "invocation": invocation,
    "input_sha256": hashlib.sha256(invocation["input_json"].encode()).hexdigest(),
    "status": "success",
    "output_json": '{"worker":"zigai"}',
}, separators=(",", ":"), ensure_ascii=False), end="")
"""
COMMAND = (sys.executable, "-I", "-c", WORKER)


class InProcess:
    """Performs operations by their stable keys, and keeps the records; `Answers` without a server.

    While `held` is not set, operations begin and do not end.
    """

    def __init__(self, perform: Perform) -> None:
        self.perform = perform
        self.tasks: dict[str, asyncio.Task[bytes]] = {}
        self.held = asyncio.Event()
        self.held.set()
        self.reachable = True

    async def begin(self, request: OperationRequest) -> _Pending:
        if not self.reachable:
            raise Unavailable("nobody is there")
        key = request.invocation.stable_key
        if key not in self.tasks:
            self.tasks[key] = asyncio.create_task(self._perform(request))
        return _Pending(self.tasks[key])

    async def ready(self) -> bool:
        return self.reachable

    async def _perform(self, request: OperationRequest) -> bytes:
        await self.held.wait()
        seconds = request.options.start_to_close_seconds
        try:
            return await self.perform(request.invocation, seconds)
        except HandlerFailed as error:
            failure = Failure(error.name, not error.permanent)
            return encode_record(Record(request.invocation, failure))


class _Pending:
    def __init__(self, task: asyncio.Task[bytes]) -> None:
        self._task = task

    async def record(self) -> bytes:
        return await asyncio.shield(self._task)


async def success(invocation: Invocation, seconds: float) -> bytes:
    """Perform anything."""
    return encode_record(Record(invocation, Success(b'{"worker":"zigai"}')))


class Asked:
    """A sidecar that is asked over HTTP."""

    def __init__(
        self, client: httpx.AsyncClient, http: SidecarServer, answers: InProcess, sidecar: Sidecar
    ) -> None:
        self.client = client
        self.http = http
        self.answers = answers
        self.sidecar = sidecar

    async def execute(self, body: Any, **options: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        options.setdefault("headers", {"authorization": TOKEN})
        return await self.client.post("/v1/execute", content=content, **options)


@asynccontextmanager
async def asked(
    perform: Perform = success, *, authorization: str | None = TOKEN, **limits: Any
) -> AsyncIterator[Asked]:
    """Serve a sidecar that performs model requests and tool calls so."""
    max_request_bytes = limits.pop("max_request_bytes", 2_097_152)
    answers = InProcess(perform)
    handlers = frozenset({(MODEL, "support-model"), (TOOL, "tools")})
    sidecar = Sidecar(
        answers,
        Deployment("default", QUEUE, handlers, Limits(**limits)),
        authorization=authorization,
        max_request_bytes=max_request_bytes,
    )
    async with listening(sidecar) as (client, http):
        yield Asked(client, http, answers, sidecar)
    for task in answers.tasks.values():
        task.cancel()


@asynccontextmanager
async def listening(sidecar: Sidecar) -> AsyncGenerator[tuple[httpx.AsyncClient, SidecarServer]]:
    """Serve a sidecar on a port of this machine, until the end of the block."""
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    http = SidecarServer(sidecar, host="127.0.0.1", port=0, started=address.set_result)
    serving = asyncio.create_task(http.serve())
    await asyncio.wait({serving, address}, return_when=asyncio.FIRST_COMPLETED)
    limits = httpx.Limits(max_connections=None)
    try:
        async with httpx.AsyncClient(
            base_url=address.result(), timeout=20, limits=limits
        ) as client:
            yield client, http
    finally:
        http.should_exit = True
        await serving


def body_of(run_id: str = "r1", *, family: str = "perdure", **invocation: Any) -> dict[str, Any]:
    """Return a request for a model request, or for what else is said of it."""
    document: dict[str, Any] = {
        "run_id": run_id,
        "step_id": "model.request",
        "sequence": 1,
        "kind": "model_request",
        "handler_id": "support-model",
        "input_json": "{}",
        **invocation,
    }
    return {
        "version": 1,
        "namespace": "default",
        "task_queue": QUEUE,
        "workflow_name": f"{family}.operation.v1",
        "activity_name": f"{family}.execute.v1",
        "workflow_id": f"{run_id}/{document['step_id']}/{document['sequence']}",
        "invocation": document,
        "activity": {
            "start_to_close_timeout_ms": 30_000,
            "schedule_to_close_timeout_ms": 60_000,
            "heartbeat_timeout_ms": None,
            "retry": {
                "initial_interval_ms": 10,
                "backoff_coefficient_milli": 2000,
                "maximum_interval_ms": 10,
                "maximum_attempts": 1,
            },
        },
    }


def put(body: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a request in which one member is another; `path` is written with dots."""
    changed = msgspec.json.decode(msgspec.json.encode(body))
    *outer, name = path.split(".")
    place = changed
    for step in outer:
        place = place[step]
    place[name] = value
    return changed


async def until(condition: Callable[[], bool]) -> None:
    """Return once something holds, which happens in this loop; raise `TimeoutError` if never."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)
