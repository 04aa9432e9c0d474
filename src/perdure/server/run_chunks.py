from __future__ import annotations

from typing import Any, Final, cast

from perdure.server.answer_chunks import answer_chunk, seed_chunks
from perdure.session.attempts import Standing
from perdure.session.codec import Codec, Input, Output
from perdure.session.headers import KIND
from perdure.session.lifecycle import Lifecycle, RunStatus
from perdure.session.message import Action, WireMessage
from perdure.session.run_node import RunNode

Chunk = dict[str, Any]

RESUME: Final[tuple[Chunk, ...]] = (
    {"type": "data-perdure-resume", "data": {}, "transient": True},
    {"type": "error", "errorText": "the stream has to be resumed"},
)
"""Ask the page to resume the stream, where that cannot go on; one that cannot shows an error."""

# Chunks about the whole of a message. The run is one message, whatever number it consists of.
_OF_MESSAGES: Final = {"start", "finish", "message-metadata", "error", "abort"}
_TEXTS: Final = ("text", "reasoning")


class RunChunks:
    """A run as the chunks of one UI message, told to one reader who has some of them already.

    The run may have written several messages, such as one for each request to its model: here they
    are the steps of one, whose id is the run's. A step that another attempt replaces is taken back
    with `reset-step`, which is known from version 7 of the AI SDK on; readers who do not know it
    (`resets` is False), or who have steps behind it, are told to resume, and get the message anew.
    """

    def __init__(self, codec: Codec, *, resets: bool = True) -> None:
        self.over = False
        """Whether the message has come to its end."""
        self._codec = codec
        self._resets = resets
        self._since = ""  # an end of the run up to this serial is none
        self._tells_answers = True
        self._told: list[WireMessage] = []
        self._step_at = 0  # where the last step begins among what was told
        self._in_step = False
        self._is_blank = False  # a step is open that was taken back
        self._noted: dict[str, str] = {}
        self._finish: Chunk = {}
        self._open: dict[tuple[str, str], None] = {}
        self._approvals: dict[str, str] = {}  # the ids of approvals by that of their calls
        self._calls: dict[str, int] = {}  # by their id: where they begin among what was told

    def go_on(self) -> None:
        """Tell nothing of answers: the reader has given them, and has the message up to there."""
        self._tells_answers = False

    def skip(self, run: RunNode, before: str | None) -> None:
        """Take note of what the reader has of a run: all, or what is before the serial `before`."""
        self._since = before or run.info.lifecycle.end_serial or ""
        self._advance(run, before)

    def advance(self, run: RunNode) -> list[Chunk]:
        """Return what is new in a run."""
        chunks = self._advance(run, None)
        if self.over:
            return chunks
        life = run.info.lifecycle
        if life.status is not RunStatus.ACTIVE and (life.end_serial or "") > self._since:
            chunks += self._end(life)
            self.over = True
        return chunks

    def _advance(self, run: RunNode, before: str | None) -> list[Chunk]:
        content, chunks = self._content(run, before)
        kept = 0
        for told, now in zip(self._told, content, strict=False):
            more = self._more(told, now, kept)
            if more is None:
                break
            self._told[kept] = now
            chunks += [chunk for one in more for chunk in self._tell(one)]
            kept += 1
        if kept < len(self._told):
            if not self._resets or kept < self._step_at:
                self.over = True
                return [*chunks, *RESUME]
            chunks.append({"type": "reset-step"})
            self._take_back()
        for message in content[len(self._told) :]:
            chunks += self._new(message)
        return chunks

    def _content(self, run: RunNode, before: str | None) -> tuple[list[WireMessage], list[Chunk]]:
        """Return what counts of a run, and chunks about the whole message that are new."""
        content: list[WireMessage] = []
        chunks: list[Chunk] = []
        for message in run.log.entries():
            counts = run.attempts.standing(message) is Standing.COUNTS
            if not counts or message.action is Action.DELETE:
                continue
            if before is not None and message.serial >= before:
                break
            if message.codec.get(KIND) not in _OF_MESSAGES:
                content.append(message)
            elif self._noted.get(message.serial) != message.version:
                self._noted[message.serial] = message.version
                chunks += self._note(message)
        return content, chunks

    def _note(self, message: WireMessage) -> list[Chunk]:
        """Keep how a message finished, for the end of the run; return what it says of itself."""
        found: list[Chunk] = []
        for event in self._codec.decode(message) or ():
            chunk = event.chunk if isinstance(event, Output) else {}
            if chunk.get("type") == "finish":
                self._finish = chunk
            elif "messageMetadata" in chunk:
                metadata = chunk["messageMetadata"]
                found.append({"type": "message-metadata", "messageMetadata": metadata})
        return found

    def _more(self, told: WireMessage, now: WireMessage, index: int) -> list[Chunk] | None:
        """Return what a message has beyond what was told of it; None if it does not continue."""
        if told.serial != now.serial:
            return None
        if told.version == now.version:
            return []
        events = self._codec.decode(now, before=told)
        if events is None:
            return None
        chunks = [event.chunk for event in events if isinstance(event, Output)]
        # What belongs to an earlier step cannot be said any more.
        return None if chunks and index < self._step_at else chunks

    def _new(self, message: WireMessage) -> list[Chunk]:
        chunks: list[Chunk] = []
        for event in self._codec.decode(message) or ():
            if isinstance(event, Input):
                answers = self._answered(event)
                chunks += answers if self._tells_answers else []
                continue
            if event.chunk["type"] == "start-step":
                self._step_at = len(self._told)
            chunks += self._tell(event.chunk)
        self._told.append(message)
        return chunks

    def _tell(self, chunk: Chunk) -> list[Chunk]:
        """Return a chunk as it is told, and note what it leaves open."""
        kind: str = chunk["type"]
        family, _, verb = kind.rpartition("-")
        if kind == "start-step":
            was_blank, self._is_blank, self._in_step = self._is_blank, False, True
            return [] if was_blank else [chunk]
        if kind == "finish-step":
            self._in_step = False
            return [chunk]
        if family in _TEXTS and verb == "start":
            self._open[family, chunk.get("id", "")] = None
        elif family in _TEXTS and verb == "end":
            self._open.pop((family, chunk.get("id", "")), None)
        elif family == "tool-input":
            self._calls.setdefault(chunk.get("toolCallId", ""), len(self._told))
        elif "toolCallId" in chunk and chunk["toolCallId"] not in self._calls:
            return []  # readers break off at what is said of a call that they do not have
        if kind == "tool-approval-request":
            self._approvals[chunk.get("toolCallId", "")] = chunk.get("approvalId", "")
        self._is_blank = False
        return [chunk]

    def _take_back(self) -> None:
        """Forget what was told of the last step, whose begin the reader keeps."""
        began = self._told[self._step_at :][:1]
        self._told = self._told[: self._step_at]
        self._is_blank = bool(began) and began[0].codec.get(KIND) == "start-step"
        self._in_step = self._is_blank
        self._open.clear()
        kept = self._calls.items()
        self._calls = {call: index for call, index in kept if index < self._step_at}

    def _answered(self, answer: Input) -> list[Chunk]:
        """Return what an answer to the run changes in its message; steering changes nothing."""
        seeded = [
            told
            for chunk in seed_chunks(answer.payload.get("seed") or ())
            for told in self._tell(chunk)
        ]
        chunk = answer_chunk(answer, self._approvals if self._resets else None)
        known = answer.payload.get("toolCallId") in self._calls
        return [*seeded, chunk] if chunk is not None and known else seeded

    def _end(self, life: Lifecycle) -> list[Chunk]:
        chunks: list[Chunk] = [{"type": f"{family}-end", "id": key} for family, key in self._open]
        if self._in_step:
            chunks.append({"type": "finish-step"})
        match life.status:
            case RunStatus.CANCELLED:
                chunks.append({"type": "abort", "reason": "cancelled"})
            case RunStatus.ERROR:
                fault = life.fault
                chunks.append({"type": "error", "errorText": fault.message if fault else ""})
            case RunStatus.SUSPENDED:
                chunks.append({"type": "finish", "finishReason": "tool-calls"})
            case _:
                said = cast("Chunk", {"finishReason": "stop", **self._finish})
                chunks.append({**said, "type": "finish"})
        return chunks
