from __future__ import annotations

from temporalio.client import Client, WorkflowHandle
from temporalio.common import RawValue, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from perdure.runtimes.temporal.payload import document_value


async def start_operation(
    client: Client, workflow: str, document: bytes, *, key: str, task_queue: str
) -> WorkflowHandle[object, RawValue]:
    """Return the one workflow of an operation, started if there is none, also one that has ended.

    Raises the `RPCError` of a server that cannot be asked.
    """
    try:
        return await client.start_workflow(
            workflow,
            document_value(document),
            id=key,
            task_queue=task_queue,
            result_type=RawValue,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
    except WorkflowAlreadyStartedError as error:
        return client.get_workflow_handle(key, run_id=error.run_id, result_type=RawValue)
