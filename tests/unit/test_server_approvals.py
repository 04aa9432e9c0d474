"""An agent asks before it calls a tool, and people answer over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, Tool
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from perdure.adapters.pydantic_ai import Durable, history_of
from tests.harness import app_on, run
from tests.serving import Served, ended, served

ASKS = {"id": "s1", "trigger": "submit-message"}


class Shop:
    """A tool that needs an approval, and an agent that calls it once a turn."""

    def __init__(self) -> None:
        self.deleted: list[str] = []
        tool = Tool(self.delete, requires_approval=True)
        model = FunctionModel(stream_function=_says)
        self.agent = Agent(model, name="shop", tools=[tool], capabilities=[Durable()])

    def delete(self, name: str) -> str:
        self.deleted.append(name)
        return f"{name} is gone"


async def _says(messages: list[Any], info: Any) -> AsyncIterator[Any]:
    last = messages[-1].parts[-1]
    if last.part_kind == "tool-return":
        yield f"Done: {last.content}."
    else:
        call = f"call-{len(messages)}"
        yield {0: DeltaToolCall(name="delete", json_args='{"name": "db"}', tool_call_id=call)}


def played(folder: Path, scene: Callable[[Served, Shop], Awaitable[None]]) -> None:
    async def main() -> None:
        app, shop = app_on(folder), Shop()

        @app.turn(version=1)
        async def answer(context: Any, turn: Any) -> str:
            return (await shop.agent.run(message_history=await history_of(turn))).output

        async with served(app) as it:
            await scene(it, shop)

    run(main())


async def asked(it: Served, key: str = "m1") -> tuple[str, dict[str, Any]]:
    """Let the agent ask; return the id of its message, and what it asks."""
    message = {"id": key, "role": "user", "parts": [{"type": "text", "text": "delete it"}]}
    async with it.stream("/api/chat", {**ASKS, "messages": [message]}) as stream:
        chunks = await stream.rest()
    assert chunks[-2] == {"type": "finish", "finishReason": "tool-calls"}
    asking = [c for c in chunks[:-1] if c["type"] == "tool-approval-request"]
    return chunks[0]["messageId"], asking[0]


def answered(message_id: str, asking: dict[str, Any], *, approved: bool) -> dict[str, Any]:
    """Return what `useChat` posts once a person has answered."""
    part = {
        "type": "tool-delete",
        "toolCallId": asking["toolCallId"],
        "state": "approval-responded",
        "input": {"name": "db"},
        "approval": {"id": asking["approvalId"], "approved": approved, "reason": "so it is"},
    }
    message = {"id": message_id, "role": "assistant", "parts": [{"type": "step-start"}, part]}
    return {**ASKS, "messages": [message], "messageId": message_id}


def test_an_approval_goes_to_the_run_and_its_message_goes_on(tmp_path: Path) -> None:
    async def scene(it: Served, shop: Shop) -> None:
        key, asking = await asked(it)
        assert (await it.get("/api/chat/s1/stream")).status_code == 204
        body = answered(key, asking, approved=True)
        async with it.stream("/api/chat", body) as stream:
            chunks = await stream.rest()
        assert chunks[0] == {"type": "start", "messageId": key}
        assert chunks[1]["output"] == "db is gone"
        kinds = [chunk["type"] for chunk in chunks[2:-1]]
        assert (kinds[0], kinds[-2:]) == ("start-step", ["finish-step", "finish"])
        again = await it.post("/api/chat", body)
        assert (again.status_code, again.json()["code"]) == (409, "AlreadyResolved")
        assert shop.deleted == ["db"]

    played(tmp_path, scene)


def test_a_refusal_by_another_client_goes_to_the_run_that_asks(tmp_path: Path) -> None:
    async def scene(it: Served, shop: Shop) -> None:
        first, asking = await asked(it)
        async with it.stream("/api/chat", answered(first, asking, approved=True)) as stream:
            await stream.rest()
        second, asking = await asked(it, "m2")
        path = f"/sessions/s1/approvals/{asking['approvalId']}"
        refused = await it.post(path, {"approved": False, "reason": "not now"}, "bob")
        assert (refused.status_code, refused.json()["run_id"]) == (202, second)
        await ended(it, second, "complete")
        last = (await it.get("/api/chat/s1/messages")).json()[-1]
        assert last["parts"][1]["state"] == "output-denied"
        assert "not now" in last["parts"][-1]["text"]
        assert shop.deleted == ["db"]

    played(tmp_path, scene)


def test_of_two_that_answer_at_once_one_is_heard(tmp_path: Path) -> None:
    async def scene(it: Served, shop: Shop) -> None:
        key, asking = await asked(it)
        path = f"/sessions/s1/approvals/{asking['approvalId']}"
        for name in ("alice", "bob", "alice"):
            assert (await it.post(path, {"approved": True}, name)).status_code in (202, 409)
        await ended(it, key, "complete")
        assert (await it.post(path, {"approved": False})).status_code == 409
        assert shop.deleted == ["db"]

    played(tmp_path, scene)
