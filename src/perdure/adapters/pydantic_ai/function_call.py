from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from pydantic_ai.durable_exec import DynamicToolsetCallToolParams, ToolsetCallToolParams
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets.function import FunctionToolsetTool

from perdure.adapters.pydantic_ai.ending import Ending, Work
from perdure.declaration import Reported


class FunctionCall:
    """Watches the function of a tool: whether it was called, and how it ended itself.

    The SDK makes results for the model of several exceptions, and of a timeout.
    """

    def __init__(self) -> None:
        self._began = False
        self._returned = False
        self._raised: BaseException | None = None

    async def make(self, work: Work, params: Any) -> Any:
        """Call the tool."""
        assert isinstance(params, ToolsetCallToolParams)
        tool = params.tool
        assert isinstance(tool, FunctionToolsetTool)
        call_function = tool.call_func

        async def watched(arguments: dict[str, Any], ctx: RunContext[Any]) -> Any:
            self._began = True
            try:
                result = await call_function(arguments, ctx)
            except BaseException as error:
                self._raised = error
                raise
            self._returned = True
            return result

        return await work(replace(params, tool=replace(tool, call_func=watched)))

    def report(self, ending: Ending) -> Reported:
        """Return what is recorded, and what became of the effect."""
        if self._returned:
            # What went wrong after that changes nothing about it.
            return ending.applied()
        match self._raised:
            case None:
                return ending.not_sent()
            case ModelRetry() | ToolFailed():
                return ending.refused()
            case ApprovalRequired() | CallDeferred():
                return ending.not_sent()
            case asyncio.CancelledError() if ending.error is None:
                return ending.doubted(TimeoutError(ending.message))
            case raised:
                return ending.doubted(raised)


class UnseenCall:
    """Watches the tool of a dynamic toolset, which exists only inside of the call.

    `of_server` says that it is a tool of a server.
    """

    def __init__(self, *, of_server: bool) -> None:
        self._of_server = of_server
        self._began_at = 0.0
        self._timeout_seconds: float | None = None

    async def make(self, work: Work, params: Any) -> Any:
        """Call the tool."""
        assert isinstance(params, DynamicToolsetCallToolParams)
        self._timeout_seconds = params.tool_def.timeout if params.tool_def else None
        self._began_at = asyncio.get_running_loop().time()
        return await work(params)

    def report(self, ending: Ending) -> Reported:
        """Return what is recorded, and what became of the effect."""
        if ending.kind == "model_retry" and self._timed_out():
            return ending.doubted(TimeoutError(ending.message))
        if ending.kind in {"model_retry", "tool_failed"} and self._of_server:
            return ending.told()
        return ending.by_kind()

    def _timed_out(self) -> bool:
        limit = self._timeout_seconds
        lasted = asyncio.get_running_loop().time() - self._began_at
        return limit is not None and lasted >= limit
