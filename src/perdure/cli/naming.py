from __future__ import annotations

import re
from typing import Final

from perdure.engine.store import OperationRow

_OF_STEPS: Final = {
    "model.stream": "model request",
    "model.request": "model request",
    "model.compact": "model compaction",
    "model.cancel": "model cancellation",
    "mcp.list": "list of MCP tools",
    "mcp.instructions": "MCP instructions",
    "tool.list": "list of tools",
}
_OF_KINDS: Final = {
    "model_request": "model request",
    "model_stream": "model request",
    "event_delivery": "event",
    "retry_delay": "wait before a retry",
    "approval_resume": "approval",
}
_step: Final = re.compile(r"(?:^|\.)((?:model|mcp|tool)\.[a-z]+)(?:\.|$)")
_VERSION: Final = re.compile(r"\.v[0-9]+$")


def name_of(operation: OperationRow) -> str:
    """Return what people call an operation: the tool, the function, or what the model is asked."""
    for step in reversed(_step.findall(operation.step_id)):
        if step in _OF_STEPS:
            return _OF_STEPS[step]
    if operation.kind in _OF_KINDS:
        return _OF_KINDS[operation.kind]
    name = _VERSION.sub("", operation.handler_id)
    return name.rpartition(".")[2] or name
