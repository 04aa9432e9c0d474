"""Statements of many rows, for a single one."""

from __future__ import annotations

import re

import pytest
from psycopg.types.numeric import Int8

from perdure.storage.postgres.single import for_one, takes_rows, values_of
from perdure.storage.queries import load_queries

QUERIES = {name: query for name, query in load_queries("postgres").items() if takes_rows(query)}


def test_what_the_lanes_send_is_there_for_one_row() -> None:
    assert QUERIES.keys() == {"append_records", "insert_receipts", "settle_records", "start_runs"}


@pytest.mark.parametrize("name", QUERIES)
def test_one_row_brings_no_arrays_and_no_pieces(name: str) -> None:
    sql = for_one(QUERIES[name])
    asked = set(re.findall(r"%\((\w+)\)s", QUERIES[name]))
    pieces = {"piece_digest", "piece_parent", "piece_packing", "piece_data"}

    assert "[]" not in sql
    assert "unnest" not in sql
    assert set(re.findall(r"%\((\w+)\)s", sql)) == asked - pieces


def test_values_of_a_kind_are_sent_as_one_type() -> None:
    kinds = {"small": "bigint", "large": "bigint", "time": "double", "none": "bigint"}
    values = values_of(kinds, {"small": 1, "large": 2**40, "time": 3, "none": None, "more": 4})

    assert values == {"small": 1, "large": 2**40, "time": 3.0, "none": None}
    assert [type(value) for value in values.values()] == [Int8, Int8, float, type(None)]
