from __future__ import annotations

import warnings

import pytest
from hypothesis import settings

from tests.services import require


def test_a_warning_is_an_error() -> None:
    with pytest.raises(ResourceWarning):
        warnings.warn("left open", ResourceWarning, stacklevel=1)


def test_examples_have_no_deadline() -> None:
    assert settings().deadline is None


def test_a_running_service_is_found_by_its_url() -> None:
    url = "postgresql://localhost/test"
    assert require("postgres", {"PERDURE_TEST_POSTGRES_URL": url}) == url


def test_a_missing_service_skips_or_fails_where_it_is_required() -> None:
    with pytest.raises(pytest.skip.Exception, match="set PERDURE_TEST_POSTGRES_URL"):
        require("postgres", {})
    with pytest.raises(pytest.fail.Exception, match="set PERDURE_TEST_POSTGRES_URL"):
        require("postgres", {"PERDURE_REQUIRE_SERVICES": "1"})
