"""Services outside the process that some tests need, such as a database server.

`.ci/run` starts them and says where each listens in `PERDURE_TEST_<NAME>_URL`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest


def require(service: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of a service, or skip the test; where services are required, fail it."""
    variable = f"PERDURE_TEST_{service.upper()}_URL"
    url = environment.get(variable)
    if url:
        return url
    reason = f"needs {service}: set {variable}"
    if environment.get("PERDURE_REQUIRE_SERVICES") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
