"""Every exception of perdure.

    PerdureError
    ├── JournalError          what was asked and what came back
    │   ├── InvalidInvocation, InvalidPayload            malformed before anything is called
    │   ├── InvalidRecord, UnsupportedRecordVersion, InputDigestMismatch
    │   ├── ReplayMismatch, UnaskedOperation             code and journal disagree
    │   ├── RuntimeRecordMismatch, RuntimeFailed, DuplicateOperation
    │   ├── MissingHandler, UnmetNeeds, UndeclaredOrigins    nobody is there to perform it
    │   ├── BudgetExceeded                               it would cost more than it may
    │   ├── OperationFailed, OperationSuspended          how an operation ends otherwise
    │   ├── InvalidCheckpoint, CheckpointTooLarge, UnsupportedCheckpointVersion
    │   ├── CheckpointConflict, StaleCheckpoint          somebody else saved another one
    │   ├── InvalidDocument                              a document of the wire is malformed
    │   │   ├── InvalidHistory, InvalidDeferredState
    │   │   ├── InvalidModelRequest, InvalidModelResponse, InvalidToolRequest, InvalidToolResponse
    │   │   ├── InvalidMcpRequest, InvalidMcpResponse, SensitiveMcpHeader
    │   │   └── InvalidEventRequest, InvalidRetryRequest, InvalidApproval{Request,Response}
    │   ├── UnsupportedDocument                          its version is another one
    │   │   └── UnsupportedVersion (of a history), Unsupported…WireVersion (of each kind)
    │   └── DurableSequenceExhausted, DurableMcpEventsRequireRouting, MissingMcpClientCapability
    ├── EffectError           what touched the world
    │   ├── EffectRejected, EffectNotSent                it was not applied
    │   ├── EffectAmbiguous                              nobody knows whether it was
    │   ├── EffectInProgress, EffectConflict, EffectErased   it was not sent by this call
    │   └── UnknownEffect, StaleDecision                 what a person decides about
    ├── RunError              runs and the functions they call
    │   ├── InvalidFunction, InvalidOptions, UnknownFunction, UnknownRun, RunConflict
    │   ├── RunFailed, RunCancelled, RunNeedsAttention   how `result()` ends otherwise
    │   ├── DeadlineExceeded, WaitTimedOut               the time that was given is over
    │   ├── RunEnded, MessageConflict, MessageTaken      a message cannot be sent so
    │   ├── UnknownSchedule                              nothing starts by the clock under that name
    │   ├── UnknownQueue                                 nobody has declared it
    │   ├── UnknownSession                               nothing is stored of it
    │   ├── UnknownApproval, AlreadyResolved, ApprovalClosed, ApprovalChanged   an answer is void
    │   ├── UnknownOperation, ForkRepeats                a run cannot be forked so
    │   ├── RunErased, NotErasable                       what it held is gone, or cannot go yet
    │   ├── RuntimeUnreachable                           what dispatches runs does not answer
    │   └── NotInRun, ForeignTask, EngineClosed          misuse of a run's context or an App
    ├── StorageError          the place where runs live
    │   ├── InvalidUrl, MissingExtra, SchemaTooNew, KeyUnavailable, BlobsUnavailable
    │   └── StorageMissing, StorageBusy, StorageFull, StorageReadOnly, StorageCorrupt
    ├── SessionError          what people see of runs; each has the code and status of the wire
    │   ├── InvalidSessionMessage                        a message of a channel is malformed
    │   ├── SessionBadRequest, InvalidSessionArgument    a call cannot be made so, or not now
    │   ├── SessionClosed, SessionForbidden, SessionCancelled
    │   ├── SubscriptionFailed, ChannelNotReady, ContinuityLost, HistoryFailed    the channel
    │   ├── InputConflict                                something else has this event id
    │   ├── LifecycleNotPublished, SendFailed, MissingSerial, StreamNotRepaired   not published
    │   └── StreamFailed, RunNotObserved, CancelListenerFailed   a run cannot go on so
    └── CommandError          what was typed on the command line cannot be done

Three signals are not errors of the program and derive from `BaseException`, so that an
`except Exception` in an agent or a tool cannot swallow them: `RunParked`, `RunStopped` and
`LeaseLost`. They unwind the code of a run that must do nothing more.
"""

from perdure.errors.documents import (
    CheckpointConflict,
    CheckpointTooLarge,
    InvalidApprovalRequest,
    InvalidApprovalResponse,
    InvalidCheckpoint,
    InvalidDeferredState,
    InvalidDocument,
    InvalidEventRequest,
    InvalidHistory,
    InvalidMcpRequest,
    InvalidMcpResponse,
    InvalidModelRequest,
    InvalidModelResponse,
    InvalidRetryRequest,
    InvalidToolRequest,
    InvalidToolResponse,
    SensitiveMcpHeader,
    StaleCheckpoint,
    UnsupportedApprovalWireVersion,
    UnsupportedCheckpointVersion,
    UnsupportedDocument,
    UnsupportedEventWireVersion,
    UnsupportedMcpWireVersion,
    UnsupportedModelWireVersion,
    UnsupportedRetryWireVersion,
    UnsupportedToolWireVersion,
    UnsupportedVersion,
)
from perdure.errors.effects import (
    EffectAmbiguous,
    EffectConflict,
    EffectErased,
    EffectError,
    EffectInProgress,
    EffectNotSent,
    EffectRejected,
    StaleDecision,
    UnknownEffect,
)
from perdure.errors.journal import (
    BudgetExceeded,
    DuplicateOperation,
    InputDigestMismatch,
    InvalidInvocation,
    InvalidPayload,
    InvalidRecord,
    MissingHandler,
    OperationFailed,
    OperationSuspended,
    ReplayMismatch,
    RuntimeFailed,
    RuntimeRecordMismatch,
    UnaskedOperation,
    UndeclaredOrigins,
    UnmetNeeds,
    UnsupportedRecordVersion,
)
from perdure.errors.mcp import (
    DurableMcpEventsRequireRouting,
    DurableSequenceExhausted,
    MissingMcpClientCapability,
)
from perdure.errors.root import (
    CommandError,
    JournalError,
    PerdureError,
)
from perdure.errors.runs import (
    AlreadyResolved,
    ApprovalChanged,
    ApprovalClosed,
    DeadlineExceeded,
    EngineClosed,
    ForeignTask,
    ForkRepeats,
    InvalidFunction,
    InvalidOptions,
    MessageConflict,
    MessageTaken,
    NotErasable,
    NotInRun,
    RunCancelled,
    RunConflict,
    RunEnded,
    RunErased,
    RunError,
    RunFailed,
    RunNeedsAttention,
    RuntimeUnreachable,
    UnknownApproval,
    UnknownFunction,
    UnknownOperation,
    UnknownQueue,
    UnknownRun,
    UnknownSchedule,
    UnknownSession,
    WaitTimedOut,
)
from perdure.errors.session import (
    CancelListenerFailed,
    ChannelNotReady,
    ContinuityLost,
    HistoryFailed,
    InputConflict,
    InvalidSessionArgument,
    InvalidSessionMessage,
    LifecycleNotPublished,
    MissingSerial,
    RunNotObserved,
    SendFailed,
    SessionBadRequest,
    SessionCancelled,
    SessionClosed,
    SessionError,
    SessionForbidden,
    StreamFailed,
    StreamNotRepaired,
    SubscriptionFailed,
)
from perdure.errors.signals import (
    LeaseLost,
    RunParked,
    RunSignal,
    RunStopped,
)
from perdure.errors.storage import (
    BlobsUnavailable,
    InvalidUrl,
    KeyUnavailable,
    MissingExtra,
    SchemaTooNew,
    StorageBusy,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageMissing,
    StorageReadOnly,
)

__all__ = [
    "AlreadyResolved",
    "ApprovalChanged",
    "ApprovalClosed",
    "BlobsUnavailable",
    "BudgetExceeded",
    "CancelListenerFailed",
    "ChannelNotReady",
    "CheckpointConflict",
    "CheckpointTooLarge",
    "CommandError",
    "ContinuityLost",
    "DeadlineExceeded",
    "DuplicateOperation",
    "DurableMcpEventsRequireRouting",
    "DurableSequenceExhausted",
    "EffectAmbiguous",
    "EffectConflict",
    "EffectErased",
    "EffectError",
    "EffectInProgress",
    "EffectNotSent",
    "EffectRejected",
    "EngineClosed",
    "ForeignTask",
    "ForkRepeats",
    "HistoryFailed",
    "InputConflict",
    "InputDigestMismatch",
    "InvalidApprovalRequest",
    "InvalidApprovalResponse",
    "InvalidCheckpoint",
    "InvalidDeferredState",
    "InvalidDocument",
    "InvalidEventRequest",
    "InvalidFunction",
    "InvalidHistory",
    "InvalidInvocation",
    "InvalidMcpRequest",
    "InvalidMcpResponse",
    "InvalidModelRequest",
    "InvalidModelResponse",
    "InvalidOptions",
    "InvalidPayload",
    "InvalidRecord",
    "InvalidRetryRequest",
    "InvalidSessionArgument",
    "InvalidSessionMessage",
    "InvalidToolRequest",
    "InvalidToolResponse",
    "InvalidUrl",
    "JournalError",
    "KeyUnavailable",
    "LeaseLost",
    "LifecycleNotPublished",
    "MessageConflict",
    "MessageTaken",
    "MissingExtra",
    "MissingHandler",
    "MissingMcpClientCapability",
    "MissingSerial",
    "NotErasable",
    "NotInRun",
    "OperationFailed",
    "OperationSuspended",
    "PerdureError",
    "ReplayMismatch",
    "RunCancelled",
    "RunConflict",
    "RunEnded",
    "RunErased",
    "RunError",
    "RunFailed",
    "RunNeedsAttention",
    "RunNotObserved",
    "RunParked",
    "RunSignal",
    "RunStopped",
    "RuntimeFailed",
    "RuntimeRecordMismatch",
    "RuntimeUnreachable",
    "SchemaTooNew",
    "SendFailed",
    "SensitiveMcpHeader",
    "SessionBadRequest",
    "SessionCancelled",
    "SessionClosed",
    "SessionError",
    "SessionForbidden",
    "StaleCheckpoint",
    "StaleDecision",
    "StorageBusy",
    "StorageCorrupt",
    "StorageError",
    "StorageFull",
    "StorageMissing",
    "StorageReadOnly",
    "StreamFailed",
    "StreamNotRepaired",
    "SubscriptionFailed",
    "UnaskedOperation",
    "UndeclaredOrigins",
    "UnknownApproval",
    "UnknownEffect",
    "UnknownFunction",
    "UnknownOperation",
    "UnknownQueue",
    "UnknownRun",
    "UnknownSchedule",
    "UnknownSession",
    "UnmetNeeds",
    "UnsupportedApprovalWireVersion",
    "UnsupportedCheckpointVersion",
    "UnsupportedDocument",
    "UnsupportedEventWireVersion",
    "UnsupportedMcpWireVersion",
    "UnsupportedModelWireVersion",
    "UnsupportedRecordVersion",
    "UnsupportedRetryWireVersion",
    "UnsupportedToolWireVersion",
    "UnsupportedVersion",
    "WaitTimedOut",
]
