from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from perdure.journal.invocation import Invocation
from perdure.journal.payloads import (
    ApprovalRequest,
    ApprovalResponse,
    EventRequest,
    McpRequest,
    McpResponse,
    ModelRequest,
    ResponseMessage,
    RetryRequest,
    ToolRequest,
    ToolResponse,
)
from perdure.journal.record import Failure, Outcome, Suspended

Worker: TypeAlias = Callable[[Invocation], Awaitable[Outcome]]
"""A function that performs the operations of one kind and handler id."""

_Ended: TypeAlias = Failure | Suspended

ModelFunction: TypeAlias = Worker | Callable[[ModelRequest], Awaitable[ResponseMessage | _Ended]]
ToolFunction: TypeAlias = Worker | Callable[[ToolRequest], Awaitable[ToolResponse | _Ended]]
McpFunction: TypeAlias = (
    ToolFunction
    | Callable[[McpRequest], Awaitable[McpResponse | _Ended]]
    | Callable[[McpRequest | ToolRequest], Awaitable[McpResponse | ToolResponse | _Ended]]
)
EventFunction: TypeAlias = Worker | Callable[[EventRequest], Awaitable[object]]
RetryFunction: TypeAlias = Worker | Callable[[RetryRequest], Awaitable[object]]
ApprovalFunction: TypeAlias = (
    Worker | Callable[[ApprovalRequest], Awaitable[ApprovalResponse | _Ended]]
)
AnyFunction: TypeAlias = (
    ModelFunction | ToolFunction | McpFunction | EventFunction | RetryFunction | ApprovalFunction
)
