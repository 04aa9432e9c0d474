"""A turn that an agent answers from a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest

from perdure import Context
from perdure.adapters.pydantic_ai import Durable, ToolConfig, history_of
from perdure.testing.scripted import Reply, Request, ScriptedModel
from perdure.turn import Turn
from tests.harness import app_on

ANSWER = "It was late, and so it is refunded: sorry for that."


class Support:
    """An App whose turn is answered by an agent, from a script; it can refund, if it may."""

    def __init__(
        self,
        folder: Path,
        script: Sequence[Reply | str],
        *,
        approval: bool = False,
        output: Any = str,
        hangs: Callable[[Request, int], bool] | None = None,
        durable: dict[str, Any] | None = None,
        toolsets: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        self.app = app_on(folder, **{"linger_seconds": 0.0, **options})
        self.calls: list[str] = []
        self.requests: list[Request] = []
        self.model = ScriptedModel(
            script,
            on_request=self.requests.append,
        )
        if hangs is not None:
            self._hang_where(hangs)
        self.agent = Agent(
            self.model,
            name="support",
            output_type=output,
            toolsets=toolsets,
            capabilities=[Durable(**(durable or {}))],
        )
        self.agent.tool_plain(requires_approval=approval)(self.refund)
        self.agent.tool_plain(metadata={"perdure": ToolConfig(read_only=True)})(self.look)
        self.before_look: Callable[[], Any] | None = None
        self.app.turn(version=1, name="support")(self.answer)

    def _hang_where(self, hangs: Callable[[Request, int], bool]) -> None:
        """Have the model say no more after a chunk."""

        async def taken(request: Request, number: int) -> None:
            if hangs(request, number):
                await asyncio.Event().wait()

        self.model.chunk_taken = taken  # pyright: ignore[reportAttributeAccessIssue]

    async def answer(self, context: Context, turn: Turn) -> Any:
        del context
        return (await self.agent.run(message_history=await history_of(turn))).output

    async def refund(self, order: int) -> str:
        self.calls.append(f"refund {order}")
        return f"refunded {order}"

    async def look(self, order: int) -> str:
        if self.before_look is not None:
            await self.before_look()
        self.calls.append(f"look {order}")
        return f"order {order} was late"

    def heard(self, number: int = -1) -> list[str]:
        """Return what a request of the model says in the name of the user."""
        found = (m.parts for m in self.requests[number].messages if isinstance(m, ModelRequest))
        return [str(p.content) for parts in found for p in parts if p.part_kind == "user-prompt"]
