from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class StoreFault(msgspec.Struct, frozen=True):
    """Something about a store that a person has to mend; the message says how."""

    code: str
    message: str


class StoreReport(msgspec.Struct, frozen=True):
    """What a store says about itself; `facts` are the driver's own, sizes in bytes."""

    driver: str
    schema_version: int
    facts: Mapping[str, str | int]
    faults: Sequence[StoreFault]
