"""Durable AI agents: one identity for every side-effecting unit of a run."""

from perdure.app import App
from perdure.context import Context, current
from perdure.engine.engine import RunHandle
from perdure.engine.store import RunState
from perdure.engine.worker import WorkerOptions
from perdure.errors import (
    LeaseLost,
    OperationFailed,
    PerdureError,
    ReplayMismatch,
    RunCancelled,
    RunConflict,
    RunFailed,
    RunNeedsAttention,
    RunParked,
    RunStopped,
    StorageError,
)
from perdure.functions import operation
from perdure.retry import RetryPolicy

__all__ = [
    "App",
    "Context",
    "LeaseLost",
    "OperationFailed",
    "PerdureError",
    "ReplayMismatch",
    "RetryPolicy",
    "RunCancelled",
    "RunConflict",
    "RunFailed",
    "RunHandle",
    "RunNeedsAttention",
    "RunParked",
    "RunState",
    "RunStopped",
    "StorageError",
    "WorkerOptions",
    "current",
    "operation",
]
