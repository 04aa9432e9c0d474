from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from perdure.demo.report import Report

_CHARACTERS_BEFORE_THE_KILL: Final = 60


class Gate:
    """Stops a worker at one point, for good: what is waited for there is its death.

    It is the App's probe, so it knows the moments between a handler and its record.
    """

    def __init__(self, point: str, report: Callable[[Report], None]) -> None:
        self.report = report
        self._point = point
        self._clock_asked = False
        self._arrived = 0

    def __call__(self, name: str) -> None:
        """Stop if this is the point; called by the engine at each of its own."""
        match self._point:
            case "before-tools":
                self._stop_if(name.startswith("operation.call tool.call/"))
            case "mcp":
                self._stop_if(name.startswith("operation.called mcp.request/"))
            case "after-tools":
                self._stop_if(self._clock_asked and name.startswith("operation.call model."))
            case _:
                pass
        # Parallel calls are recorded before the model is asked again, so this is soon enough.
        self._clock_asked |= name.startswith("operation.called mcp.request/")

    def effect_done(self) -> None:
        """Stop in the tool that has just changed the world, before that is recorded."""
        self._stop_if(self._point == "in-tool")

    def text_arrived(self, text: str) -> None:
        """Stop in the middle of a streamed answer that follows the last tool."""
        self._arrived += len(text)
        enough = self._arrived >= _CHARACTERS_BEFORE_THE_KILL and self._clock_asked
        self._stop_if(self._point == "model-stream" and enough)

    def _stop_if(self, reached: bool) -> None:  # noqa: FBT001 - reads as a sentence
        if reached:
            self.report(Report("waiting", self._point))
            # Blocks the event loop: nothing else of this process happens before it dies.
            threading.Event().wait()
