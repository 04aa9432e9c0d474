"""A recorded conversation, written again by the sessions of this library."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from perdure.errors import StreamFailed
from perdure.session import headers
from perdure.session.attempts import StepStatus
from perdure.session.client import ClientSession
from perdure.session.codec import UiMessageCodec
from perdure.session.codec.ui_inputs import decode_input
from perdure.session.message import WireMessage
from perdure.session.message_log import MessageLog
from perdure.session.piping import PipeResult, Write
from perdure.session.run import AgentRun, SessionInvocation
from perdure.session.session import AgentSession
from perdure.session.step import RunStep
from perdure.testing.session_oracle import Recording
from tests.session_agents import VECTORS, World


class Reenactment:
    """What was recorded is said and put out again, under the ids that it had."""

    def __init__(self, vector: str) -> None:
        self.world = World()
        text = (VECTORS / f"{vector}.wire.jsonl").read_text("utf-8")
        self._deliveries = Recording.read(text).deliveries
        self._log = MessageLog()
        self._stack = AsyncExitStack()
        self._clients: dict[str, ClientSession] = {}
        self._agents: dict[str, AgentSession] = {}
        self._run: tuple[str, AgentRun] | None = None
        self._step: RunStep | None = None
        self._pipe: _Pipe | None = None
        self._message_id = ""
        self._asked = SessionInvocation()
        self._said: set[str] = set()

    async def play(self) -> World:
        """Write all of it, and return the world it is in."""
        async with asyncio.timeout(60), self._stack:
            for delivery in self._deliveries:
                await self._write(delivery)
        return self.world

    async def _write(self, delivery: WireMessage) -> None:
        change = self._log.receive(delivery)
        assert change is not None
        message = change.after
        match message.name:
            case headers.AI_INPUT:
                await self._say(message)
            case headers.AI_CANCEL:
                client = await self._client(message.client_id)
                await client.cancel(await self._cancelled(message))
            case headers.AI_RUN_START | headers.AI_RUN_RESUME:
                agent = await self._agent(message.client_id)
                self._asked = self._trigger(message)
                run = agent.create_run(
                    self._asked,
                    run_id=message.header(headers.RUN_ID),
                    invocation_id=message.header(headers.INVOCATION_ID),
                )
                await run.start()
                self._run = message.client_id, run
            case headers.AI_STEP_START:
                await self._start_step(message)
            case headers.AI_OUTPUT:
                codec = UiMessageCodec()
                for event in codec.decode(message, before=change.before) or ():
                    await self._put(message, event.chunk)  # type: ignore[union-attr]
                if message.header(headers.STATUS) == headers.CANCELLED and self._pipe:
                    self._pipe.outputs.put_nowait(None)
            case headers.AI_STEP_END:
                assert self._step is not None
                reason = StepStatus(message.header(headers.STEP_REASON))
                await self._end_pipe(failed=reason is StepStatus.FAILED)
                await self._step.end(reason)
                self._step = None
            case _:
                await self._stop(message)

    async def _say(self, first: WireMessage) -> None:
        event_id = first.header(headers.EVENT_ID)
        if event_id in self._said:
            return
        self._said.add(event_id)
        parts = [d for d in self._deliveries if d.header(headers.EVENT_ID) == event_id]
        payloads = [event.payload for part in parts for event in decode_input(part)]
        client = await self._client(first.client_id)
        key = first.header(headers.CODEC_MESSAGE_ID)
        match first.codec["kind"]:
            case "regenerate":
                target = first.header(headers.MSG_REGENERATE)
                await client.regenerate(target, event_id=event_id)
            case "tool-approval-response":
                told = payloads[0]
                reason = told.get("reason")
                call = told["toolCallId"]
                await client.approve(call, told["approved"], reason, event_id=event_id)
            case _:
                said = {"id": payloads[0]["id"], "parts": [told["part"] for told in payloads]}
                ids = {"message_id": key, "event_id": event_id}
                if run_id := first.header(headers.RUN_ID):
                    await client.steer(run_id, said, **ids)
                elif edited := first.header(headers.FORK_OF):
                    await client.edit(edited, said, **ids)
                else:
                    parent = first.header(headers.PARENT)
                    await client.send(said, parent=parent, **ids)

    async def _cancelled(self, cancel: WireMessage) -> Any:
        if run_id := cancel.header(headers.RUN_ID):
            return run_id
        key = cancel.header(headers.INPUT_CODEC_MESSAGE_ID)
        (sent, *_) = [
            d for d in self._deliveries if d.header(headers.CODEC_MESSAGE_ID) == key and d.codec
        ]
        client = await self._client(sent.client_id)
        return await client.send(sent.text, event_id=sent.header(headers.EVENT_ID))

    async def _start_step(self, start: WireMessage) -> None:
        assert self._run is not None
        client_id, run = self._run
        if self._pipe is not None:  # whoever ran it has died
            await self._pipe.kill()
            self._pipe = None
        if client_id != start.client_id:
            agent = await self._agent(start.client_id)
            run = agent.adopt_run(
                run_id=start.header(headers.RUN_ID),
                invocation_id=start.header(headers.INVOCATION_ID),
                trigger=self._asked,
            )
            await run.load()
            self._run = start.client_id, run
        self._step = run.create_step(step_id=start.header(headers.STEP_ID))
        await self._step.start()

    async def _put(self, message: WireMessage, chunk: dict[str, Any]) -> None:
        assert self._step is not None
        assert self._run is not None
        key = message.header(headers.CODEC_MESSAGE_ID)
        if self._pipe is not None and self._message_id != key:
            await self._end_pipe(failed=False)
        if self._pipe is None:
            self._message_id = key
            self._pipe = _Pipe(self._step)
        await self._pipe.put(chunk)

    async def _end_pipe(self, *, failed: bool) -> None:
        if self._pipe is not None:
            await self._pipe.end(StreamFailed("rate limited") if failed else None)
            self._pipe = None

    async def _stop(self, event: WireMessage) -> None:
        assert self._run is not None
        _, run = self._run
        if event.name == headers.AI_RUN_SUSPEND:
            await run.suspend()
            return
        said = event.header(headers.ERROR_MESSAGE)
        await run.end(event.header(headers.RUN_REASON), error=StreamFailed(said) if said else None)

    def _trigger(self, event: WireMessage) -> SessionInvocation:
        key = event.header(headers.INPUT_CODEC_MESSAGE_ID)
        sent = [
            d.header(headers.EVENT_ID)
            for d in self._deliveries
            if d.name == headers.AI_INPUT
            and d.header(headers.CODEC_MESSAGE_ID) == key
            and d.serial < event.serial
        ]
        return SessionInvocation(sent[-1])

    async def _client(self, name: str) -> ClientSession:
        if name not in self._clients:
            self._clients[name] = await self._stack.enter_async_context(self.world.client(name))
        client = self._clients[name]
        await client.load_history()
        return client

    async def _agent(self, name: str) -> AgentSession:
        if name not in self._agents:
            session = AgentSession(
                self.world.log.channel(name),
                UiMessageCodec(),
                clock=self.world.clock,
                on_error=self.world.errors.append,
                new_id=lambda: self._message_id,
            )
            self._agents[name] = await self._stack.enter_async_context(session)
        return self._agents[name]


class _Pipe:
    """A source that yields what it is given, and is piped into a step."""

    def __init__(self, step: RunStep) -> None:
        self.outputs: asyncio.Queue[Any] = asyncio.Queue()
        self._asked = asyncio.Event()
        self._task: asyncio.Task[PipeResult] = asyncio.create_task(
            step.pipe(self._source(), on_cancelled=self._last)
        )

    async def put(self, chunk: dict[str, Any]) -> None:
        """Yield a chunk, and return once the next one is asked for."""
        if self._task.done():
            return
        self._asked.clear()
        self.outputs.put_nowait(chunk)
        asked = asyncio.create_task(self._asked.wait())
        await asyncio.wait({asked, self._task}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()

    async def end(self, error: Exception | None) -> None:
        self.outputs.put_nowait(error)
        await self._task

    async def kill(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _source(self) -> AsyncIterator[Any]:
        while True:
            self._asked.set()
            output = await self.outputs.get()
            if isinstance(output, Exception):
                raise output
            if output is None:
                return
            yield output

    async def _last(self, write: Write) -> None:
        await write({"type": "abort", "reason": "user"})
