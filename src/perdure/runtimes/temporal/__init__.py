from __future__ import annotations

from importlib.util import find_spec

from perdure.errors import MissingExtra

if find_spec("temporalio") is None:
    raise MissingExtra("operations on Temporal need its client: pip install 'perdure[temporal]'")

from perdure.runtimes.temporal.codec import payload_codec
from perdure.runtimes.temporal.options import OperationOptions
from perdure.runtimes.temporal.payload_storage import payload_storage
from perdure.runtimes.temporal.runtime import TemporalRuntime
from perdure.runtimes.temporal.worker import operation_worker, workflow_runner
from perdure.runtimes.temporal.workflow_runtime import WorkflowRuntime, workflow_runtime

__all__ = [
    "OperationOptions",
    "TemporalRuntime",
    "WorkflowRuntime",
    "operation_worker",
    "payload_codec",
    "payload_storage",
    "workflow_runner",
    "workflow_runtime",
]
