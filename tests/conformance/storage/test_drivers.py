"""Every promise of the storage ports, kept by every driver."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.clock import SystemClock
from perdure.engine.store import RunStore
from perdure.observe import Observer
from perdure.ports import no_probe
from perdure.testing.storage import Check, checks
from perdure.urls import location_of
from tests.harness import run
from tests.storages import kept_on_server, url_of


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Name an empty place of a driver."""
    match request.param:
        case "memory":
            yield f"memory:{secrets.token_hex(8)}"
        case "sqlite":
            yield url_of(tmp_path)
        case _:
            with kept_on_server(tmp_path, request.getfixturevalue("postgres")):
                yield url_of(tmp_path)


@pytest.mark.parametrize("check", checks(), ids=lambda check: check.name)
def test_a_driver_keeps_what_its_ports_promise(url: str, check: Check) -> None:
    place = location_of(url)

    async def open_store(**given: Any) -> RunStore:
        return await place.open(SystemClock(), Observer(), 20.0, no_probe, create=True, **given)

    run(check(open_store))
