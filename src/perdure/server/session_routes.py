from __future__ import annotations

from contextlib import suppress
from typing import Any, cast
from uuid import uuid4

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.errors import RunErased, UnknownRun
from perdure.server.asked import find_asked
from perdure.server.chat_request import check_said
from perdure.server.conversation import Conversation
from perdure.server.deliveries import Deliveries
from perdure.server.documents import folded_document, run_document
from perdure.server.gate import Entry, check_name, own_event
from perdure.server.problems import Document, Refused
from perdure.server.service import Service
from perdure.session.client import ClientSession
from perdure.session.headers import EVENT_ID
from perdure.session.lifecycle import ENDS
from perdure.session.run_node import RunNode
from perdure.session.sent import Sent


class _Input(msgspec.Struct, forbid_unknown_fields=True):
    """Something said: new, or in the place of `edit`, or to the run `steer`; or `regenerate`."""

    text: str | None = None
    message: dict[str, Any] | None = None
    edit: str | None = None
    regenerate: str | None = None
    steer: str | None = None
    event_id: str | None = None


class _Cancel(msgspec.Struct, forbid_unknown_fields=True):
    run_id: str | None = None


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    approved: bool
    reason: str | None = None
    run_id: str | None = None


class _Invocation(msgspec.Struct, rename="camel"):
    input_event_id: str
    session_name: str | None = None


class SessionRoutes:
    """The endpoints under `/sessions`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Return the endpoints by their paths."""
        found = [
            ("events", "GET", self.events),
            ("messages", "GET", self.messages),
            ("input", "POST", self.say),
            ("cancel", "POST", self.cancel),
            ("approvals/{item:path}", "POST", self.answer),
            ("invocations", "POST", self.invoke),
        ]
        prefix = "/sessions/{session:path}"
        return [Route(f"{prefix}/{path}", to, methods=[method]) for path, method, to in found]

    async def events(self, request: Request) -> Response:
        """Send what happens in a session from a point on, or from now on behind a snapshot."""
        service = self._service
        entry = await service.gate.admit(request, token_in_url=True)
        after = request.headers.get("last-event-id") or request.query_params.get("after")
        channel = service.channel(entry)
        limit = limit_of(request, service.limits.page_messages)
        deliveries = Deliveries(channel, after or None, limit, service.clock)
        slot = service.gate.open_stream(entry)
        return service.stream(slot, deliveries.frames(), deliveries.farewell)

    async def messages(self, request: Request) -> Response:
        """Return a page of the conversation as it stands, and the cursor of that point."""
        service = self._service
        entry = await service.gate.admit(request)
        limit = limit_of(request, service.limits.page_messages)
        conversation = await service.read(entry)
        shown, more = await conversation.page(request.query_params.get("before"), limit)
        keys = {key for key, _ in shown} | {message.codec_message_id for _, message in shown}
        runs = [node for node in conversation.branch().nodes if isinstance(node, RunNode)]
        document: dict[str, Any] = {
            "messages": [folded_document(message) for _, message in shown],
            "runs": [run_document(run.info) for run in runs if keys & {run.key, run.parent}],
            "cursor": conversation.cursor,
            "before": shown[0][1].codec_message_id if shown and more else None,
        }
        return Document(document)

    async def say(self, request: Request) -> Response:
        """Write what somebody says, and let an agent answer it."""
        service = self._service
        entry = await service.gate.admit(request, write=True)
        said = await service.gate.read(request, _Input)
        content = _content(said, service.limits.message_parts)
        event_id = _event_id(entry, said.event_id)
        async with service.client(entry) as client:
            if said.steer is not None:
                conversation = await service.read(entry)
                run = await conversation.run(said.steer)
                known = conversation.tree.requests.trigger(event_id)
                if run.info.lifecycle.status in ENDS and known is None:
                    raise Refused(409, "RunEnded", "the run has ended; say this without `steer`")
                steered = await client.steer(run.key, content, event_id=event_id)
                message_id = steered.codec_message_id
            else:
                sent = await _send(client, said, content, event_id)
                message_id = sent.input_codec_message_id
        run_id = await service.start(entry, event_id)
        return Document({"event_id": event_id, "message_id": message_id, "run_id": run_id}, 202)

    async def cancel(self, request: Request) -> Response:
        """Cancel a run, or all that are under way or wait; one that has ended stays as it is."""
        service = self._service
        entry = await service.gate.admit(request, write=True)
        asked = await service.gate.read(request, _Cancel)
        conversation = await service.read(entry)
        if asked.run_id is None:
            cancelled = await cancel_all(service, entry, conversation)
            return Document({"cancelled": cancelled}, 202 if cancelled else 200)
        run = await conversation.run(asked.run_id)
        if run.info.lifecycle.status in ENDS:
            return Document({"cancelled": []})
        await service.app.cancel_turn(entry.session, run.key, entry.client_id)
        return Document({"cancelled": [run.key]}, 202)

    async def answer(self, request: Request) -> Response:
        """Answer an agent that asks whether it may call a tool; the run goes on."""
        service = self._service
        entry = await service.gate.admit(request, write=True)
        said = await service.gate.read(request, _Answer)
        conversation = await service.read(entry)
        tree, item = conversation.tree, request.path_params["item"]
        await conversation.read_back(lambda: find_asked(tree, item, said.run_id) is not None)
        asked = find_asked(tree, item, said.run_id)
        if asked is None:
            raise Refused(404, "UnknownApproval", "no run of the session asks for this approval")
        known = tree.requests.trigger(asked.event_id)
        if known is None and asked.is_open:
            async with service.client(entry) as client:
                await client.approve(
                    asked.tool_call_id,
                    said.approved,
                    said.reason,
                    run_id=asked.run.key,
                    event_id=asked.event_id,
                )
        elif known is None or known.codec.get("approved") != ("true" if said.approved else "false"):
            raise Refused(409, "AlreadyResolved", "this was answered before, or the run has ended")
        run_id = await service.start(entry, asked.event_id)
        return Document({"event_id": asked.event_id, "run_id": run_id}, 202)

    async def invoke(self, request: Request) -> Response:
        """Let an agent answer what a client has written to the channel by itself."""
        service = self._service
        entry = await service.gate.admit(request, write=True)
        asked = await service.gate.read(request, _Invocation)
        if asked.session_name not in (None, entry.session):
            raise Refused(403, "Forbidden", "the invocation is of another session than the path")
        conversation = await service.read(entry)
        requests, event_id = conversation.tree.requests, asked.input_event_id
        if not await conversation.read_back(lambda: requests.trigger(event_id) is not None):
            raise Refused(404, "UnknownInput", "the session has no input of this event id")
        run_id = await service.start(entry, event_id)
        return Document({"event_id": event_id, "run_id": run_id}, 202)


async def cancel_all(service: Service, entry: Entry, conversation: Conversation) -> list[str]:
    """Cancel the runs that have not ended, and one that has not begun yet; return their ids."""
    await conversation.read_all()  # what waits for a person may have been silent for long
    runs = [run.key for run in conversation.open_runs()]
    waiting = conversation.unanswered()
    first = None if waiting is None else waiting.log.first()
    if first is not None and first.header(EVENT_ID):
        # The same invocation is the same run, which can be cancelled before it begins.
        with suppress(RunErased):
            runs.append(await service.start(entry, first.header(EVENT_ID)))
    cancelled: list[str] = []
    for run_id in runs:
        # Of a run that was erased, its session may not have heard the end.
        with suppress(UnknownRun):
            await service.app.cancel_turn(entry.session, run_id, entry.client_id)
            cancelled.append(run_id)
    return cancelled


async def _send(
    client: ClientSession, said: _Input, content: dict[str, Any] | None, event_id: str
) -> Sent:
    if said.regenerate is not None:
        return await client.regenerate(said.regenerate, event_id=event_id)
    if said.edit is not None:
        return await client.edit(said.edit, content, event_id=event_id)
    return await client.send(content, event_id=event_id)


def _content(said: _Input, most_parts: int) -> dict[str, Any] | None:
    """Return what is said, as a UI message; None for the wish that an answer is given anew."""
    aims = [said.edit, said.regenerate, said.steer]
    given = [said.text, said.message, said.regenerate]
    if sum(value is not None for value in given) != 1 or sum(aim is not None for aim in aims) > 1:
        raise Refused(
            400,
            "InvalidBody",
            "send `text` or `message`, with `edit` or `steer` or neither, or else `regenerate`",
        )
    if said.regenerate is not None:
        return None
    message = said.message or {"parts": [{"type": "text", "text": said.text}]}
    parts = message.get("parts")
    if not isinstance(parts, list):
        raise Refused(400, "InvalidBody", "a message has parts, one or more")
    check_said(cast("list[Any]", parts), most_parts)
    named = {"id": message["id"]} if isinstance(message.get("id"), str) else {}
    return {**named, "parts": parts}


def _event_id(entry: Entry, given: str | None) -> str:
    """Return an event id: one that was given is of the client that gave it."""
    if given is None:
        return str(uuid4())
    check_name("an event id", given)
    return own_event(entry, given)


def limit_of(request: Request, most: int) -> int:
    """Return how many messages a request asks for. Raises `Refused`."""
    text = request.query_params.get("limit", str(min(50, most)))
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and 0 < int(text) <= most):
        raise Refused(400, "InvalidLimit", f"the limit is a number from 1 to {most}")
    return int(text)
