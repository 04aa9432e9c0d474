from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from perdure.errors import SessionError
from perdure.observe import log
from perdure.session.attempts import StepStatus
from perdure.session.run import AgentRun
from perdure.session.session import AgentSession


async def show_again(session: AgentSession, run: AgentRun, before: str) -> None:
    """Show in a run what the complete steps of `before` have shown, the run that it goes on for.

    The steps have the same ids, so that one which is performed again takes the place of what was
    seen of it; messages have ids of their own. Steps that the run has are left alone.

    Durable when it returns: the steps, but those that the log tells of. Raises `LeaseLost`.
    """
    info = session.find_run(run.run_id)
    steps = [] if info is None else info.steps
    shown = {step.step_id for step in steps if step.status is StepStatus.COMPLETE}
    for step_id, made in groupby(session.read_steps(before), key=attrgetter("step_id")):
        if step_id in shown or run.cancelled.is_set():
            continue
        try:
            async with run.create_step(step_id=step_id) as step:
                for one in made:
                    message_id = f"{run.run_id}/{one.message_id.rpartition('/')[2]}"
                    result = await step.pipe(_each(one.chunks), message_id=message_id)
                    if result.error is not None:
                        raise result.error
        except SessionError as error:
            log.error("run %s: %s is not shown again: %s", run.run_id, step_id, error)


async def _each(chunks: Sequence[dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
    for chunk in chunks:
        yield chunk
