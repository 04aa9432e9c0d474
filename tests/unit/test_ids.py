from __future__ import annotations

import pytest

from perdure.errors import InvalidInvocation
from perdure.ids import (
    IDENTIFIER_LIMIT,
    NAMESPACE_LIMIT,
    check_identifier,
    error_name_of,
    is_identifier,
    namespaced,
    new_run_id,
    shortened,
    stable_key,
)


@pytest.mark.parametrize("value", ["a", "._-", "Run-1.a_b", "x" * 128])
def test_identifiers(value: str) -> None:
    assert check_identifier(value, "run id") is value


@pytest.mark.parametrize(
    "value", ["", "a/b", "a b", "a\n", "é", "\u0663", "x" * 129, None, 7, b"a"]
)
def test_what_is_no_identifier_is_refused_with_the_rule(value: object) -> None:
    assert not is_identifier(value)
    with pytest.raises(InvalidInvocation, match=r"the run id .* 1 to 128 characters") as caught:
        check_identifier(value, "run id")
    assert len(str(caught.value)) < 300


def test_run_ids_are_identifiers_unlike_and_in_the_order_of_time() -> None:
    ids = [new_run_id(seconds) for seconds in (0, 1.001, 1.0025, 1_800_000_000, 4_000_000_000)]
    assert ids == sorted(ids)
    assert all(map(is_identifier, ids))
    assert len({new_run_id() for _ in range(1000)}) == 1000


def test_the_stable_key_joins_run_step_and_sequence() -> None:
    assert stable_key("run-1", "model.request", 7) == "run-1/model.request/7"


def test_a_namespace_may_fill_an_identifier_and_not_more() -> None:
    assert namespaced("", "model.request") == "model.request"
    assert namespaced("n" * 114, "model.request") == "n" * 114 + ".model.request"
    with pytest.raises(InvalidInvocation):
        namespaced("n" * 115, "model.request")
    with pytest.raises(InvalidInvocation):
        namespaced("a/b", "model.request")


def test_long_namespaces_shorten_to_stable_and_different_ones() -> None:
    fits = "n" * NAMESPACE_LIMIT
    assert shortened(fits) == fits
    one, other = shortened(fits + ".a"), shortened(fits + ".b")
    assert one == shortened(fits + ".a")
    assert one != other
    assert is_identifier(one)
    assert len(one) == NAMESPACE_LIMIT
    assert one.startswith("n" * 40)


def test_error_names_are_identifiers() -> None:
    assert error_name_of(ValueError) == "ValueError"
    assert error_name_of(type("Fehler_für", (Exception,), {})) == "Fehler_f_r"
    assert error_name_of(type("", (Exception,), {})) == "Error"
    long = error_name_of(type("E" * 300, (Exception,), {}))
    assert is_identifier(long)
    assert len(long) == IDENTIFIER_LIMIT
    assert long != error_name_of(type("E" * 301, (Exception,), {}))
