"""A model that answers from a script, through Pydantic AI's own model interface."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RequestUsage

from perdure.clock import Clock, SystemClock


@dataclass(frozen=True)
class Call:
    """A tool call of a scripted reply; without an `id` it gets one from its place."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    id: str | None = None

    def written(self) -> str:
        """Return the arguments as the JSON that a model writes."""
        return json.dumps(self.arguments, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class Trouble:
    """An error that a scripted request meets before its reply.

    With `after_chunks`, a streamed request gives that many chunks first.
    """

    error: Exception
    after_chunks: int = 0


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One response of a script: thinking, then text, then tool calls, whichever are there.

    `troubles` are met by the first attempts at this request, one each.
    """

    text: str = ""
    thinking: str = ""
    calls: Sequence[Call] = ()
    troubles: Sequence[Trouble] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None

    def parts(self, request: int) -> list[ModelResponsePart]:
        """Return the parts of this reply as the answer to a request."""
        parts: list[ModelResponsePart] = []
        if self.thinking:
            parts.append(ThinkingPart(self.thinking))
        if self.text or not (self.thinking or self.calls):
            parts.append(TextPart(self.text))
        for ordinal, call in enumerate(self.calls, 1):
            call_id = call.id or f"call-{request}-{ordinal}"
            parts.append(ToolCallPart(call.tool, call.written(), call_id))
        return parts

    def usage(self, messages: Sequence[ModelMessage]) -> RequestUsage:
        """Return the usage as written, or plausible numbers."""
        written = len(self.text) + len(self.thinking)
        written += sum(len(call.written()) for call in self.calls)
        read = 40 + 20 * len(messages) if self.input_tokens is None else self.input_tokens
        wrote = 1 + written // 4 if self.output_tokens is None else self.output_tokens
        return RequestUsage(input_tokens=read, output_tokens=wrote)


@dataclass(frozen=True)
class Request:
    """A request as it reaches the model: its place in the conversation, and which attempt it is."""

    number: int
    attempt: int
    streamed: bool
    messages: Sequence[ModelMessage] = field(repr=False)


Script: TypeAlias = Sequence[Reply | str]


class ScriptedModel(Model[None]):
    """Answers the n-th request of a conversation with the n-th reply of its script.

    The place is told by the responses that are already in the conversation, so that a fresh
    process goes on where another one stopped. A conversation longer than the script gets the last
    reply again.

    With `log`, every request appends one JSON line to that file before it is answered, so that
    requests can be counted from outside and attempts are counted across processes.
    `on_request` is called with each request, `on_chunk` with the number of each streamed chunk
    once it has been taken. `clock` stamps the responses.
    """

    def __init__(
        self,
        script: Script,
        *,
        name: str = "scripted",
        chunk_characters: int = 12,
        chunk_delay_seconds: float = 0.0,
        log: Path | None = None,
        clock: Clock | None = None,
        on_request: Callable[[Request], None] | None = None,
        on_chunk: Callable[[Request, int], None] | None = None,
    ) -> None:
        super().__init__()
        if not script:
            raise ValueError("a script needs at least one reply")
        self._script = [Reply(text=item) if isinstance(item, str) else item for item in script]
        self._name = name
        self._chunk_characters = chunk_characters
        self._chunk_delay_seconds = chunk_delay_seconds
        self._log = log
        self._clock = clock or SystemClock()
        self._on_request = on_request
        self._on_chunk = on_chunk
        self._attempts: Counter[int] = Counter()

    @property
    def model_name(self) -> str:
        """The name that the script answers under."""
        return self._name

    @property
    def system(self) -> str:
        """The provider's name."""
        return "scripted"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Answer with the whole reply at once."""
        self.prepare_request(model_settings, model_request_parameters)
        request, reply = self._receive(messages, streamed=False)
        trouble = _trouble(reply, request)
        if trouble is not None:
            raise trouble.error
        return ModelResponse(
            parts=reply.parts(request.number),
            usage=reply.usage(messages),
            model_name=self._name,
            timestamp=self.now(),
            provider_name=self.system,
            provider_response_id=f"response-{request.number}",
            finish_reason="tool_call" if reply.calls else "stop",
        )

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Answer in chunks, as providers do."""
        del run_context
        _, parameters = self.prepare_request(model_settings, model_request_parameters)
        request, reply = self._receive(messages, streamed=True)
        trouble = _trouble(reply, request)
        if trouble is not None and trouble.after_chunks == 0:
            raise trouble.error
        yield _ScriptedStream(parameters, self, request, reply, trouble)

    async def chunk_taken(self, request: Request, number: int) -> None:
        """Report a streamed chunk and wait as long as a provider would before the next."""
        if self._on_chunk is not None:
            self._on_chunk(request, number)
        if self._chunk_delay_seconds:
            await asyncio.sleep(self._chunk_delay_seconds)

    def now(self) -> datetime:
        """Return the time that a response is stamped with."""
        return datetime.fromtimestamp(self._clock.now(), UTC)

    def chunks(self, text: str) -> Iterator[str]:
        """Cut a text as a provider's stream does."""
        for start in range(0, max(1, len(text)), self._chunk_characters):
            yield text[start : start + self._chunk_characters]

    def _receive(
        self, messages: Sequence[ModelMessage], *, streamed: bool
    ) -> tuple[Request, Reply]:
        number = 1 + sum(isinstance(message, ModelResponse) for message in messages)
        request = Request(number, self._attempt(number, streamed=streamed), streamed, messages)
        if self._on_request is not None:
            self._on_request(request)
        return request, self._script[min(number, len(self._script)) - 1]

    def _attempt(self, number: int, *, streamed: bool) -> int:
        if self._log is None:
            self._attempts[number] += 1
            return self._attempts[number]
        line = json.dumps({"request": number, "streamed": streamed, "pid": os.getpid()})
        with self._log.open("a") as log:
            log.write(line + "\n")
        written = [json.loads(line) for line in self._log.read_text().splitlines()]
        return sum(entry["request"] == number for entry in written)


@dataclass
class _ScriptedStream(StreamedResponse):
    _model: ScriptedModel
    _request: Request
    _reply: Reply
    _trouble: Trouble | None
    _started_at: datetime = field(init=False)

    def __post_init__(self) -> None:
        self._started_at = self._model.now()
        self.provider_response_id = f"response-{self._request.number}"

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        taken = 0
        for index, part in enumerate(self._reply.parts(self._request.number)):
            for events in self._deltas(index, part):
                if self._trouble is not None and taken == self._trouble.after_chunks:
                    raise self._trouble.error
                for event in events:
                    yield event
                taken += 1
                await self._model.chunk_taken(self._request, taken)
        self._usage = self._reply.usage(self._request.messages)
        self.finish_reason = "tool_call" if self._reply.calls else "stop"

    def _deltas(
        self, index: int, part: ModelResponsePart
    ) -> Iterator[Iterator[ModelResponseStreamEvent]]:
        manager = self._parts_manager
        match part:
            case TextPart():
                for text in self._model.chunks(part.content):
                    yield manager.handle_text_delta(vendor_part_id=index, content=text)
            case ThinkingPart():
                for text in self._model.chunks(part.content):
                    yield manager.handle_thinking_delta(vendor_part_id=index, content=text)
            case ToolCallPart():
                name, call_id = part.tool_name, part.tool_call_id
                for args in self._model.chunks(part.args_as_json_str()):
                    yield manager.handle_tool_call_delta_events(
                        vendor_part_id=index, tool_name=name, args=args, tool_call_id=call_id
                    )
                    name = call_id = None
            case _:
                raise TypeError(f"a script has no part of kind {part.part_kind}")

    async def close_stream(self) -> None:
        """Return at once: a script has no connection to close."""

    @property
    def model_name(self) -> str:
        return self._model.model_name

    @property
    def provider_name(self) -> str:
        return self._model.system

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self._started_at


def _trouble(reply: Reply, request: Request) -> Trouble | None:
    met = request.attempt - 1
    return reply.troubles[met] if met < len(reply.troubles) else None
