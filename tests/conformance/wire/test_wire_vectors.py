"""The wire vectors: valid documents come back as the given bytes, others are refused by name."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.journal import Invocation, parse_invocation, parse_record
from perdure.testing.wire_oracle import KINDS, judge, main

VECTORS = Path(__file__).parents[2] / "vectors" / "wire"


def load() -> list[Any]:
    rows: list[Any] = []
    for path in sorted(VECTORS.glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            row = json.loads(line)
            rows.append(pytest.param(line, row, id=f"{path.stem}/{row['name']}"))
    return rows


def document_of(row: dict[str, Any]) -> bytes:
    if "document_b64" in row:
        return base64.b64decode(row["document_b64"])
    if "document_parts" in row:
        return "".join(text * count for text, count in row["document_parts"]).encode()
    return row["document"].encode()


def canonical_of(row: dict[str, Any]) -> bytes:
    if row.get("round_trip"):
        return document_of(row)
    if row["kind"] == "checkpoint_ops":
        results = [*row["expected"], row.get("canonical")]
        return json.dumps(results, ensure_ascii=False, separators=(",", ":")).encode()
    if row["kind"] == "sensitive_header":
        return json.dumps(row["expected"]).encode()
    return row["expected" if row["kind"] == "backoff" else "canonical"].encode()


def test_every_kind_of_the_oracle_has_vectors() -> None:
    assert {param.values[1]["kind"] for param in load()} == set(KINDS)


@pytest.mark.parametrize(("line", "row"), load())
def test_vector(line: bytes, row: dict[str, Any]) -> None:
    verdict = judge(line)
    if row.get("lax"):
        kind = row["kind"].title().replace("_", "")
        assert verdict.error == f"Invalid{kind}"
    elif not row["valid"]:
        assert verdict.error == row["error"]
    else:
        assert (verdict.error, verdict.canonical) == ("", canonical_of(row))
        if "canonical_sha256" in row:
            assert hashlib.sha256(verdict.canonical).hexdigest() == row["canonical_sha256"]
            assert len(verdict.canonical) == row["canonical_len"]


READ_BACK = [
    pytest.param(row, id=str(param.id))
    for param in load()
    for row in [param.values[1]]
    if row["kind"] in {"invocation", "record"} and row["valid"] and not row.get("lax")
]


@pytest.mark.parametrize("row", READ_BACK)
def test_parsed_members(row: dict[str, Any]) -> None:
    data = document_of(row)
    if row["kind"] == "invocation":
        invocation = parse_invocation(data)
    else:
        invocation = parse_record(data).invocation
    expected = row["expected"]
    for name in {*Invocation.__struct_fields__, "stable_key", "input_sha256"} & expected.keys():
        assert str(getattr(invocation, name)) == expected[name]


LINES = [
    b'{"kind":"float","document":"1.0","ignored":[1]}',
    b'{"kind":"json_value","document_b64":"eyJhIjogWzFdfQ=="}',
    b'{"kind":"json_value","document_parts":[["[",100000],["]",100000]]}',
    b'{"kind":"float","document":"NaN"}',
    b'{"kind":"weather","document":"1"}',
    b'{"kind":"float"}',
    b'{"kind":"float","document_b64":"*"}',
    b"not json",
]
VERDICTS: list[dict[str, Any]] = [
    {"valid": True, "canonical": "1"},
    {"valid": True, "canonical": '{"a":[1]}'},
    {"valid": True, "canonical": "[" * 100_000 + "]" * 100_000},
    {"valid": False, "error": "InvalidPayload"},
    {"valid": False, "error": "UnknownKind"},
    {"valid": False, "error": "InvalidLine"},
    {"valid": False, "error": "InvalidLine"},
    {"valid": False, "error": "InvalidLine"},
]


def test_main_answers_each_line_and_skips_empty_ones() -> None:
    sink = io.BytesIO()
    main([b"\n", *(line + b"\n" for line in LINES)], sink)
    assert [json.loads(line) for line in sink.getvalue().splitlines()] == VERDICTS


def test_the_module_runs_over_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n".join(LINES))))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(sink, write_through=True))
    monkeypatch.delitem(sys.modules, "perdure.testing.wire_oracle")
    runpy.run_module("perdure.testing.wire_oracle", run_name="__main__")
    assert [json.loads(line) for line in sink.getvalue().splitlines()] == VERDICTS
