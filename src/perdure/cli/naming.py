from __future__ import annotations

import re
from typing import Final

import msgspec

from perdure.engine.history import OperationRow

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
_TOLD: Final = {
    "perdure.wait": "message {0.name}",
    "perdure.external_event": "event {0.name}",
    "perdure.take": "messages {0.name}",
    "perdure.fork": "fork",
    "perdure.child": "start of {0.child}",
    "perdure.child.end": "end of run {0.run_id}",
    "perdure.sleep": "sleep",
    "perdure.sleep_until": "sleep",
}
"""What the library's own handlers do, by the input that they are given."""

_APPROVAL: Final = "perdure.approval"
_step: Final = re.compile(r"(?:^|\.)((?:model|mcp|tool)\.[a-z]+)(?:\.|$)")
_VERSION: Final = re.compile(r"\.v[0-9]+$")


class _Asked(msgspec.Struct, frozen=True):
    name: str = "?"
    kind: str = ""
    run_id: str | None = "?"
    function: str = "?"

    @property
    def child(self) -> str:
        """The run that is started, by its id if it was given one."""
        return self.function if self.run_id is None else f"run {self.run_id}"


_asked: Final = msgspec.json.Decoder(_Asked)


def told_by_input(handler_id: str) -> bool:
    """Return whether it takes the input of an operation of this handler to call it by its name."""
    return handler_id == _APPROVAL or "{" in _TOLD.get(handler_id, "")


def name_of(operation: OperationRow, input_json: bytes | None = None) -> str:
    """Return what people call an operation: the tool, the function, or what the model is asked.

    `input_json` is its input where `told_by_input` says so.
    """
    return name_by(operation.step_id, operation.kind, operation.handler_id, input_json)


def name_by(step_id: str, kind: str, handler_id: str, input_json: bytes | None) -> str:
    """Return what people call an operation of a step, a kind and a handler; as `name_of`."""
    if input_json is not None or not told_by_input(handler_id):
        told = _by_handler(handler_id, input_json or b"{}")
        if told is not None:
            return told
    for step in reversed(_step.findall(step_id)):
        if step in _OF_STEPS:
            return _OF_STEPS[step]
    if kind in _OF_KINDS:
        return _OF_KINDS[kind]
    name = _VERSION.sub("", handler_id)
    return name.rpartition(".")[2] or name


def _by_handler(handler_id: str, input_json: bytes) -> str | None:
    if handler_id not in _TOLD and handler_id != _APPROVAL:
        return None
    try:
        asked = _asked.decode(input_json)
    except msgspec.DecodeError:
        asked = _Asked()
    if handler_id == _APPROVAL:
        return request_of(asked.kind, asked.name)
    return _TOLD[handler_id].format(asked)


def request_of(kind: str, name: str) -> str:
    """Return what people call what a run asks for: an approval, or what comes of it elsewhere."""
    return f"{'result' if kind == 'external' else 'approval'} of {name}"
