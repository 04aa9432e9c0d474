from __future__ import annotations

import time
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.worker import Worker

from benchmarks.on_temporal.use import PAYLOAD, Use
from perdure.journal import Binding, Handlers, Invocation, OperationKind, Success
from perdure.runtimes.temporal import TemporalRuntime, operation_worker, workflow_runtime

TOOL = OperationKind.TOOL_CALL
_INPUT = f'"{PAYLOAD}"'.encode()
_BRIEFLY = timedelta(seconds=60)


@activity.defn
async def plain_echo(payload: str) -> str:
    """Change nothing, and return what was given."""
    return payload


# What is measured is the time in the workflow itself, which the sandbox has no clock for.
@workflow.defn(sandboxed=False)
class PlainSequence:
    """Activities as anybody writes them, one after another."""

    @workflow.run
    async def run(self, operations: int) -> list[float]:
        times: list[float] = []
        for _ in range(operations):
            began = time.perf_counter()
            await workflow.execute_activity(plain_echo, PAYLOAD, start_to_close_timeout=_BRIEFLY)
            times.append(time.perf_counter() - began)
        return times


@workflow.defn(sandboxed=False)
class BoundSequence:
    """The same as operations of a binding."""

    @workflow.run
    async def run(self, operations: int) -> list[float]:
        run_id = workflow.info().workflow_id
        binding = Binding(run_id=run_id, runtime=workflow_runtime(), handler_ids={TOOL: "echo"})
        times: list[float] = []
        for number in range(operations):
            began = time.perf_counter()
            await binding.execute(TOOL, "call", number, _INPUT)
            times.append(time.perf_counter() - began)
        return times


class Plain(Use):
    """Activities of one workflow, without perdure."""

    label = "plain activities of one workflow"

    async def open(self) -> None:
        worker = Worker(
            self.client,
            task_queue="plain",
            workflows=[PlainSequence],
            activities=[plain_echo],
        )
        await self.stack.enter_async_context(worker)

    async def sequence(self, name: str, operations: int) -> list[float]:
        return await self.client.execute_workflow(
            PlainSequence.run, operations, id=name, task_queue="plain"
        )

    def workflows(self, name: str, operations: int) -> list[str]:
        return [name]


class PlainEach(Plain):
    """A workflow of one activity for each operation, without perdure; needs `Plain`."""

    label = "a plain workflow of one activity for each operation"

    async def open(self) -> None:
        pass

    async def sequence(self, name: str, operations: int) -> list[float]:
        times: list[float] = []
        for each in self.workflows(name, operations):
            began = time.perf_counter()
            await self.client.execute_workflow(PlainSequence.run, 1, id=each, task_queue="plain")
            times.append(time.perf_counter() - began)
        return times

    def workflows(self, name: str, operations: int) -> list[str]:
        return [f"{name}.{number}" for number in range(operations)]


class Inside(Use):
    """`workflow_runtime()` in a workflow."""

    label = "`workflow_runtime()` inside a workflow"

    async def open(self) -> None:
        worker = operation_worker(self.client, "operations", _handlers(), workflows=[BoundSequence])
        await self.stack.enter_async_context(worker)

    async def sequence(self, name: str, operations: int) -> list[float]:
        return await self.client.execute_workflow(
            BoundSequence.run, operations, id=name, task_queue="operations"
        )

    def workflows(self, name: str, operations: int) -> list[str]:
        return [name]


class Outside(Use):
    """`TemporalRuntime`, a workflow for each operation; needs `Inside`, whose worker serves it."""

    label = "`TemporalRuntime`, a workflow for each operation"

    async def sequence(self, name: str, operations: int) -> list[float]:
        runtime = TemporalRuntime(
            self.client, task_queue="operations", registrations=[(TOOL, "echo")]
        )
        binding = Binding(run_id=name, runtime=runtime, handler_ids={TOOL: "echo"})
        times: list[float] = []
        for number in range(operations):
            began = time.perf_counter()
            await binding.execute(TOOL, "call", number, _INPUT)
            times.append(time.perf_counter() - began)
        return times

    def workflows(self, name: str, operations: int) -> list[str]:
        return [f"{name}/call/{number}" for number in range(operations)]


async def echo(invocation: Invocation) -> Success:
    """Change nothing, and return what was given."""
    return Success(invocation.input_json)


def _handlers() -> Handlers:
    handlers = Handlers()
    handlers.register(TOOL, "echo", echo)
    return handlers
