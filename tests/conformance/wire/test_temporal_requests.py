"""The vectors of operations on Temporal: what starts one, what is refused, and what may come back.

Some are of a client that reaches Temporal over HTTP, which this library's runtime does not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from temporalio.client import Client

from perdure import errors
from perdure.journal import Invocation, OperationKind, parse_invocation
from perdure.journal.binding import check_record
from perdure.runtimes.temporal import OperationOptions, TemporalRuntime
from perdure.runtimes.temporal.names import PERDURE, ZIGAI
from perdure.runtimes.temporal.payload import document_value, record_of
from perdure.runtimes.temporal.request import parse_request
from tests.harness import run

VECTORS = Path(__file__).parents[2] / "vectors" / "temporal" / "requests.jsonl"
OVER_HTTP = {"config/endpoint-empty", "config/token-empty"}
NAMES = {
    "InvalidConfiguration": "InvalidOptions",
    "InputTooLarge": "InvalidPayload",
    "RequestTooLarge": "InvalidPayload",
}
SECONDS = {
    "start_to_close_timeout_ms": "start_to_close_seconds",
    "schedule_to_close_timeout_ms": "schedule_to_close_seconds",
    "heartbeat_timeout_ms": "heartbeat_seconds",
    "initial_interval_ms": "initial_interval_seconds",
    "backoff_coefficient_milli": "backoff_coefficient",
    "maximum_interval_ms": "maximum_interval_seconds",
}


def load(*, valid: bool) -> list[Any]:
    rows = [json.loads(line) for line in VECTORS.read_bytes().splitlines()]
    return [
        pytest.param(row, id=row["name"])
        for row in rows
        if row["valid"] is valid
        and row["name"] not in OVER_HTTP
        and not row["name"].startswith("status/")
    ]


def given(row: dict[str, Any]) -> dict[str, Any]:
    if "document_parts" in row:
        return json.loads("".join(text * count for text, count in row["document_parts"]))
    return json.loads(row["document"])


def options_of(document: dict[str, Any]) -> OperationOptions:
    told = {**document, **document.get("retry", {})}
    options = {name: told[key] / 1000 for key, name in SECONDS.items() if key in told}
    if "maximum_attempts" in told:
        options["maximum_attempts"] = told["maximum_attempts"]
    if "max_input_bytes" in told:
        options["input_limit_bytes"] = told["max_input_bytes"]
    return OperationOptions(**options)


def runtime_of(document: dict[str, Any]) -> TemporalRuntime:
    asked = document["invocation"]
    registrations = document.get("registrations", [asked])

    async def lazily() -> Client:
        namespace = document.get("namespace", "default")
        return await Client.connect("127.0.0.1:1", namespace=namespace, lazy=True)

    return TemporalRuntime(
        run(lazily()),
        task_queue=document.get("task_queue", "zigai-agents"),
        registrations=[(OperationKind(each["kind"]), each["handler_id"]) for each in registrations],
        options=options_of(document),
    )


def asked_in(document: dict[str, Any]) -> Invocation:
    return parse_invocation(json.dumps(document["invocation"]).encode())


def answer(document: dict[str, Any], invocation: Invocation) -> None:
    body = document.get("response_body")
    if body is not None:
        check_record(record_of(document_value(json.dumps(body).encode())), invocation)


def execute(document: dict[str, Any]) -> None:
    runtime = runtime_of(document)
    invocation = asked_in(document)
    runtime.request(invocation)
    answer(document, invocation)


@pytest.mark.parametrize("row", load(valid=True))
def test_what_starts_an_operation(row: dict[str, Any]) -> None:
    document = given(row)
    invocation = asked_in(document)
    request = parse_request(runtime_of(document).request(invocation))
    assert (request.names, request.invocation) == (PERDURE, invocation)
    theirs = msgspec.structs.replace(request, names=ZIGAI)
    assert theirs.encode() == row["canonical"].encode()
    assert parse_request(row["canonical"].encode()) == theirs
    answer(document, invocation)


@pytest.mark.parametrize("row", load(valid=False))
def test_what_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(getattr(errors, NAMES.get(row["error"], row["error"]))):
        execute(given(row))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("version", True),
        ("version", 1.0),
        ("namespace", "a/b"),
        ("task_queue", ""),
        ("workflow_id", "run-1/model.request/2"),
        ("activity.start_to_close_timeout_ms", 1 << 62),
        ("activity.start_to_close_timeout_ms", 900_001),
        ("activity.retry.maximum_attempts", True),
        ("activity.retry.backoff_coefficient_milli", 999),
        ("invocation.input_json", "NaN"),
        ("invocation.input_json", '{"a":1,"a":2}'),
        ("invocation.more", 1),
        ("more", 1),
    ],
    ids=str,
)
def test_a_request_is_read_strictly(place: str, value: object) -> None:
    document = json.loads(load(valid=True)[0].values[0]["canonical"])
    *path, last = place.split(".")
    target = document
    for step in path:
        target = target[step]
    target[last] = value
    with pytest.raises((errors.InvalidPayload, errors.InvalidInvocation)):
        parse_request(json.dumps(document).encode())
    with pytest.raises(errors.InvalidPayload):
        parse_request(b"\xef\xbb\xbf" + json.dumps(document).encode())
