"""A workflow as users write it: its operations are activities, and bindings work as anywhere."""

from __future__ import annotations

import asyncio

import msgspec
from temporalio import workflow

from perdure.errors import (
    DuplicateOperation,
    OperationFailed,
    OperationSuspended,
    RuntimeRecordMismatch,
)
from perdure.journal import Binding, OperationKind
from perdure.journal.payloads import RetryRequest
from perdure.preflight import NeededTool, Needs
from perdure.runtimes.temporal import OperationOptions, workflow_runtime

TOOL = OperationKind.TOOL_CALL
RETRY = OperationKind.RETRY_DELAY
OPTIONS = OperationOptions(
    start_to_close_seconds=10,
    schedule_to_close_seconds=15,
    heartbeat_seconds=0.6,
    initial_interval_seconds=0.05,
    maximum_interval_seconds=0.05,
    maximum_attempts=3,
)
LARGE = msgspec.structs.replace(OPTIONS, input_limit_bytes=2 << 20, request_limit_bytes=8 << 20)


def bound() -> Binding:
    return Binding(
        run_id=workflow.info().workflow_id,
        runtime=workflow_runtime(OPTIONS),
        handler_ids={TOOL: "tools", RETRY: "delays"},
        namespace="agent",
    )


@workflow.defn
class Turn:
    """Do one of everything, and tell what came of each."""

    @workflow.run
    async def run(self) -> list[str]:
        binding = bound()
        said = [await self._call(binding, 1, b'"plain"')]
        await workflow.sleep(0.01)
        await binding.retry_delay(
            "retry",
            1,
            RetryRequest(
                delay_ms=5, retry_number=1, model_requests=1, total_delay_ms=5, error_name="Busy"
            ),
        )
        said += await asyncio.gather(
            self._call(binding, 2, b'"refuse"'),
            self._call(binding, 3, b'"ask"'),
            self._call(binding, 4, b'"left"'),
            self._call(binding, 4, b'"left"'),
        )
        return [
            *said,
            await self._call(binding, 1, b'"plain"'),
            await self._call(binding, 1, b'"changed"'),
        ]

    async def _call(self, binding: Binding, sequence: int, input_json: bytes) -> str:
        try:
            success = await binding.execute(TOOL, "tool", sequence, input_json)
        except OperationFailed as error:
            return error.code
        except OperationSuspended as error:
            return error.reason
        except (DuplicateOperation, RuntimeRecordMismatch) as error:
            return type(error).__name__
        return success.output_json.decode()


@workflow.defn
class Held:
    """Hold a tool until it is cancelled, or fail with what comes of it."""

    @workflow.run
    async def run(self, value: str) -> None:
        await bound().execute(TOOL, "tool", 1, b'"%s"' % value.encode())


@workflow.defn
class Large:
    """Ask for more than Temporal carries, and give it in one go: what it had come back."""

    @workflow.run
    async def run(self, asked: list[str]) -> list[int | str]:
        runtime = workflow_runtime(LARGE, registrations=[(TOOL, "tools")], external_storage=True)
        run_id = workflow.info().workflow_id
        binding = Binding(run_id=run_id, runtime=runtime, handler_ids={TOOL: "tools"})
        runtime.preflight(binding).check(Needs(model_requests=False, tools=(NeededTool("grow"),)))
        came: list[int | str] = []
        for sequence, input_json in enumerate(asked, 1):
            try:
                success = await binding.execute(TOOL, "tool", sequence, input_json.encode())
            except OperationFailed as error:
                came.append(error.code)
            else:
                came.append(len(success.output_json))
        return came
