"""Performs operations for programs in other languages: HTTP in front, Temporal behind."""

from importlib.util import find_spec

from perdure.errors import MissingExtra

if any(
    find_spec(name) is None for name in ("prometheus_client", "starlette", "temporalio", "uvicorn")
):
    raise MissingExtra("a sidecar needs more: pip install 'perdure[sidecar]'")
