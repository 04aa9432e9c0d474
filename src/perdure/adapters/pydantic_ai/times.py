from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequestAttempt, ModelResponse


class Times:
    """Replaces the times that this process stamped on messages by times that the journal knows.

    Pydantic AI stamps the messages of a run with the wall clock as they are made, so that two
    executions of one run would differ. A tool's return gets the time at which its operation was
    recorded; everything else gets the time of the response before it, or the start of the run.
    """

    def __init__(self, started_at: float, history: Sequence[ModelMessage]) -> None:
        self._known = {time for message in history for time in _times_of(message)}
        aware = [time for time in self._known if time.tzinfo is not None]
        self._start = max(aware, default=datetime.min.replace(tzinfo=UTC))
        self._start = max(self._start, datetime.fromtimestamp(started_at, UTC))
        self._known.add(self._start)
        self._returned: dict[str, datetime] = {}
        self._settled: dict[int, ModelMessage] = {}

    def learn(self, response: ModelResponse) -> None:
        """Accept the times of a response that came out of the journal."""
        self._known.update(_times_of(response))

    def learn_return(self, tool_call_id: str, finished_at: float) -> None:
        """Accept the time at which the operation of a tool call was recorded."""
        time = datetime.fromtimestamp(finished_at, UTC)
        self._known.add(time)
        self._returned[tool_call_id] = time

    def settle(self, messages: Sequence[ModelMessage], *, again: bool = False) -> None:
        """Give every message and part a time that the journal knows, in place.

        With `again`, also those that were settled before, which may have got parts since.
        """
        if again:
            self._settled.clear()
        fresh = [index for index, m in enumerate(messages) if id(m) not in self._settled]
        for index in fresh:
            message = messages[index]
            self._settle(message, self._latest(messages[:index]))
            # Held on to, so that its id stays its own.
            self._settled[id(message)] = message

    def settle_part(self, part: Any, after: Sequence[ModelMessage]) -> None:
        """Give one part that follows some messages a time that the journal knows, in place."""
        self._settle_part(part, self._latest(after))

    def _latest(self, messages: Sequence[ModelMessage]) -> datetime:
        for message in reversed(messages):
            if isinstance(message, ModelResponse):
                known = message.timestamp.tzinfo is not None and message.timestamp in self._known
                return message.timestamp if known else self._start
        return self._start

    def _settle(self, message: ModelMessage, latest: datetime) -> None:
        for part in message.parts:
            latest = self._settle_part(part, latest)
        if message.timestamp is not None and message.timestamp not in self._known:
            message.timestamp = latest
        if isinstance(message, ModelResponse) and message.failed_attempts:
            message.failed_attempts = [
                self._settle_attempt(attempt, message) for attempt in message.failed_attempts
            ]

    def _settle_part(self, part: Any, latest: datetime) -> datetime:
        """Return the later of a part's time and what was latest before it."""
        time = getattr(part, "timestamp", None)
        if not isinstance(time, datetime):
            return latest
        if time not in self._known:
            time = self._returned.get(getattr(part, "tool_call_id", ""), latest)
            part.timestamp = time
        return latest if time.tzinfo is None else max(latest, time)

    def _settle_attempt(
        self, attempt: ModelRequestAttempt, answered: ModelResponse
    ) -> ModelRequestAttempt:
        """Replace what a fallback between models noted by this process's clock."""
        if attempt.timestamp in self._known:
            return attempt
        return replace(attempt, timestamp=answered.timestamp, duration=timedelta())


def _times_of(message: ModelMessage) -> Iterator[datetime]:
    stamped: list[Any] = [message, *message.parts]
    if isinstance(message, ModelResponse):
        stamped += message.failed_attempts or ()
    for item in stamped:
        time = getattr(item, "timestamp", None)
        if isinstance(time, datetime):
            yield time
