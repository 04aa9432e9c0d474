from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from perdure import Context
from perdure.adapters.pydantic_ai import Durable, ToolConfig
from perdure.errors import MessageTaken
from perdure.testing.scripted import Call, Reply, ScriptedModel
from tests.harness import RUN, Pause, app_on, run

pytestmark = pytest.mark.usefixtures("storage")


def said(messages: list[ModelMessage]) -> list[Any]:
    """Return what the user said in a conversation."""
    return [
        part.content
        for message in messages
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]


class Desk:
    """An agent whose one tool waits until somebody has had the time to say more."""

    def __init__(self, folder: Path, pause: Pause) -> None:
        self.app = app_on(folder)
        self.model = ScriptedModel([Reply(calls=[Call("look", {})]), "Done."])
        self.agent = Agent(
            self.model,
            name="desk",
            tools=[Tool(self.look, metadata={"perdure": ToolConfig(read_only=True)})],
            capabilities=[Durable(steered_by="steer")],
        )
        self._pause = pause
        self.app.run(version=1, name="work")(self.work)

    async def work(self, context: Context) -> list[Any]:
        del context
        return said((await self.agent.run("hi")).all_messages())

    async def look(self) -> str:
        await self._pause()
        return "looked"


def test_what_people_say_reaches_the_agent_before_its_next_request(tmp_path: Path) -> None:
    pause = Pause()

    async def main() -> None:
        desk = Desk(tmp_path, pause)
        async with desk.app as app:
            handle = await app.start("work", run_id=RUN)
            await pause.reached.wait()
            await app.send(RUN, "steer", "plaese", id="1")
            await app.edit(RUN, "1", "please")
            await app.send(RUN, "steer", {"tone": "kind"})
            await app.send(RUN, "steer", "never mind", id="3")
            assert await app.withdraw(RUN, "3")
        pause.open = True
        desk = Desk(tmp_path, pause)
        async with desk.app as app:
            handle = app.handle(RUN)
            assert await handle.result() == ["hi", "please", '{"tone":"kind"}']
            with pytest.raises(MessageTaken):
                await app.edit(RUN, "1", "sorry")
            taken = [message.taken_by for message in await app.messages(RUN)]
            assert taken == [("steer", 2), ("steer", 3)]
            assert (await app.rehearse(RUN)).verdict == "matches"

    run(main())


def test_what_is_said_before_the_run_begins_to_ask_is_heard_first(tmp_path: Path) -> None:
    pause = Pause()
    pause.open = True

    async def main() -> None:
        desk = Desk(tmp_path, pause)
        async with desk.app.connect() as app:
            await app.start("work", run_id=RUN)
            await app.send(RUN, "steer", "be brief")
            await app.send(RUN, "other", "not for the agent")
        async with desk.app as app:
            assert await app.handle(RUN).result() == ["hi", "be brief"]
            waiting = [message.name for message in await app.messages(RUN) if not message.taken_at]
            assert waiting == ["other"]

    run(main())


@pytest.mark.parametrize("output", [str, int])
def test_what_is_said_during_the_last_request_is_heard_before_the_agent_ends(
    tmp_path: Path, output: type[Any]
) -> None:
    app = app_on(tmp_path)
    asked: list[int] = []

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(len(messages))
        if len(asked) == 1:
            await app.send(RUN, "steer", "wait, there is more")
        if info.output_tools:
            call = ToolCallPart(info.output_tools[0].name, {"response": len(asked)})
            return ModelResponse(parts=[call])
        return ModelResponse(parts=[TextPart(f"answer {len(asked)}")])

    agent = Agent(
        FunctionModel(answer),
        name="desk",
        output_type=output,
        capabilities=[Durable(steered_by="steer")],
    )

    @app.run(version=1, name="work")
    async def work(context: Context) -> list[Any]:
        del context
        result = await agent.run("hi")
        return [str(result.output), *said(result.all_messages())]

    async def main() -> None:
        async with app:
            result = await (await app.start(work, run_id=RUN)).result()
            assert result[0].endswith("2")
            assert result[1:] == ["hi", "wait, there is more"]
            assert (await app.rehearse(RUN)).verdict == "matches"

    run(main())
