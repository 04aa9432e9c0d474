"""Every promise of the storage ports, kept by every driver when it encrypts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.clock import SystemClock
from perdure.encryption import Keyring
from perdure.engine.store import RunStore
from perdure.observe import Observer
from perdure.ports import no_probe
from perdure.testing.storage import Check, checks
from perdure.urls import location_of
from tests.acceptance.samples import FULL
from tests.harness import run
from tests.storages import url_of

CHECKS = checks(without=["encryption"])
ASKED = [("sqlite", check) for check in (CHECKS if FULL else CHECKS[::6])]
# What is encrypted is so before a driver has it: a few show that a server keeps it, too.
ASKED += [("postgres", check) for check in CHECKS[::6]]
VAULT = Keyring(current="k", keys={"k": bytes(32)}).vault()


@pytest.mark.parametrize(
    ("storage", "check"),
    ASKED,
    indirect=["storage"],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_driver_that_encrypts_keeps_what_its_ports_promise(
    storage: str, tmp_path: Path, check: Check
) -> None:
    place = location_of(url_of(tmp_path))

    async def open_store(**given: Any) -> RunStore:
        options = {"create": True, "vault": VAULT, **given}
        return await place.open(SystemClock(), Observer(), 20.0, no_probe, **options)

    run(check(open_store))
