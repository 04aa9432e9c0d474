from __future__ import annotations

import enum
from typing import Final

from perdure.errors import (
    AlreadyResolved,
    ApprovalChanged,
    ApprovalClosed,
    BlobsUnavailable,
    CommandError,
    EffectErased,
    ForkRepeats,
    InputDigestMismatch,
    InvalidUrl,
    KeyUnavailable,
    MissingExtra,
    PerdureError,
    RunCancelled,
    RunEnded,
    RunErased,
    RunFailed,
    RunNeedsAttention,
    StaleDecision,
    StorageError,
    StorageMissing,
    UnknownApproval,
    UnknownEffect,
    UnknownFunction,
    UnknownOperation,
    UnknownQueue,
    UnknownRun,
    UnknownSchedule,
    UnknownSession,
)


class Exit(enum.IntEnum):
    """What the exit code of a command means."""

    OK = 0
    NOT_WELL = 1
    USAGE = 2
    NOT_FOUND = 3
    STORAGE = 4
    UNFINISHED = 5
    BUG = 70
    INTERRUPTED = 130


MEANINGS: Final = {
    Exit.OK: "done, and all is well",
    Exit.NOT_WELL: "the answer is not well: the run failed, a decision was stale or came too late,"
    " doctor or the demo found something",
    Exit.USAGE: "the command cannot be done as typed: bad options, input, URL or MODULE:APP",
    Exit.NOT_FOUND: "there is no such run, session, run function, receipt, item or database, or it"
    " was erased",
    Exit.STORAGE: "the database is busy, full, read-only, damaged or of a newer release",
    Exit.UNFINISHED: "the run was cancelled, or needs attention before it can go on",
    Exit.BUG: "perdure itself failed; the traceback is on stderr",
    Exit.INTERRUPTED: "interrupted from the keyboard",
}
"""Every exit code and its meaning, as `--help` shows them."""

# The first line that fits decides.
_OF_ERRORS: Final[tuple[tuple[type[PerdureError], Exit], ...]] = (
    (UnknownRun, Exit.NOT_FOUND),
    (UnknownSchedule, Exit.NOT_FOUND),
    (UnknownQueue, Exit.NOT_FOUND),
    (UnknownSession, Exit.NOT_FOUND),
    (RunErased, Exit.NOT_FOUND),
    (UnknownFunction, Exit.NOT_FOUND),
    (UnknownEffect, Exit.NOT_FOUND),
    (UnknownApproval, Exit.NOT_FOUND),
    (UnknownOperation, Exit.NOT_FOUND),
    (ForkRepeats, Exit.NOT_WELL),
    (EffectErased, Exit.NOT_FOUND),
    (StaleDecision, Exit.NOT_WELL),
    (AlreadyResolved, Exit.NOT_WELL),
    (ApprovalClosed, Exit.NOT_WELL),
    (ApprovalChanged, Exit.NOT_WELL),
    (RunEnded, Exit.NOT_WELL),
    (BlobsUnavailable, Exit.USAGE),
    (StorageMissing, Exit.NOT_FOUND),
    (InvalidUrl, Exit.USAGE),
    (KeyUnavailable, Exit.USAGE),
    (MissingExtra, Exit.USAGE),
    (CommandError, Exit.USAGE),
    (StorageError, Exit.STORAGE),
    (InputDigestMismatch, Exit.STORAGE),
    (RunFailed, Exit.NOT_WELL),
    (RunCancelled, Exit.UNFINISHED),
    (RunNeedsAttention, Exit.UNFINISHED),
)


def exit_of(error: PerdureError) -> Exit:
    """Return the exit code that an error ends a command with."""
    return next((code for kind, code in _OF_ERRORS if isinstance(error, kind)), Exit.USAGE)
