"""What a provider asks for between tries, over HTTP: seconds, a date, and more than is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.system_one import SystemOneModel
from pydantic_ai.providers.system_one import SystemOneProvider

from perdure import Context, RetryPolicy, RunFailed
from perdure.adapters.pydantic_ai import Durable
from perdure.journal.payloads import RetryRequest, parse_retry_request
from perdure.testing.manual_clock import ManualClock
from tests.harness import RUN, app_on, operations, run

_YES: dict[str, Any] = {
    # A decision model, and a chat model.
    "answers": {"response": {"type": "noul", "noul": 1.0}},
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    "id": "c-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "true"}}
    ],
}
Refusal = Callable[[float], tuple[int, str]]
"""Says at a wall time with which status, and with which Retry-After."""
_SECONDS: Refusal = lambda now: (429, "5")  # noqa: E731
_DATE: Refusal = lambda now: (500, formatdate(now + 5, usegmt=True))  # noqa: E731
_HUGE: Refusal = lambda now: (503, "36000")  # noqa: E731


class Provider:
    """A server that refuses as it is told to and then says yes; it notes when it was asked."""

    def __init__(self, clock: ManualClock, *refusals: Refusal) -> None:
        self._clock = clock
        self._refusals = refusals
        self._started_at = clock.now()
        self.hits: list[float] = []

    @asynccontextmanager
    async def url(self) -> AsyncGenerator[str]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        (length,) = (line[15:] for line in head.split("\r\n") if line.startswith("content-length:"))
        await reader.readexactly(int(length))
        now = self._clock.now()
        self.hits.append(now - self._started_at)
        status, more, body = 200, "", msgspec.json.encode(_YES)
        if len(self.hits) <= len(self._refusals):
            status, wait = self._refusals[len(self.hits) - 1](now)
            more, body = f"retry-after: {wait}\r\nx-request-id: req-{len(self.hits)}\r\n", b"{}"
        writer.write(
            f"HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"{more}content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        writer.close()


def decision_model(url: str) -> Model:
    return SystemOneModel("m", provider=SystemOneProvider(base_url=url, api_key="k"))


def chat_model(url: str) -> Model:
    """Return a model whose client tries three times by itself, if nobody tells it not to."""
    pytest.importorskip("openai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIChatModel("m", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="k"))


async def asked(
    folder: Path,
    provider: Provider,
    clock: ManualClock,
    retry: RetryPolicy,
    model: Callable[[str], Model] = decision_model,
) -> tuple[str, list[float]]:
    """Ask a provider within a run; return the answer or the failure, and what was slept."""
    app = app_on(folder, clock=clock)
    slept: list[float] = []

    async def turn() -> None:
        while True:
            await clock.until_sleeping()
            (seconds,) = clock.sleeping
            slept.append(seconds)
            clock.advance(seconds)

    async with provider.url() as url:
        agent = Agent(
            model(url),
            name="judge",
            instructions="Is it so?",
            output_type=bool if model is decision_model else str,
            capabilities=[Durable(retry=retry)],
        )

        @app.run(version=1)
        async def judge(context: Context) -> str:
            return str((await agent.run("So it is.")).output).lower()

        async with app:
            turning = asyncio.create_task(turn())
            try:
                answer = await (await app.start(judge, run_id=RUN)).result()
            except RunFailed as failed:
                answer = failed.code
            turning.cancel()
    return answer, slept


async def requests(folder: Path) -> list[RetryRequest]:
    """Return the delays that the run recorded."""
    app = app_on(folder)
    rows = await operations(app)
    async with app.connect():
        return [
            parse_retry_request(await app.store.read_input(RUN, row.step_id, row.sequence))
            for row in rows
            if row.kind == "retry_delay"
        ]


@pytest.mark.parametrize("model", [decision_model, chat_model])
def test_what_a_server_asks_for_is_waited_once_up_to_the_maximum(
    tmp_path: Path, model: Callable[[str], Model]
) -> None:
    """T39: one layer retries, and the provider's client does not."""
    clock = ManualClock()
    provider = Provider(clock, _SECONDS, _DATE, _HUGE)
    retry = RetryPolicy(attempts=4)
    assert run(asked(tmp_path, provider, clock, retry, model)) == ("true", [5.0, 5.0, 8.0])
    assert provider.hits == [0.0, 5.0, 10.0, 18.0]
    recorded = [msgspec.structs.astuple(delay)[:6] for delay in run(requests(tmp_path))]
    assert recorded == [
        (5000, 1, 1, 5000, "ModelRateLimitError", 5),
        (5000, 2, 1, 10000, "ModelServerError", 5),
        (8000, 3, 1, 18000, "ModelUnavailableError", 36_000),
    ]


def test_a_server_that_asks_for_more_than_is_left_is_not_asked_again(tmp_path: Path) -> None:
    clock = ManualClock()
    provider = Provider(clock, *[_SECONDS, _DATE, _HUGE] * 3)
    retry = RetryPolicy(attempts=9, most_delay_seconds=17.5)
    assert run(asked(tmp_path, provider, clock, retry)) == ("ModelUnavailableError", [5.0, 5.0])
    assert provider.hits == [0.0, 5.0, 10.0]


def test_a_policy_may_pay_no_heed_and_what_was_said_is_recorded(tmp_path: Path) -> None:
    clock = ManualClock()
    provider = Provider(clock, _DATE)
    retry = RetryPolicy(respect_retry_after=False)
    answer, slept = run(asked(tmp_path, provider, clock, retry))
    assert (answer, slept) == ("true", [pytest.approx(0.02)])
    (delay,) = run(requests(tmp_path))
    assert (delay.retry_after_seconds, delay.provider_request_id) == (5, "req-1")
