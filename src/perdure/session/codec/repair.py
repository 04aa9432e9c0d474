from __future__ import annotations

from typing import Any, Final

_OPENERS: Final = {"text-start", "reasoning-start", "tool-input-start"}
_ENDINGS: Final = {"finish", "error", "abort"}


class Repair:
    """Adds the chunks that a stream lacks before its first part: `start` and `start-step`.

    A consumer of UI message streams needs both, and an agent that puts out nothing but text has
    written neither. One of these follows one run through its outputs in their order.
    """

    def __init__(self) -> None:
        self._started = False
        self._in_step = False

    def missing_before(self, chunk: dict[str, Any], domain_id: str = "") -> list[dict[str, Any]]:
        """Return the chunks that have to come before this one, which is noted as having come."""
        kind = chunk["type"]
        missing: list[dict[str, Any]] = []
        if kind in _OPENERS:
            if not self._started:
                missing.append({"type": "start", **({"messageId": domain_id} if domain_id else {})})
            if not self._in_step:
                missing.append({"type": "start-step"})
            self._started = self._in_step = True
        elif kind == "start":
            self._started = True
        elif kind == "start-step":
            self._in_step = True
        elif kind == "finish-step":
            self._in_step = False
        elif kind in _ENDINGS:
            self._started = self._in_step = False
        return missing
