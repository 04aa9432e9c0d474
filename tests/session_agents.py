"""A channel with agents and people on it, for tests of what agents write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from perdure.channels.memory import MemoryChannel, MemoryLog
from perdure.errors import SendFailed, SessionError
from perdure.session.channel import Channel, Draft, Revision
from perdure.session.client import ClientSession
from perdure.session.codec import Codec, UiMessageCodec
from perdure.session.run import SessionInvocation
from perdure.session.session import AgentSession
from perdure.testing.manual_clock import ManualClock
from perdure.testing.session_oracle import Recording, read_at, view_document

VECTORS = Path(__file__).parent / "vectors" / "session"
ASKED = SessionInvocation("e1")


class World:
    """One channel, its clock, and what went wrong on it."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.clock = ManualClock()
        self.errors: list[SessionError] = []

    def agent(
        self,
        *,
        channel: Channel | None = None,
        codec: Codec | None = None,
        ids: Iterable[str] | None = None,
    ) -> AgentSession:
        given = iter(ids) if ids is not None else None
        return AgentSession(
            channel or self.log.channel("agent"),
            codec or UiMessageCodec(),
            clock=self.clock,
            on_error=self.errors.append,
            new_id=(lambda: next(given)) if given is not None else None,
        )

    def client(
        self,
        name: str = "alice",
        *,
        channel: Channel | None = None,
        codec: Codec | None = None,
        ids: Iterable[str] | None = None,
    ) -> ClientSession:
        given = iter(ids) if ids is not None else None
        return ClientSession(
            channel or self.log.channel(name),
            codec or UiMessageCodec(),
            client_id=name,
            session_name="room",
            clock=self.clock,
            on_error=self.errors.append,
            new_id=(lambda: next(given)) if given is not None else None,
        )

    async def say(self, text: str, **headers: str) -> None:
        """Ask something, as `u1` under the event id `e1`."""
        asked = {"role": "user", "codec-message-id": "u1", "event-id": "e1"}
        codec = {"kind": "user-message", "messageId": "dom-u1", "partType": "text"}
        await self.write("ai-input", {**asked, "run-client-id": "alice", **headers}, codec, text)

    async def answer(self, run_id: str, message_id: str, event_id: str) -> None:
        """Approve the call `call-1`."""
        asked = {"role": "user", "codec-message-id": message_id, "event-id": event_id}
        codec = {"kind": "tool-approval-response", "toolCallId": "call-1", "approved": "true"}
        await self.write("ai-input", {**asked, "run-id": run_id}, codec, "")

    async def cancel(self, **headers: str) -> None:
        """Cancel a run: `run_id` or `input_codec_message_id` says which."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await self.write("ai-cancel", {"event-id": uuid4().hex, **named})

    async def write(
        self,
        name: str,
        transport: dict[str, str],
        codec: dict[str, str] | None = None,
        data: Any = None,
        client: str = "alice",
    ) -> None:
        await self.log.channel(client).publish(
            [
                Draft(
                    message_id=uuid4().hex,
                    name=name,
                    transport=transport,
                    codec=codec or {},
                    data=data,
                )
            ]
        )

    async def replay(self, vector: str, name: str, index: int = 0) -> None:
        """Write what a person wrote in a recording: the input or cancel at an index."""
        lines = (VECTORS / f"{vector}.wire.jsonl").read_text("utf-8").splitlines()
        found = [line for line in map(json.loads, lines) if line.get("name") == name]
        ai = found[index]["extras"]["ai"]
        data = found[index].get("data")
        await self.write(name, ai["transport"], ai.get("codec"), data, found[index]["clientId"])

    async def until(self, happened: Callable[[], bool]) -> None:
        """Return once something has happened that tasks which are ready lead to."""
        while not happened():
            await asyncio.sleep(0)

    def names(self) -> list[str]:
        """Return the names of the messages, those of outputs with their kind."""
        creates = [d for d in self.log.deliveries if d.name and d.action == "message.create"]
        return [
            f"{d.name} {d.codec['kind']}" if "kind" in d.codec else str(d.name) for d in creates
        ]

    def headers(self, name: str) -> list[dict[str, str]]:
        """Return the transport headers of the messages of a name."""
        return [d.transport or {} for d in self.log.deliveries if d.name == name]

    def seen(self, codec: Codec | None = None, joined: int | None = None) -> Any:
        """Return what a reader sees who joins after so many deliveries."""
        recording = Recording(self.log.deliveries)
        view = read_at(recording, codec or UiMessageCodec(), joined=joined, page=5)
        return json.loads(json.dumps(view_document(view)))

    def texts(self) -> list[str]:
        """Return the texts that are shown."""
        parts = [p for m in self.seen()["messages"] for p in m["message"]["parts"]]
        return [part["text"] for part in parts if "text" in part]


class Flaky:
    """A channel whose writes fail when a test says so, before or after they are done."""

    def __init__(self, inner: MemoryChannel) -> None:
        self.inner = inner
        self.history = inner.history
        self.subscribe = inner.subscribe
        self.drafts: list[Draft] = []
        self.failing: dict[str, list[str]] = {}
        """By kind of write: what happens to the next ones, `""`, `lost`, `done` or `refused`."""

    async def publish(self, drafts: Sequence[Draft]) -> list[str]:
        self.drafts += drafts
        return await self._do("publish", lambda: self.inner.publish(drafts))

    async def append(self, serial: str, change: Revision) -> str:
        return await self._do("append", lambda: self.inner.append(serial, change))

    async def update(self, serial: str, change: Revision) -> str:
        return await self._do("update", lambda: self.inner.update(serial, change))

    async def _do(self, kind: str, write: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        planned = self.failing.get(kind) or [""]
        how = planned.pop(0)
        result = None if how in ("lost", "refused") else await write()
        if how == "refused":
            raise SessionError("not allowed")
        if how:
            raise SendFailed("the channel did not answer")
        return result


def text(*fragments: str, stream: str = "t1", message_id: str = "") -> list[dict[str, Any]]:
    """Return the chunks of an answer in text."""
    named = {"messageId": message_id} if message_id else {}
    return [
        {"type": "start", **named},
        {"type": "start-step"},
        {"type": "text-start", "id": stream},
        *({"type": "text-delta", "id": stream, "delta": fragment} for fragment in fragments),
        {"type": "text-end", "id": stream},
        {"type": "finish-step"},
        {"type": "finish", "finishReason": "stop"},
    ]


async def source(
    outputs: Iterable[Any], *, then: Exception | asyncio.Event | None = None
) -> AsyncIterator[Any]:
    """Yield outputs, and then raise, or set the event and wait for ever."""
    for output in outputs:
        yield output
    if isinstance(then, Exception):
        raise then
    if then is not None:
        then.set()
        await asyncio.Event().wait()


def tool_call(*calls: str, ask: bool = True) -> list[dict[str, Any]]:
    """Return the chunks with which an agent calls the tool `deleteDb`, and asks whether it may."""
    chunks: list[dict[str, Any]] = [{"type": "start"}, {"type": "start-step"}]
    for call in calls:
        named = {"toolCallId": call, "toolName": "deleteDb", "input": {"db": "prod"}}
        chunks.append({"type": "tool-input-available", **named})
        if ask:
            approval = {"toolCallId": call, "approvalId": f"asks-{call}"}
            chunks.append({"type": "tool-approval-request", **approval})
    return [*chunks, {"type": "finish-step"}]
