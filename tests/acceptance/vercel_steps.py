"""A workflow of two steps, of which the first fails once; its body is imported anew to be run."""

from __future__ import annotations

from pathlib import Path

from vercel import workflow

from perdure.session import step_id

workflows = workflow.Workflows(
    sandbox_policy=workflow.SandboxPolicy(passthrough_modules=frozenset({"perdure"}))
)


@workflows.step
async def model(folder: str) -> None:
    """Note the id of each attempt, and fail in the first."""
    known = workflow.get_step_metadata()
    note = Path(folder, f"model-{known.attempt}")
    note.write_text(step_id.from_vercel_workflow("i", known), "utf-8")
    if known.attempt == 1:
        raise workflow.RetryableError("once", retry_after=0.01)


@workflows.step
async def tool(folder: str) -> None:
    """Note the id of the step behind it."""
    known = workflow.get_step_metadata()
    Path(folder, "tool").write_text(step_id.from_vercel_workflow("i", known), "utf-8")


@workflows.workflow
async def turn(folder: str) -> None:
    """Run both."""
    await model(folder)
    await tool(folder)
