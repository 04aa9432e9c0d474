from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

import msgspec
from mcp_types import ToolAnnotations

from perdure.canonical import decode, encode
from perdure.codec import Codec
from perdure.declaration import EffectDeclaration, Verdict
from perdure.effects.support import EffectPolicy, SideEffectSupport
from perdure.errors import InvalidMcpResponse, PerdureError
from perdure.journal.payloads import (
    McpRequest,
    McpResponse,
    encode_mcp_response,
    parse_mcp_response,
)
from perdure.journal.record import Failure, Outcome, Success, Suspended

Declared: TypeAlias = EffectDeclaration | EffectPolicy | None
"""What a tool does to the world; None for one that only reads."""

_CALL: Final = "tools/call"
_READING: Final = frozenset(
    {
        "ping",
        "server/discover",
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "prompts/list",
        "prompts/get",
        "completion/complete",
        "subscriptions/listen",
        "tasks/get",
        "tasks/list",
        "tasks/result",
    }
)
_REPEATABLE: Final = frozenset(
    {"tasks/cancel", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}
)
_IDEMPOTENT: Final = EffectPolicy(support=SideEffectSupport.IDEMPOTENT)


class ToolEffects:
    """Tells what the requests to one server do to the world.

    What the application declares of a tool stands, else what a trusted server says of it. A tool
    of which nobody says anything has an effect at a target that can neither drop a repeat nor be
    asked.
    """

    def __init__(self, declared: Mapping[str, Declared], *, trusted: bool) -> None:
        self._declared = declared
        self.trusted = trusted
        self.hints: dict[str, ToolAnnotations | None] | None = None

    def needs_hints(self, request: McpRequest) -> bool:
        """Return whether the server has to be asked first what its tool does."""
        tool = tool_of(request)
        if tool is None or tool in self._declared or not self.trusted:
            return False
        return self.hints is None or tool not in self.hints

    def of(self, request: McpRequest, handler_id: str) -> EffectDeclaration | None:
        """Return what a request does to the world, or None for one that only reads."""
        if request.method in _READING:
            return None
        tool = tool_of(request)
        effect: Declared
        if tool is None:
            effect = _IDEMPOTENT if request.method in _REPEATABLE else EffectPolicy()
        elif tool in self._declared:
            effect = self._declared[tool]
        else:
            effect = self._hinted(tool)
        if effect is None:
            return None
        declared = EffectDeclaration(policy=effect) if isinstance(effect, EffectPolicy) else effect
        policy = declared.policy
        if not policy.target:
            target = f"{handler_id}.{tool or request.method}"
            policy = msgspec.structs.replace(policy, target=target)
        return msgspec.structs.replace(declared, policy=policy, output_of=_output_of)

    def _hinted(self, tool: str) -> EffectPolicy | None:
        hints = (self.hints or {}).get(tool) if self.trusted else None
        if hints is None:
            return EffectPolicy()
        if hints.read_only_hint is True:
            return None
        return _IDEMPOTENT if hints.idempotent_hint is True else EffectPolicy()


def tool_of(request: McpRequest) -> str | None:
    """Return the tool that a request calls, or None where it calls none by name."""
    if request.method != _CALL:
        return None
    params = decode(request.params_json.encode())
    name = cast("dict[str, Any]", params).get("name") if isinstance(params, dict) else None
    return name if isinstance(name, str) and name else None


def verdict_of(outcome: Outcome) -> Verdict | None:
    """Return what became of an effect where the outcome alone does not tell, or None.

    Of a tool that says that it failed nobody knows. What answered with too much has been applied.
    """
    if not isinstance(outcome, Success):
        return Verdict.APPLIED if _is_refused_answer(outcome) else None
    try:
        result = decode(parse_mcp_response(outcome.output_json).result_json.encode())
    except PerdureError:
        return None
    failed = isinstance(result, dict) and cast("dict[str, Any]", result).get("isError") is True
    return Verdict.UNKNOWN if failed else None


def _is_refused_answer(outcome: Failure | Suspended) -> bool:
    return isinstance(outcome, Failure) and outcome.error_name == InvalidMcpResponse.__name__


def _output_of(answer: bytes) -> bytes:
    """Return the response in which a tool returned what a lookup, or a person, says that it did."""
    value: object = Codec().decode(answer)
    members = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    result: dict[str, Any]
    if isinstance(members.get("content"), list):
        result = members
    else:
        text = value if isinstance(value, str) else encode(cast("object", value)).decode()
        result = {"content": [{"type": "text", "text": text}]}
        if isinstance(value, dict):
            result["structuredContent"] = members
    return encode_mcp_response(McpResponse(result_json=encode(result).decode()))
