"""Ids of steps that stay the same when another engine tries a step again.

A step of the same id replaces what its attempts before have put out, so the id has to be that of
the step and never that of an attempt. What engines give is unique only within one execution: each
id begins with the invocation's, of which there has to be one for each execution. What an engine
knows is handed in, so that nothing of it has to be installed here.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from perdure.errors import InvalidSessionArgument

# Versions 3, 5 and 8 are made of a name, and stay; the others are made of time or chance.
_NEW_EACH_TIME: Final = re.compile(r"(?i)[0-9a-f]{8}-[0-9a-f]{4}-[12467][0-9a-f]{3}-[0-9a-f-]{17}")
_ATTEMPT_OF_TRIGGER_DEV: Final = "attempt_"


class TemporalActivity(Protocol):
    """What `temporalio.activity.info()` returns, as far as it is needed here."""

    @property
    def activity_id(self) -> str:
        """What the workflow or the server calls the activity, in all of its attempts."""
        ...


class VercelStep(Protocol):
    """What `vercel.workflow.get_step_metadata()` returns, as far as it is needed here."""

    @property
    def step_id(self) -> str:
        """What the workflow calls the step, in all of its attempts."""
        ...


def from_temporal(invocation_id: str, activity: TemporalActivity) -> str:
    """Return the step of a Temporal activity, from its `activity.info()`.

    Ids that Temporal counts out move when the workflow's code changes, and begin anew in each run
    of a workflow; `activity_id=` of `execute_activity` names them.
    """
    return _joined(invocation_id, activity.activity_id)


def from_vercel_workflow(invocation_id: str, step: VercelStep) -> str:
    """Return the step of a step of Vercel Workflow, from its `get_step_metadata()`."""
    return _joined(invocation_id, step.step_id)


def from_inngest(invocation_id: str, step_id: str) -> str:
    """Return the step of a step of Inngest, from the id that `ctx.step.run` was given for it.

    Nothing in a step says which id that is. Where the function gives one id several times, such as
    in a loop, add what tells them apart. Raises `InvalidSessionArgument` like `explicit`.
    """
    return explicit(invocation_id, step_id)


def from_trigger_dev(invocation_id: str, run_id: str, step_id: str) -> str:
    """Return a step of a run of Trigger.dev, whose task hands its `ctx.run.id` to Python.

    A run keeps its id when it is tried again, all of its steps anew; `step_id` says which of them
    this is. Raises `InvalidSessionArgument` like `explicit`, and for the id of an attempt.
    """
    if run_id.startswith(_ATTEMPT_OF_TRIGGER_DEV):
        raise InvalidSessionArgument(
            f"{run_id!r} is an attempt of a run, and the next attempt has another id, so it would"
            " not replace this one; hand over `ctx.run.id`"
        )
    return explicit(invocation_id, f"{_present(run_id)}-{_stable(step_id)}")


def explicit(invocation_id: str, step_id: str) -> str:
    """Return the step of an engine that is not named here, from what all attempts of it share.

    Raises `InvalidSessionArgument` for what attempts do not share, so far as it can be told: UUIDs
    of time or chance, and numbers, which count attempts. An engine that has nothing better cannot
    replace what an attempt has put out; name the step after what it does.
    """
    return _joined(invocation_id, _stable(step_id))


def _stable(step_id: str) -> str:
    if _NEW_EACH_TIME.fullmatch(step_id):
        raise InvalidSessionArgument(
            f"{step_id!r} is a UUID that is made anew each time, so a further attempt of the step"
            " would not replace this one; use an id that all attempts share, such as the name of"
            " the step"
        )
    if step_id.strip().isdecimal():
        raise InvalidSessionArgument(
            f"{step_id!r} may be the number of an attempt, and the next attempt would not replace"
            " this one; name the step, and put its place behind the name if it needs one"
        )
    return _present(step_id)


def _present(engine_id: str) -> str:
    if not engine_id or not engine_id.strip():
        raise InvalidSessionArgument(
            "the engine's id is empty, so attempts of the step could not be told from other steps"
        )
    return engine_id


def _joined(invocation_id: str, engine_id: str) -> str:
    if not invocation_id:
        raise InvalidSessionArgument(
            "the id of the invocation is empty, and engines count steps anew in each execution"
        )
    return f"{invocation_id}-{_present(engine_id)}"
