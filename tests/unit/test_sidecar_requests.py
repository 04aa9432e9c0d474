"""The endpoints of a sidecar: who is let in, how many at once, and what everybody is told."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

from perdure.journal import Invocation, Record, Success, encode_record, parse_record
from tests.harness import run
from tests.sidecars import QUEUE, TOKEN, Asked, asked, body_of, put, until


@pytest.mark.parametrize("family", ["perdure", "zigai"])
def test_an_operation_is_answered_with_its_record_under_both_names(family: str) -> None:
    async def main() -> None:
        async with asked() as it:
            first = await it.execute(body_of(family=family))
            again = await it.execute(body_of(family=family))
            assert first.status_code == 200
            assert first.headers["content-type"] == "application/json; charset=utf-8"
            assert parse_record(first.content).invocation.stable_key == "r1/model.request/1"
            assert again.content == first.content
            assert len(it.answers.tasks) == 1

    run(main())


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("version", True, "version"),
        ("version", 1.5, "version"),
        ("namespace", "other", "another namespace"),
        ("task_queue", "other", "another task_queue"),
        ("activity_name", "zigai.execute.v1", "zigai.operation.v1 and zigai.execute.v1"),
        ("workflow_id", "r1/model.request/2", "workflow id"),
        ("invocation.sequence", True, "sequence"),
        ("invocation.sequence", 1.0, "sequence"),
        ("invocation.sequence", -1, "sequence"),
        ("invocation.handler_id", "other", "no model_request handler 'other'"),
        ("invocation.kind", "tool_call", "no tool_call handler 'support-model'"),
        ("invocation.input_json", "", "empty"),
        ("invocation.input_json", "\ufeff{}", "byte order mark"),
        ("invocation.input_json", '{"a":1,"\\u0061":2}', "stands twice"),
        ("activity.heartbeat_timeout_ms", 0, "heartbeat_timeout_ms"),
        ("activity.heartbeat_timeout_ms", False, "heartbeat_timeout_ms"),
        ("activity.start_to_close_timeout_ms", 2**63, "start_to_close_timeout_ms"),
        ("activity.start_to_close_timeout_ms", 60_001, "start_to_close"),
        ("activity.schedule_to_close_timeout_ms", 86_400_001, "is 86400000 at most"),
        ("activity.retry.maximum_attempts", 101, "is 100 at most"),
        ("activity.retry.maximum_interval_ms", 86_400_001, "is 86400000 at most"),
        ("activity.retry.initial_interval_ms", "10", "initial_interval_ms"),
    ],
)
def test_a_request_that_is_not_one_is_refused_with_the_reason(
    path: str, value: Any, says: str
) -> None:
    async def main() -> None:
        async with asked() as it:
            response = await it.execute(put(body_of(), path, value))
            assert response.status_code == 400
            assert says in response.text
            assert it.answers.tasks == {}

    run(main())


def test_members_that_stand_twice_and_what_is_not_utf_8_are_refused() -> None:
    async def main() -> None:
        async with asked() as it:
            text = json.dumps(body_of())
            for body in (
                text.replace('"version": 1', '"version": 1, "version": 1').encode(),
                text.encode("utf-16"),
                b"\xef\xbb\xbf" + text.encode(),
                b'{"a":' * 100_000,
            ):
                response = await it.execute(body)
                assert (response.status_code, len(response.text) < 500) == (400, True)
            assert it.answers.tasks == {}
            for path in ("/v1/execute/", "//v1/execute", "/v1/Execute", "/"):
                found = await it.client.post(path, content=b"{}", headers={"authorization": TOKEN})
                assert (path, found.status_code) == (path, 404)

    run(main())


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "Bearer s3cre")],
        [("authorization", "Bearer s3cret ü")],
        [("authorization", "bearer s3cret")],
        [("authorization", TOKEN), ("authorization", TOKEN)],
        [("authorization", "x"), ("authorization", TOKEN)],
    ],
    ids=lambda headers: str(len(headers)),
)
def test_only_the_whole_token_once_lets_in(
    headers: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        async with asked() as it:
            sent = [(name.encode(), value.encode("latin-1")) for name, value in headers]
            response = await it.execute(b"{", headers=sent)
            assert response.status_code == 401
            assert "s3cre" not in response.text

    run(main())
    assert "s3cre" not in caplog.text


def test_without_a_token_everybody_is_let_in() -> None:
    async def main() -> None:
        async with asked(authorization=None) as it:
            assert (await it.execute(body_of(), headers={})).status_code == 200

    run(main())


def test_large_headers_and_bodies_are_refused_also_in_pieces() -> None:
    async def pieces() -> Any:
        for _ in range(4):
            yield b" " * 1000

    async def main() -> None:
        async with asked(max_request_bytes=3000, input_bytes=10) as it:
            whole = await it.execute(b" " * 3001)
            streamed = await it.client.post(
                "/v1/execute", content=pieces(), headers={"authorization": TOKEN}
            )
            far = await it.execute(b" " * 3000 * 9)
            assert [r.status_code for r in (whole, streamed, far)] == [413, 413, 413]
            assert "3000 bytes" in whole.text
            deep = await it.execute(body_of(input_json='"aaaaaaaaaa"'))
            assert (deep.status_code, "10 bytes" in deep.text) == (400, True)
            headers = {"authorization": TOKEN, "x": "y" * 20_000}
            assert (await it.execute(body_of(), headers=headers)).status_code in {400, 431}

    run(main())


HEAD = f"POST /v1/execute HTTP/1.1\r\nhost: x\r\nauthorization: {TOKEN}\r\n"
BEGUN = f"{HEAD}content-length: 9\r\n\r\n{{"
REFUSED = "POST /v1/execute HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"


async def spoken(it: Asked, said: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Say something to a sidecar on a connection of its own."""
    url = it.client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port, limit=1000)
    writer.write(said.encode())
    return reader, writer


def whole(body: dict[str, Any]) -> str:
    text = json.dumps(body)
    return f"{HEAD}content-length: {len(text)}\r\n\r\n{text}"


def test_a_body_that_comes_too_slowly_gives_its_place_back() -> None:
    async def main() -> None:
        async with asked(body_seconds=0.5, bodies=1) as it:
            reader, writer = await spoken(it, BEGUN)
            assert b" 408 " in await reader.readline()
            writer.close()
            assert (await it.execute(body_of())).status_code == 200

    run(main())


@pytest.mark.parametrize(
    "said", ["", "POST /v1/exec", REFUSED], ids=["nothing", "half a head", "a refused body"]
)
def test_who_opens_a_connection_and_says_little_is_not_kept(said: str) -> None:
    async def main() -> None:
        async with asked(body_seconds=0.3) as it:
            reader, writer = await spoken(it, said)
            if said == REFUSED:
                await reader.readuntil(b"of this sidecar")
                writer.write(b"{")
            await until(lambda: not it.http.server_state.connections)
            writer.close()

    run(main())


def test_who_takes_nothing_of_an_answer_is_not_kept() -> None:
    async def large(invocation: Invocation, _: float) -> bytes:
        return encode_record(Record(invocation, Success(json.dumps("x" * 8_000_000).encode())))

    async def main() -> None:
        async with asked(large, body_seconds=0.5) as it:
            _, writer = await spoken(it, whole(body_of()))
            await until(lambda: bool(it.answers.tasks))
            await until(lambda: not it.http.server_state.connections)
            writer.close()

    run(main())


def test_requests_that_come_one_behind_the_other_are_answered_in_their_order() -> None:
    async def main() -> None:
        async with asked() as it:
            reader, writer = await spoken(it, whole(body_of("r1")) + whole(body_of("r2")))
            for run_id in (b'"r1"', b'"r2"'):
                assert run_id in await reader.readuntil(b'"output_json"')
            writer.close()

    run(main())


def test_who_goes_away_within_a_body_is_no_failure_of_the_sidecar(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with asked() as it:
            _, writer = await spoken(it, BEGUN)
            await until(lambda: bool(it.sidecar._open))
            writer.close()
            await until(lambda: not it.sidecar._open)
            assert await metric(it, 'perdure_sidecar_requests_total{status="400"} 1.0')

    run(main())
    assert not [entry for entry in caplog.records if entry.levelno >= logging.WARNING]


def test_more_requests_than_there_may_be_are_told_to_come_back() -> None:
    async def main() -> None:
        async with asked(requests=3) as it:
            it.answers.held.clear()
            waiting = [asyncio.create_task(it.execute(body_of(f"r{n}"))) for n in range(3)]
            await until(lambda: len(it.answers.tasks) == 3)
            refused = await it.execute(body_of("r4"))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            it.answers.held.set()
            assert {r.status_code for r in await asyncio.gather(*waiting)} == {200}
            assert (await it.execute(body_of("r4"))).status_code == 200

    run(main())


def test_of_many_requests_only_a_few_bodies_are_read_at_once() -> None:
    begun, most = 0, 0

    async def main() -> None:
        async with asked(bodies=4) as it:
            begin = it.answers.begin

            async def slow(request: Any) -> Any:
                nonlocal begun, most
                begun += 1
                most = max(most, begun)
                await asyncio.sleep(0)
                begun -= 1
                return await begin(request)

            it.answers.begin = slow  # type: ignore[method-assign]
            text = "x" * 100_000
            requests = [
                it.execute(body_of(f"r{n}", input_json=json.dumps(text))) for n in range(60)
            ]
            answers = await asyncio.gather(*requests)
            assert {answer.status_code for answer in answers} == {200}

    run(main())
    assert 1 <= most <= 4


def test_who_goes_away_is_not_waited_for_and_the_operation_goes_on() -> None:
    async def main() -> None:
        async with asked() as it:
            it.answers.held.clear()
            with pytest.raises(httpx.ReadTimeout):
                await it.execute(body_of(), timeout=httpx.Timeout(60, read=0.2))
            await until(lambda: not it.sidecar._open)
            it.answers.held.set()
            assert (await it.execute(body_of())).status_code == 200
            assert len(it.answers.tasks) == 1

    run(main())


def test_a_record_that_does_not_come_in_time_is_asked_for_again() -> None:
    async def main() -> None:
        async with asked(wait_seconds=0.05) as it:
            it.answers.held.clear()
            late = await it.execute(body_of())
            assert (late.status_code, late.headers["retry-after"]) == (503, "1")
            it.answers.held.set()
            assert (await it.execute(body_of())).status_code == 200

    run(main())


def test_closing_answers_what_is_open_and_refuses_what_comes() -> None:
    async def main() -> None:
        async with asked(drain_seconds=0.2) as it:
            it.answers.held.clear()
            waiting = asyncio.create_task(it.execute(body_of()))
            await until(lambda: len(it.answers.tasks) == 1)
            draining = asyncio.create_task(it.sidecar.drain())
            await asyncio.sleep(0)
            assert (await it.execute(body_of("r2"))).status_code == 503
            assert (await it.client.get("/healthz")).status_code == 503
            assert (await it.client.get("/readyz")).status_code == 503
            await draining
            assert (await waiting).status_code == 503
            assert "goes on" in (await waiting).text

    run(main())


def test_a_body_that_comes_slowly_does_not_keep_a_sidecar_from_closing() -> None:
    async def main() -> None:
        async with asked(drain_seconds=0.05, body_seconds=60, bodies=1) as it:
            slow, writer = await spoken(it, BEGUN)
            await until(lambda: bool(it.sidecar._open))
            behind = asyncio.create_task(it.execute(body_of()))
            await until(lambda: len(it.sidecar._open) == 2)
            await it.sidecar.drain()
            assert b" 503 " in await slow.readline()
            assert (await behind).status_code == 503
            writer.close()

    run(main())


def test_what_ends_while_it_closes_is_still_answered() -> None:
    async def main() -> None:
        async with asked(drain_seconds=10.0) as it:
            it.answers.held.clear()
            waiting = asyncio.create_task(it.execute(body_of()))
            await until(lambda: len(it.answers.tasks) == 1)
            it.http.should_exit = True
            await until(lambda: it.sidecar._draining)
            it.answers.held.set()
            assert (await waiting).status_code == 200

    run(main())


async def metric(it: Asked, line: str) -> bool:
    return line in (await it.client.get("/metrics")).text.splitlines()


def test_health_readiness_and_metrics() -> None:
    async def main() -> None:
        async with asked() as it:
            assert (await it.client.get("/healthz")).text == "ok"
            assert (await it.client.get("/readyz")).status_code == 200
            await it.execute(body_of())
            await it.execute(b"{")
            assert await metric(it, 'perdure_sidecar_requests_total{status="200"} 1.0')
            assert await metric(it, 'perdure_sidecar_requests_total{status="400"} 1.0')
            assert await metric(it, "perdure_sidecar_open_requests 0.0")
            it.answers.reachable = False
            assert (await it.client.get("/readyz")).status_code == 503
            refused = await it.execute(body_of("r2"))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")

    run(main())


def test_what_fails_in_the_sidecar_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(*_: Any) -> bytes:
        raise RuntimeError("a path of this machine")

    async def main() -> None:
        async with asked(broken) as it:
            response = await it.execute(body_of())
            assert (response.status_code, "path" in response.text) == (500, False)
            assert QUEUE not in response.text

    run(main())
    assert "a path of this machine" in caplog.text
