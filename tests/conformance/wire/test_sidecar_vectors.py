"""What other programs send to a sidecar: each request gets the status that the protocol says."""

from __future__ import annotations

import base64
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import InvalidOptions
from perdure.journal import Invocation, OperationKind, parse_invocation
from perdure.sidecar.config import SidecarConfig, read_config
from perdure.sidecar.failures import HandlerFailed
from perdure.sidecar.handling import checked, performers
from tests.harness import run
from tests.sidecars import COMMAND, Asked, asked, body_of

VECTORS = Path(__file__).parents[2] / "vectors"

# The protocol lets these pass, or end in 500 for what their sender did wrong.
STRICTER = {
    "bom": 400,
    "utf16": 400,
    "version true": 400,
    "version 1.0": 400,
    "input NaN": 400,
    "input dup keys": 400,
    "kind list": 400,
}
# Routes beside those of the protocol.
ADDED = {"health": 200}
# A document within its input may be as deep as it likes.
DEEPER = {"input deep": 200}

CLIENTS_OWN = {
    "config/endpoint-empty",
    "status/204",
    "status/400",
    "status/413",
    "status/500",
    "status/503",
}
"""What only a client of a sidecar can do wrong, or be answered by another server."""


def rows(name: str) -> list[Any]:
    lines = (VECTORS / name).read_bytes().splitlines()
    return [json.loads(line) for line in lines]


def command_config(task_queue: str = "zigai-agents") -> SidecarConfig:
    handlers = "\n".join(
        f'[[handlers]]\nkind = "{kind}"\nid = "{name}"\ncommand = {json.dumps(COMMAND)}'
        for kind, name in [
            ("model_request", "support-model"),
            *((kind.value, "worker") for kind in OperationKind),
        ]
    )
    return read_config(f'task_queue = "{task_queue}"\n{handlers}', file="worker.toml")


def test_every_request_gets_the_answer_of_the_protocol_or_a_stricter_one() -> None:
    def no_function(name: str) -> Any:
        raise AssertionError(name)

    found = performers(command_config(), load=no_function, environment={})

    async def perform(invocation: Invocation, seconds: float) -> bytes:
        return await found[invocation.kind, invocation.handler_id](invocation, seconds)

    async def main() -> None:
        async with asked(perform) as it:
            for row in rows("sidecar/http.jsonl"):
                await answered(it, row)

    requests = rows("sidecar/http.jsonl")
    assert len(requests) == 45
    assert STRICTER.keys() <= {row["name"] for row in requests}
    run(main())


async def answered(it: Asked, row: dict[str, Any]) -> None:
    packed = row.get("body_gzip_b64")
    body = gzip.decompress(base64.b64decode(packed)) if packed else row.get("body", "").encode()
    response = await it.client.request(
        row["method"], row["path"], headers=row["headers"], content=body
    )
    expected = {
        "status": row["status"],
    }["status"]
    for other in (STRICTER, ADDED, DEEPER):
        expected = other.get(row["name"], expected)
    assert (row["name"], response.status_code) == (row["name"], expected), response.text
    if expected == row["status"]:
        assert response.headers["content-type"] == row["content_type"]
    if expected == row["status"] == 200:
        assert response.text == row["response"]
    assert "s3cret" not in response.text


@pytest.mark.parametrize("row", rows("temporal/requests.jsonl"), ids=lambda row: row["name"])
def test_what_clients_write_is_read_and_what_they_must_not_write_is_refused(
    row: dict[str, Any],
) -> None:
    if row["name"] in CLIENTS_OWN:
        assert not row["valid"]
        return
    given = document_of(row)
    if refused_in_config(row["name"], given):
        return
    if "response_body" in given:
        judged(row, given)
        return
    body = row["canonical"].encode() if row["valid"] else json.dumps(request_of(given)).encode()

    async def main() -> None:
        limits = {"input_bytes": given["max_input_bytes"]} if "max_input_bytes" in given else {}
        async with asked(**limits) as it:
            served(it, given)
            response = await it.execute(body)
        status = 413 if row.get("error") == "RequestTooLarge" else 400
        assert response.status_code == (200 if row["valid"] else status), response.text
        if row["valid"]:
            invocation = parse_invocation(json.dumps(given["invocation"]).encode())
            assert checked(invocation, response.content)

    run(main())


def document_of(row: dict[str, Any]) -> dict[str, Any]:
    parts = row.get("document_parts", [])
    return json.loads(row.get("document") or "".join(text * count for text, count in parts))


def served(it: Asked, given: dict[str, Any]) -> None:
    """Have a sidecar serve the namespace, the queue and the handler of a client."""
    deployment = it.sidecar._deployment
    invocation = given["invocation"]
    it.sidecar._deployment = type(deployment)(
        given.get("namespace", "default"),
        given.get("task_queue", "zigai-agents"),
        deployment.handlers | {(OperationKind(invocation["kind"]), invocation["handler_id"])},
        deployment.limits,
    )


def request_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return what a client would send that checked nothing."""
    body = body_of(**given["invocation"])
    terms = body["activity"]
    terms |= {"start_to_close_timeout_ms": 300_000, "schedule_to_close_timeout_ms": 900_000}
    terms["retry"] |= {"initial_interval_ms": 1000, "maximum_interval_ms": 60_000}
    terms["retry"] |= given.get("retry", {})
    terms |= {name: given[name] for name in terms if name in given and name != "retry"}
    return body | {name: given[name] for name in ("namespace", "task_queue") if name in given}


def refused_in_config(name: str, given: dict[str, Any]) -> bool:
    """Tell whether a sidecar refuses this in its own configuration, and check that it does."""
    handler = '[[handlers]]\nkind = "tool_call"\nid = "a"\ncommand = ["true"]\n'
    texts = {
        "config/max-input-0": f'task_queue = "q"\n{handler}[limits]\ninput_bytes = 0\n',
        "config/dup-registration": f'task_queue = "q"\n{handler}{handler}',
        "config/registration-bad-id": 'task_queue = "q"\n' + handler.replace('"a"', '"a/b"'),
        "config/token-empty": f'task_queue = "q"\ntoken_file = ""\ntoken = ""\n{handler}',
    }
    if name not in texts:
        return False
    assert read_config(f'task_queue = "q"\n{handler}', file="worker.toml")
    with pytest.raises(InvalidOptions, match=r"worker\.toml"):
        read_config(texts[name], file="worker.toml")
    return True


def judged(row: dict[str, Any], given: dict[str, Any]) -> None:
    """Check what a sidecar makes of a worker that prints what the client was answered."""
    invocation = parse_invocation(json.dumps(given["invocation"]).encode())
    printed = given["response_body"].encode()
    if row["valid"]:
        assert checked(invocation, printed) == printed
        return
    with pytest.raises(HandlerFailed) as raised:
        checked(invocation, printed)
    assert (raised.value.name, raised.value.permanent) == (row["error"], True)


def test_the_worker_of_these_tests_knows_the_protocol_alone() -> None:
    assert "perdure" not in COMMAND[-1]
    assert COMMAND[0] == sys.executable
