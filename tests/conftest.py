"""Settings that every test shares. Warnings are errors by pyproject.toml."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Machines differ in speed, so no example has a deadline and none is called slow. In CI the same
# examples run every time: a failure there belongs to the change, not to the day.
_SLOW = [HealthCheck.too_slow]
settings.register_profile("default", deadline=None, max_examples=60, suppress_health_check=_SLOW)
settings.register_profile(
    "ci", settings.get_profile("default"), derandomize=True, database=None, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "default")
