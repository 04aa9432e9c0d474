from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.errors import SessionError
from perdure.server.chat_request import ChatBody, wanted
from perdure.server.chatting import Chatting
from perdure.server.conversation import Conversation
from perdure.server.documents import ui_messages
from perdure.server.frames import DONE, frame
from perdure.server.gate import check_json
from perdure.server.problems import Document
from perdure.server.run_chunks import RESUME, RunChunks
from perdure.server.service import Service
from perdure.server.session_routes import cancel_all, limit_of
from perdure.server.traffic import Slot
from perdure.session.codec import Codec
from perdure.session.run_node import RunNode

_HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}
_RESETS: Final = "x-perdure-reset"


class ChatRoutes:
    """The endpoints that `useChat` asks, under `/api/chat`: a chat is a session."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Return the endpoints by their paths."""
        path = "/api/chat/{session:path}"
        return [
            Route("/api/chat", self.post, methods=["POST"]),
            Route(f"{path}/stream", self.resume, methods=["GET"]),
            Route(f"{path}/messages", self.messages, methods=["GET"]),
            Route(f"{path}/stop", self.stop, methods=["POST"]),
        ]

    async def post(self, request: Request) -> Response:
        """Write what a page sends, let an agent answer it, and stream the answer."""
        service = self._service
        grant = await service.gate.identify(request)
        body = await service.gate.read(request, ChatBody)
        entry = service.gate.enter(grant, body.id, write=True)
        asked = wanted(body, service.limits.message_parts)
        conversation = await service.read(entry)
        chunks = _chunks_for(request, service.codec)
        # Before anything is written, so that what is refused has not been said.
        slot = service.gate.open_stream(entry)
        try:
            find = await Chatting(service, entry, conversation, chunks).send(asked)
        except BaseException:
            slot.release()
            raise
        return self._stream(slot, conversation, chunks, find)

    async def resume(self, request: Request) -> Response:
        """Stream the message that is under way from its start, or say that there is none."""
        service = self._service
        entry = await service.gate.admit(request)
        conversation = await service.read(entry)
        running, waiting = conversation.active(), conversation.unanswered()
        if waiting is None and not running:
            return Response(status_code=204)
        # What was said last is answered soon, even if somebody else is answered still.
        run = None if waiting else await conversation.run(running[-1].key)

        def find() -> str:
            # A run that nobody has opened yet goes by what it begins with.
            key = run.key if run else waiting.key if waiting else ""
            return conversation.tree.led_to(key) or (run.key if run else "")

        chunks = _chunks_for(request, service.codec)
        return self._stream(service.gate.open_stream(entry), conversation, chunks, find)

    async def messages(self, request: Request) -> Response:
        """Return the newest messages as `useChat` has them, to begin with."""
        service = self._service
        entry = await service.gate.admit(request)
        conversation = await service.read(entry)
        shown, _ = await conversation.page(None, limit_of(request, service.limits.page_messages))
        runs = [node for node in conversation.tree.nodes if isinstance(node, RunNode)]
        return Document(ui_messages(shown, {run.key: conversation.id_of(run) for run in runs}))

    async def stop(self, request: Request) -> Response:
        """Cancel what is under way or waits; the body is not read."""
        service = self._service
        entry = await service.gate.admit(request, write=True)
        check_json(request)
        cancelled = await cancel_all(service, entry, await service.read(entry))
        return Document({"cancelled": cancelled}, 202 if cancelled else 200)

    def _stream(
        self,
        slot: Slot,
        conversation: Conversation,
        chunks: RunChunks,
        find: Callable[[], str],
    ) -> Response:
        frames = _frames(conversation, chunks, find)
        return self._service.stream(slot, frames, _resume_later, _HEADERS)


async def _frames(
    conversation: Conversation, chunks: RunChunks, find: Callable[[], str]
) -> AsyncGenerator[bytes]:
    """Yield a run as the stream of one message, once `find` knows the run's id."""
    started = False
    try:
        async for _ in conversation.follow():
            run = conversation.tree.run(find())
            if run is None:
                continue
            if not started:
                started = True
                yield frame({"type": "start", "messageId": conversation.id_of(run)})
            for chunk in chunks.advance(run):
                yield frame(chunk)
            if chunks.over:
                yield DONE
                return
    except SessionError:
        yield _resume_later()


def _resume_later() -> bytes:
    """Return what ends a stream that the server cannot go on with."""
    return b"".join(frame(chunk) for chunk in RESUME) + DONE


def _chunks_for(request: Request, codec: Codec) -> RunChunks:
    return RunChunks(codec, resets=request.headers.get(_RESETS) != "resume")
