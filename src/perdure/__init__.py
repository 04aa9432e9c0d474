"""Durable AI agents: one identity for every side-effecting unit of a run."""

from perdure.app import App
from perdure.context import Context, current
from perdure.effect_function import effect
from perdure.effects.identity import OperationIdentity
from perdure.effects.support import EffectPolicy, SideEffectSupport
from perdure.engine.options import WorkerOptions
from perdure.engine.run_handle import RunHandle
from perdure.engine.store import RunState
from perdure.errors import (
    EffectAmbiguous,
    EffectInProgress,
    EffectNotSent,
    EffectRejected,
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
from perdure.receipts import ReceiptStore, guard
from perdure.retry import RetryPolicy
from perdure.sync import guard_sync

__all__ = [
    "App",
    "Context",
    "EffectAmbiguous",
    "EffectInProgress",
    "EffectNotSent",
    "EffectPolicy",
    "EffectRejected",
    "LeaseLost",
    "OperationFailed",
    "OperationIdentity",
    "PerdureError",
    "ReceiptStore",
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
    "SideEffectSupport",
    "StorageError",
    "WorkerOptions",
    "current",
    "effect",
    "guard",
    "guard_sync",
    "operation",
]
