from __future__ import annotations

import enum


class RunState(enum.StrEnum):
    """Where a run stands.

    A run that sleeps waits for a time, one that is suspended for what comes from outside; neither
    takes anything but rows until then. One that is cancelling has been asked to end, and its
    worker lets what it has under way come to an end. A person may resume a run that failed or
    needs attention; the other two ends are final.
    """

    PENDING = "pending"
    RUNNING = "running"
    SLEEPING = "sleeping"
    SUSPENDED = "suspended"
    CANCELLING = "cancelling"
    NEEDS_ATTENTION = "needs_attention"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def settled(self) -> bool:
        """Whether the run waits for nobody but, perhaps, a person."""
        return self.ended or self is RunState.NEEDS_ATTENTION

    @property
    def executed(self) -> bool:
        """Whether a worker executes the run."""
        return self in {RunState.RUNNING, RunState.CANCELLING}

    @property
    def ended(self) -> bool:
        """Whether the run came to an end, well or not."""
        return self in {RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED}
